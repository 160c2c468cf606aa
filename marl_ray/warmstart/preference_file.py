"""Joint preferences in a JSONL file, tokenized for the agents' models.

A line is `{"task_id": ID, "chosen": [TEXT, ...], "rejected": [TEXT, ...]}`, with one text per agent. It may have
`prompts` in place of `task_id`, as in the answers file of a warm start.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marl_ray.core.batch import Group
from marl_ray.core.errors import UserError
from marl_ray.core.text import did_you_mean, pluralize
from marl_ray.data.loading import read_jsonl
from marl_ray.warmstart.written_answers import AnswersFile

logger = logging.getLogger(__name__)
FILE = "preferences file"
KEYS = ("task_id", "prompts", "chosen", "rejected")


@dataclass(frozen=True, slots=True)
class WrittenPreference:
    """A joint answer that is preferred to another one: per agent a group of one completion each, whose prompts are the
    same unless the agent reads other agents' answers."""

    chosen: tuple[Group, ...]
    rejected: tuple[Group, ...]


class PreferencesFile(AnswersFile):
    """Reads the joint preferences of a file for the agents of `config`."""

    def preferences(self) -> list[WrittenPreference]:
        """Return the preferences whose answers are short enough. Raises UserError."""
        left_out: Counter[str] = Counter()
        found: list[WrittenPreference] = []
        try:
            for number, row in read_jsonl(self.path, FILE):
                try:
                    sides = [self._side(row, name, left_out) for name in ("chosen", "rejected")]
                except UserError as error:
                    raise UserError(f"{FILE} {self.path}, line {number}: {error}") from None
                if sides[0] is not None and sides[1] is not None:
                    found.append(WrittenPreference(sides[0], sides[1]))
        except OSError as error:
            raise UserError(f"{FILE} {self.path} cannot be read ({error.strerror})") from None
        for reason, count in left_out.items():
            logger.warning(f"{pluralize(count, 'answer')} left out, with their pairs: longer than {reason}")
        if not found:
            remedy = f": raise {' or '.join(left_out)}" if left_out else ""
            raise UserError(f"{FILE} {self.path} has no pair{remedy}")
        return found

    def _side(self, row: Mapping[str, Any], name: str, left_out: Counter[str]) -> tuple[Group, ...] | None:
        """Return the agents' answers of one side of a pair; None if one of them is too long."""
        if unknown := next((key for key in row if key not in KEYS), None):
            raise UserError(f"unknown key {unknown!r}{did_you_mean(unknown, KEYS)}")
        if not isinstance(row.get(name), list):
            raise UserError(f"{name} should be a list of one text per agent")
        joint = self._of_line(
            {key: row[key] for key in ("task_id", "prompts") if key in row} | {"completions": row[name]}
        )
        groups = [
            self._group(joint, agent, self.tokenizers[settings.name], left_out)
            for agent, settings in enumerate(self.config.agents)
        ]
        known = tuple(group for group in groups if group is not None)
        return known if len(known) == len(groups) else None
