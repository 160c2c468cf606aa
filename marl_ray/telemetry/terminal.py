"""Text on a terminal: its width and colours, and texts of models, which could contain commands to the terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import unicodedata

BOLD = "1"
DIM = "2"
GREEN = "32"
YELLOW = "33"
CYAN = "36"

TAB = "    "
HIDDEN = "\N{REPLACEMENT CHARACTER}"
PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
"""The pictures of control characters in Unicode."""
# Commands of 8-bit terminals, and marks that reverse the order of the text after them, have no pictures.
for code in (*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)):
    PICTURES[code] = ord(HIDDEN)


def is_terminal() -> bool:
    """Return whether a person reads standard error on a terminal."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def has_colours() -> bool:
    """Return whether standard error shows colours (https://no-color.org)."""
    return is_terminal() and not os.environ.get("NO_COLOR")


def columns() -> int:
    """Return the columns of the terminal of standard error, or COLUMNS if it is set."""
    if os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return 80


def paint(text: str, *codes: str) -> str:
    """Return the text in colours, if the terminal shows them."""
    if not codes or not has_colours():
        return text
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m"


def printable(text: str) -> str:
    """Return a text of a model with pictures in place of control characters, except for line ends.

    Example:
        >>> printable("a\\x1b[2J\\tb")
        'a␛[2J    b'
    """
    # Half of a surrogate pair cannot be written.
    text = text.encode(errors="replace").decode()
    return text.translate(PICTURES).replace("\t", TAB)


def cell_width(text: str) -> int:
    """Return the number of columns that the text takes."""
    if text.isascii():
        return len(text)
    width = 0
    for character in text:
        if unicodedata.combining(character):
            continue
        width += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return width


def fit(text: str, width: int) -> str:
    """Return the text in exactly `width` columns, cut or followed by spaces.

    Example:
        >>> fit("abcdef", 4), fit("ab", 4)
        ('abc…', 'ab  ')
    """
    if cell_width(text) > width:
        while text and cell_width(text) >= width:
            text = text[:-1]
        text += "…"
    return text + " " * (width - cell_width(text))


def wrap(text: str) -> str:
    """Return a long line in several, as wide as the terminal; other texts as they are."""
    if "\n" in text or len(text) < columns():
        return text
    lines = textwrap.wrap(text, columns() - 1, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)
