"""Joint preferences in a JSONL file, as text or tokenized for the agents' models.

| line | source |
|---|---|
| `{"task_id": ID, "chosen": [TEXT, ...], "rejected": [TEXT, ...]}` | a preference between answers to a training task |
| `{"prompts": [PROMPT, ...], "chosen": ..., "rejected": ...}` | a preference between answers to given prompts |
| `{"task": ID, "nodes": [...]}` | an episode of `episodes.jsonl`, of a run or of `marl-ray eval --episodes` |

Lists have one entry per agent. Joint answers of all episodes to the same prompts are compared by their rewards, which
makes the pairs with the largest differences. Episodes of a run's evaluations are left out, because their tasks are held
out from training.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from marl_ray.core.batch import Group
from marl_ray.core.chat import Prompt
from marl_ray.core.errors import UserError
from marl_ray.core.preference import preferences_by_return
from marl_ray.core.text import pluralize
from marl_ray.plugins.preferences.command import PAIRS
from marl_ray.plugins.preferences.written_answers import AnswersFile, JointAnswer, check_keys

logger = logging.getLogger(__name__)
KEYS = ("task_id", "prompts", "chosen", "rejected")


@dataclass(frozen=True, slots=True)
class WrittenPreference:
    """A joint answer that is preferred to another one: per agent a group of one completion each, whose prompts are the
    same unless the agent reads other agents' answers."""

    chosen: tuple[Group, ...]
    rejected: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class JointPair:
    """A joint answer that is preferred to another one, as text, with the prompts that both answer. `task_id` is None if
    the file has prompts in its place."""

    chosen: JointAnswer
    rejected: JointAnswer
    task_id: str | None


@dataclass(frozen=True, slots=True)
class RewardedAnswer:
    """A joint answer of an episode, the team's reward and the task."""

    joint: JointAnswer
    reward: float
    task_id: str


class PreferencesFile(AnswersFile):
    """Reads the joint preferences of a file for the agents of `config`."""

    what = "preferences file"

    def preferences(self, count: int = PAIRS) -> list[WrittenPreference]:
        """Return the preferences whose answers are short enough, `count` per prompt of an episode. Raises UserError."""
        left_out: Counter[str] = Counter()
        preferences = []
        for pair in self.pairs(count):
            # Both sides are read, so that every answer that is too long is counted.
            chosen = self._side(pair.chosen, left_out)
            rejected = self._side(pair.rejected, left_out)
            if chosen is not None and rejected is not None:
                preferences.append(WrittenPreference(chosen, rejected))
        for reason, number in left_out.items():
            logger.warning(f"{pluralize(number, 'answer')} left out, with their pairs: longer than {reason}")
        if not preferences:
            raise UserError(f"{self.what} {self.path} has no pair: raise {' or '.join(left_out)}")
        return preferences

    def pairs(self, count: int = PAIRS) -> list[JointPair]:
        """Return the preferences as text, `count` per prompt of an episode. Raises UserError without a pair."""
        compared: dict[str, dict[tuple[str, ...], RewardedAnswer]] = {}

        def written_pairs(row: Mapping[str, Any]) -> Iterator[JointPair]:
            if "nodes" not in row:
                yield self._of_pair(row)
                return
            for prompts, answer in self._of_node(row):
                of_prompts = compared.setdefault(prompts, {})
                of_prompts.setdefault(tuple(answer.joint.answers), answer)

        pairs = self._read(written_pairs)
        for of_prompts in compared.values():
            answers = list(of_prompts.values())
            rewards = [answer.reward for answer in answers]
            for preference in preferences_by_return(rewards, count):
                chosen = answers[preference.chosen]
                rejected = answers[preference.rejected]
                pairs.append(JointPair(chosen.joint, rejected.joint, chosen.task_id))
        if not pairs:
            equal = ": all rewards of a prompt are equal" if compared else ""
            raise UserError(f"{self.what} {self.path} has no pair{equal}")
        return pairs

    def prompts_of(self, pair: JointPair) -> list[Prompt]:
        """Return the agents' prompts before any agent answers."""
        if pair.task_id is None:
            return list(pair.chosen.prompts)
        return list(self.first_prompts(pair.task_id))

    def _of_node(self, row: Mapping[str, Any]) -> Iterator[tuple[str, RewardedAnswer]]:
        """Yield the joint answers of an episode, each with a key of its prompts."""
        for node, answers in self.answers_by_node(row):
            key = json.dumps([row["task"], node["turn"], node["prompts"]], sort_keys=True)
            for joint, reward in answers:
                yield key, RewardedAnswer(joint, reward, str(row["task"]))

    def _of_pair(self, row: Mapping[str, Any]) -> JointPair:
        check_keys(row, KEYS)
        for name in ("chosen", "rejected"):
            if not isinstance(row.get(name), list):
                raise UserError(f"{name} should be a list of one text per agent")
        context = {key: row[key] for key in ("task_id", "prompts") if key in row}
        chosen = self._of_line({**context, "completions": row["chosen"]})
        rejected = self._of_line({**context, "completions": row["rejected"]})
        task_id = str(row["task_id"]) if "task_id" in row else None
        return JointPair(chosen, rejected, task_id)

    def _side(self, joint: JointAnswer, left_out: Counter[str]) -> tuple[Group, ...] | None:
        """Return the agents' answers of one side of a pair; None if one of them is too long."""
        groups = []
        for agent in range(self.config.num_agents):
            group = self._group(joint, agent, left_out)
            if group is not None:
                groups.append(group)
        if len(groups) < self.config.num_agents:
            return None
        return tuple(groups)
