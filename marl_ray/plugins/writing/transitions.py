"""Transition words by kind. Words and phrases count where they stand as a whole: `so` does not occur in `also`."""

from __future__ import annotations

import re

_KINDS = {
    "addition": "also, besides, furthermore, in addition, likewise, moreover, similarly, as well as",
    "example": "for example, for instance, in particular, including, namely, particularly, specifically, such as",
    "explanation": "actually, in essence, in fact, in other words, indeed, that is, to clarify, essentially",
    "cause": "accordingly, as a result, because of this, consequently, hence, so, therefore, thus",
    "contrast": "but, by contrast, conversely, however, instead, on the other hand, rather, whereas, yet",
    "sequence": "finally, first, lastly, next, second, subsequently, then, third, to begin with",
    "emphasis": "certainly, clearly, definitely, importantly, notably, obviously, of course, significantly, surely",
    "summary": "all in all, briefly, in brief, in conclusion, in short, in summary, overall, to conclude, to sum up",
    "comparison": "comparable to, equally, in comparison, in the same way, just as, just like, much like",
    "concession": "although, despite, even if, even though, in spite of, nevertheless, nonetheless, though",
    "condition": "as long as, given that, if, in case, only if, otherwise, provided that, unless",
    "time": "after, afterwards, before, during, eventually, later, meanwhile, previously, since, until, when",
}
_PATTERNS = {}
for _kind, _phrases in _KINDS.items():
    _choices = map(re.escape, _phrases.split(", "))
    _PATTERNS[_kind] = re.compile(rf"\b(?:{'|'.join(_choices)})\b")


def transition_kinds(text: str) -> list[str]:
    """Return the kinds of transition words in a text.

    Example:
        >>> transition_kinds("Also heavy.\\nHowever,   it floats.")
        ['addition', 'contrast']
    """
    flat = " ".join(text.lower().split())
    return [kind for kind, pattern in _PATTERNS.items() if pattern.search(flat)]
