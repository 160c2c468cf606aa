"""HTML in which text stays text.

Pages show what models wrote, which may be anything: `</pre><script>`, quotes, control characters, marks that turn the
direction of writing. So there is one way to make an element, and whatever it is given that no element is, is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

VOID = ("br", "input", "meta")
"""Elements that have no end."""
PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
"""Control characters by the ones that stand for them."""


class Markup(str):
    """Text that is HTML. Only this module, and files of this package, make it from text."""

    __slots__ = ()


Child = str | int | None | Iterable["Child"]
"""What an element may hold: markup, text, nothing, or several of these."""


def element(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """`<name ...>children</name>`. Of an attribute's name a `_` at the end goes, and others become `-`; an attribute
    that is False or None is left away, and one that is True has no value.

    Example:
        >>> element("td", "a < b", class_="name")
        '<td class="name">a &lt; b</td>'
    """
    said = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in VOID:
        return Markup(f"<{name}{said}>")
    return Markup(f"<{name}{said}>{joined(children)}</{name}>")


def joined(children: Child) -> Markup:
    """One after another."""
    if children is None:
        return Markup()
    if isinstance(children, Markup):
        return children
    if isinstance(children, str | int):
        return escaped(str(children))
    return Markup("".join(joined(child) for child in children))


def escaped(text: str) -> Markup:
    """Text as markup that shows it: control characters as their pictures, halves of a surrogate pair as U+FFFD."""
    whole = text.translate(PICTURES).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return Markup(html.escape(whole))


def _attribute(key: str, value: str | float | bool) -> str:
    name = key.removesuffix("_").replace("_", "-")
    if isinstance(value, bool):
        return f" {name}" if value else ""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f' {name}="{escaped(text)}"'
