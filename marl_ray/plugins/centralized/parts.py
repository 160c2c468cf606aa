"""Prompts and completions of a centralised actor: the parts of a team, each between tags with its number."""

from __future__ import annotations

import re
from collections.abc import Sequence

TAG = re.compile(r"<\s*(?P<closing>/?)\s*part_(?P<number>\d{1,3})\s*>", re.IGNORECASE)


def first_prompt(roles: Sequence[str], prompts: Sequence[str]) -> str:
    """Return one prompt for all parts, from the prompts of the team's agents."""
    opening = f"Write {len(roles)} parts of one answer. Each part has its own instructions.\n\n"
    return opening + _instructions(roles, prompts)


def revision(roles: Sequence[str], revisions: Sequence[str]) -> str:
    """Return the closing instructions of a later turn for all parts."""
    return _instructions(roles, revisions)


def _instructions(roles: Sequence[str], texts: Sequence[str]) -> str:
    instructions = ""
    for number, (role, text) in enumerate(zip(roles, texts, strict=True), 1):
        instructions += f"Part {number}, {role}:\n{text.strip()}\n\n"
    form = join_parts(["..."] * len(roles))
    return f"{instructions}Write each part between its own tags, and nothing else:\n{form}\n"


def join_parts(parts: Sequence[str]) -> str:
    """Return the parts in the form of a completion.

    >>> join_parts(["a", "b"])
    '<part_1>\\na\\n</part_1>\\n<part_2>\\nb\\n</part_2>'
    """
    lines = []
    for number, part in enumerate(parts, 1):
        lines += [f"<part_{number}>", part, f"</part_{number}>"]
    return "\n".join(lines)


def split_parts(completion: str, count: int) -> tuple[list[str], int]:
    """Return `count` parts of a completion, and the number of parts that have a tag.

    A part begins after its first opening tag and ends at the next tag of any part, or at the end. Without a tag of its
    own, the first part is the text before all tags, so that a model which does not yet know the form earns something.
    Other parts without a tag are empty.

    >>> split_parts("<part_1>a</part_1> and <part_2>b", 2)
    (['a', 'b'], 2)
    >>> split_parts("a", 2)
    (['a', ''], 0)
    """
    tags = list(TAG.finditer(completion))
    ends = [tag.start() for tag in tags]
    ends.append(len(completion))
    found: dict[int, str] = {}
    for tag, end in zip(tags, ends[1:], strict=True):
        if not tag["closing"]:
            part = completion[tag.end() : end].strip()
            found.setdefault(int(tag["number"]), part)
    numbers = range(1, count + 1)
    tagged = len(found.keys() & numbers)
    found.setdefault(1, completion[: ends[0]].strip())
    return [found.get(number, "") for number in numbers], tagged
