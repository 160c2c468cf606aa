"""Answers in responses: where a response states its answer, and comparison of numbers by value.

Nothing here evaluates a response: numbers are read by one pattern with bounded digits.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_ANSWER_CHARS = 200
"""Maximum characters of an answer. A longer one counts as none."""
_MARKED = re.compile(r"####[ \t]*([^\n]*)")
_BOXES = ("\\boxed{", "\\fbox{")
_DIGITS = r"\d{1,30}"
_AMOUNT = rf"(?:\d{{1,3}}(?:,\d{{3}}){{1,9}}|{_DIGITS})(?:\.{_DIGITS})?|\.{_DIGITS}"
_LAST_NUMBER = re.compile(rf"(?:(?<![\w)\]}}])-)?(?<![\w.,])(?:{_AMOUNT})(?:/{_DIGITS})?(?![\w/])")
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\$?(?:\\frac\{{(?P<over>{_DIGITS})\}}\{{(?P<under>{_DIGITS})\}}"
    rf"|(?P<amount>{_AMOUNT})(?:/(?P<divisor>{_DIGITS}))?)"
    r"(?:%|(?: |\\text\{ ?|\\mathrm\{ ?)[A-Za-z][A-Za-z .]*\}?)?"
)
"""A number with an optional currency, percent sign or unit."""
_LAYOUT = re.compile(r"\\left|\\right|\\[!,;: ]|\$|\\(?=[$%])|\^\{?\\circ\}?")
"""LaTeX that changes nothing but the looks, and degrees."""


def stated_answer(response: str) -> str:
    """Return the answer that a response states: after its last `####` or in its last `\\boxed{}`, whichever is later;
    without either, its last number. Empty if there is none, or if it is too long.

    Example:
        >>> stated_answer("2 boxes of 9 make 18.\\n#### 18 apples")
        '18 apples'
        >>> stated_answer(r"so \\boxed{\\frac{1}{2}}.")
        '\\\\frac{1}{2}'
    """
    found = ""
    place = -1
    for match in _MARKED.finditer(response):
        found = match[1]
        place = match.start()
    for box in _BOXES:
        start = response.rfind(box)
        if start > place:
            found = _braced(response, start + len(box))
            place = start
    if place < 0:
        for match in _LAST_NUMBER.finditer(response):
            found = match[0]
    found = found.strip().rstrip(".").strip()
    if len(found) > MAX_ANSWER_CHARS:
        return ""
    return found


def _braced(text: str, start: int) -> str:
    """Return the text from `start` to the brace that closes it, empty if none does."""
    depth = 1
    for place in range(start, min(len(text), start + MAX_ANSWER_CHARS + 1)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start:place]
    return ""


def number_of(answer: str) -> Fraction | None:
    """Return the value of an answer that is a number, with or without a unit; otherwise None.

    Example:
        >>> number_of("$1,250.50"), number_of(r"-\\frac{3}{6}"), number_of("18 apples"), number_of("2x")
        (Fraction(2501, 2), Fraction(-1, 2), Fraction(18, 1), None)
    """
    match = _NUMBER.fullmatch(_plain(answer))
    if match is None:
        return None
    value = Fraction((match["over"] or match["amount"]).replace(",", ""))
    divisor = int(match["under"] or match["divisor"] or 1)
    if divisor == 0:
        return None
    value /= divisor
    return -value if match["sign"] == "-" else value


def normal_form(answer: str) -> str:
    """Return a text that is equal for equal numbers, and for expressions that differ only in white space and layout.

    Example:
        >>> normal_form("0.50"), normal_form(r"\\dfrac{1}{2}"), normal_form("x + 1")
        ('1/2', '1/2', 'x+1')
    """
    number = number_of(answer)
    if number is not None:
        return str(number)
    return "".join(_plain(answer).split())


def same_answer(reference: str, answer: str) -> bool | None:
    """Return whether two answers are equal, None if only algebra can tell. No answer equals nothing."""
    if not answer:
        return False
    if normal_form(reference) == normal_form(answer):
        return True
    if number_of(reference) is not None and number_of(answer) is not None:
        return False
    return None


def _plain(answer: str) -> str:
    """Return an answer without the LaTeX that changes nothing but its looks."""
    text = _LAYOUT.sub("", answer.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac"))
    return text.replace("\N{MINUS SIGN}", "-").strip()
