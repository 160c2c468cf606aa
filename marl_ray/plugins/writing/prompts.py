"""The prompts of the writing tasks."""

from __future__ import annotations

from dataclasses import dataclass

SPLIT = "[PARAGRAPH_SPLIT]"
"""Separator of the two parts in the answer of a single agent."""
ALONE = "both parts"


@dataclass(frozen=True, slots=True)
class WritingPrompts:
    """The texts of one task: the name of the source, and per part its name and instruction."""

    source: str
    parts: tuple[str, str]
    instructions: tuple[str, str]

    def roles(self, num_agents: int) -> list[str]:
        """Return the names of the agents."""
        if num_agents == 1:
            return [ALONE]
        return list(self.parts)

    def first_prompts(self, text: str, num_agents: int) -> list[str]:
        """Return the prompts of the first turn."""
        return [f"{self.source}:\n{text.strip()}\n\n{asked}\n" for asked in self._asked(num_agents)]

    def revisions(self, num_agents: int) -> list[str]:
        """Return the closing instructions of later turns."""
        return [f"Improve your text. {asked}" for asked in self._asked(num_agents)]

    def _asked(self, num_agents: int) -> list[str]:
        if num_agents == 2:
            return list(self.instructions)
        first, second = self.instructions
        return [f"Write two parts with a line {SPLIT} between them. Part 1: {first} Part 2: {second}"]


TLDR_PROMPTS = WritingPrompts(
    "Post",
    ("summary", "details"),
    (
        "Summarise this post briefly, in one sentence or a few. Keep to the facts.",
        "Summarise this post in detail. Use a rich vocabulary, and connect the sentences with transition words.",
    ),
)
ARXIV_PROMPTS = WritingPrompts(
    "Abstract of a paper",
    ("background", "methods"),
    (
        "Write the part of the paper's introduction about background and motivation. Another writer covers methods and "
        "implications, so leave these out.",
        "Write the part of the paper's introduction about methods and implications. Another writer covers background "
        "and motivation, so leave these out.",
    ),
)
