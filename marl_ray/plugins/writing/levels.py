"""The reward levels of two texts that belong together, as published for CoMLRL's writing tasks.

The levels are structure, length ratio, ratio of unique words, and style: transition words and Jaccard similarity. A
level that fails ends the sum. docs/reference/environments/writing.md describes them and the differences.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from marl_ray.plugins.writing.transitions import transition_kinds

# The largest reward of each level.
STRUCTURE = 0.5
LENGTH = 1.0
UNIQUE = 0.5
TRANSITIONS = 0.4
JACCARD = 0.6
_WORD = re.compile(r"\w+")
_STOP_WORDS = """
a about all also an and any are as at be because been being both but by can could did do does each few for from had has
have he her here him his how i if in into is it its just many may me might more most much must my no not now of on only
or other our own same shall she should so some such than that the their them then there these they this those to too us
very was we were what when where which who why will with would you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words that the Jaccard similarity ignores."""


@dataclass(frozen=True, slots=True)
class Band:
    """A number's share of a level: 1 from `best_low` to `best_high`, falling linearly to 0 at `low` and `high`."""

    low: float
    best_low: float
    best_high: float = math.inf
    high: float = math.inf

    def share(self, value: float) -> float | None:
        """Return the share, None outside the band.

        Example:
            >>> Band(1.0, 2.0, 3.0, 5.0).share(1.5), Band(1.0, 2.0, 3.0, 5.0).share(4.0)
            (0.5, 0.5)
        """
        if not self.low <= value <= self.high:
            return None
        if value < self.best_low:
            return (value - self.low) / (self.best_low - self.low)
        if value <= self.best_high:
            return 1.0
        return (self.high - value) / (self.high - self.best_high)


@dataclass(frozen=True, slots=True)
class Rule:
    """The numbers of one task.

    | field | meaning |
    |---|---|
    | `words` | smallest and largest number of words of each part |
    | `length` | length of the second part relative to the first, in characters |
    | `unique` | number of different words of the second part relative to the first |
    | `jaccard` | Jaccard similarity with the full share; below, the share is proportional |
    | `both_transitions` | whether transition words count in both parts, or in the second alone |
    """

    words: tuple[int, int]
    length: Band
    unique: Band
    jaccard: float
    both_transitions: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """The numbers of two parts, from which the levels follow."""

    words: tuple[int, int]
    length_ratio: float
    unique_ratio: float
    kinds: tuple[str, ...]
    jaccard: float


def compare(first: str, second: str, rule: Rule) -> Comparison:
    """Return the numbers of two parts. Ratios to an empty first part are 0."""
    first_words = set(_WORD.findall(first.lower()))
    second_words = set(_WORD.findall(second.lower()))
    length_ratio = 0.0
    if first:
        length_ratio = len(second) / len(first)
    unique_ratio = 0.0
    if first_words:
        unique_ratio = len(second_words) / len(first_words)
    union = (first_words | second_words) - STOP_WORDS
    jaccard = 1.0
    if union:
        jaccard = len((first_words & second_words) - STOP_WORDS) / len(union)
    text = second
    if rule.both_transitions:
        text = f"{first}\n{second}"
    return Comparison(
        words=(len(first.split()), len(second.split())),
        length_ratio=length_ratio,
        unique_ratio=unique_ratio,
        kinds=tuple(transition_kinds(text)),
        jaccard=jaccard,
    )


def level_rewards(found: Comparison, rule: Rule) -> dict[str, float]:
    """Return the reward of each level. Levels after a failed one are 0."""
    levels = dict.fromkeys(("structure", "length_ratio", "unique_words", "transitions", "jaccard"), 0.0)
    low, high = rule.words
    if not all(low <= count <= high for count in found.words):
        return levels
    levels["structure"] = STRUCTURE
    length = rule.length.share(found.length_ratio)
    if length is None:
        return levels
    levels["length_ratio"] = LENGTH * length
    unique = rule.unique.share(found.unique_ratio)
    if unique is None:
        return levels
    levels["unique_words"] = UNIQUE * unique
    if found.kinds:
        # CoMLRL's scale: 0.4 of the level for one kind of transition, and 0.05 for each further one.
        levels["transitions"] = TRANSITIONS * min(1.0, 0.4 + 0.05 * (len(found.kinds) - 1))
    levels["jaccard"] = JACCARD * min(found.jaccard, rule.jaccard) / rule.jaccard
    return levels


TLDR = Rule((8, 256), Band(1.1, 1.6, 3.2, 5.0), Band(1.3, 2.0), 0.03, False)
ARXIV = Rule((128, 256), Band(0.8, 1.3, 1.6, 2.0), Band(0.5, 0.7, 1.3, 1.7), 0.23, True)
