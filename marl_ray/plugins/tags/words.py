"""Words of a text: division into words, the words that count as tags, and their positions."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import product

WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
MIN_LETTERS = 4
"""Minimum length of a word that counts as a tag."""
_FUNCTION_WORDS = """
about above after again against almost along already also although always among another around away because been
before began behind below beneath beside between beyond both cannot could does down during each either else even ever
every exactly from hardly have having hence here herself himself however inside instead into itself just later less
like many meanwhile might more most much must near nearly neither never none often once only onto other others
otherwise ought over perhaps quite rather same several shall should since some soon still such than that their theirs
them themselves then there therefore these they thing things this those though through together toward towards under
unless until upon usually very were what whatever when where whether which while whole whom whose will with within
without would your
"""
_PRONOUNS = product(("any", "every", "no", "some"), ("body", "one", "thing", "where"))
FUNCTION_WORDS = {*_FUNCTION_WORDS.split(), *map("".join, _PRONOUNS)}
"""Words that never count as tags."""


def split_words(text: str) -> list[str]:
    """Return all words of a text in lower case.

    Example:
        >>> split_words("The cat's paw, a HALF-open door: 7 steps")
        ['the', "cat's", 'paw', 'a', 'half-open', 'door', 'steps']
    """
    return WORD.findall(text.lower())


def split_parts(text: str) -> list[str]:
    """Return the words of each part of a text between commas as one entry, in lower case. Parts without words are left
    out.

    Example:
        >>> split_parts(" Ferry, the crew, , radio.")
        ['ferry', 'the crew', 'radio']
    """
    parts = []
    for part in text.split(","):
        words = split_words(part)
        if words:
            parts.append(" ".join(words))
    return parts


@lru_cache(maxsize=1024)
def content_words(text: str) -> frozenset[str]:
    """Return the words of a text that count as tags: at least four letters, and no function word."""
    words = set(split_words(text)) - FUNCTION_WORDS
    return frozenset(word for word in words if len(word) >= MIN_LETTERS)


@lru_cache(maxsize=1024)
def relative_positions(text: str) -> dict[str, float]:
    """Return where each word of a text first occurs, from 0 (first word) to 1 (last word)."""
    words = split_words(text)
    positions: dict[str, float] = {}
    for number, word in enumerate(words):
        positions.setdefault(word, number / max(1, len(words) - 1))
    return positions
