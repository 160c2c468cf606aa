"""Builders that tests of several packages share: configs, completions, nodes and episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.learning.study import Study
from marl_ray.cluster.placement_plan import PlacementPlan, make_plan
from marl_ray.config import Config, from_tree, load, parse_overrides
from marl_ray.core.batch import Group
from marl_ray.core.episode import Completion, Episode, JointAction, Node, Outcome, Stop, Task, sibling_calls

ROOT = Path(__file__).resolve().parent.parent
PLUGINS_OF_CONFIGS = (
    *("comlrl", "bug_fix", "gateway", "grid", "travel", "writing", "builder", "function_calls"),
    *("code_completion", "solver_tester", "tags", "games", "contests", "math"),
)
"""Plug-ins that the shipped configs use."""
QUICKSTART = ROOT / "configs" / "quickstart.yaml"
TASK = Task("toy/1", "Write double.", {"entry_point": "double"})


def make_config(algorithm: str = "magrpo", sections: Mapping[str, Any] | None = None, **settings: Any) -> Config:
    """Return a valid config of two agents and the bundled toy tasks.

    `settings` are keys of the algorithm's section. `sections` are top-level keys (`{"external": {"mode": "passed"}}`);
    a section replaces the default section of the same name.
    """
    tree: dict[str, Any] = {"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}, algorithm: settings}
    return from_tree(tree | dict(sections or {}), algorithm)


def quickstart_config(**overrides: Any) -> Config:
    """Return the quickstart config with overrides by dotted key (`**{"magrpo.max_steps": 1}`)."""
    return load(QUICKSTART, "magrpo", overrides)


def study_config(study: Study, arm: str) -> Config:
    """Return the config of an arm of a study."""
    settings = {**study.common, **study.arms[arm].overrides}
    overrides = parse_overrides([f"{key}={value}" for key, value in settings.items()])
    return from_tree(yaml.safe_load(study.config.read_text(encoding="utf-8")), "magrpo", overrides)


def plan_of(config: Config, cluster_has_gpus: bool) -> PlacementPlan:
    """Return the placement plan of a config."""
    return make_plan(config.agents, config.lora, config.resources, cluster_has_gpus)


@dataclass(frozen=True)
class Verdict:
    """Evidence that holds one text."""

    text: str

    def data(self) -> dict[str, Any]:
        return {"verdict": self.text}

    def lines(self) -> list[str]:
        return [f"verdict: {self.text}"]


def make_completion(text: str, tokens: int = 2, finish: str = "stop", version: int = 0) -> Completion:
    """Return a completion of `tokens` tokens with log-probabilities of zero, sampled by weight version `version`."""
    return Completion(tuple(range(tokens)), text, (0.0,) * tokens, finish, ((version, tokens),))


def make_node(
    turn: int,
    rewards: Sequence[float],
    children: Mapping[int, Node] | None = None,
    agents: int = 2,
    transitions: Mapping[int, Mapping[str, float]] | None = None,
    **outcome: Any,
) -> Node:
    """Return a node with one aligned joint action per reward; each answer names its turn, agent and index."""
    size = len(rewards)
    return Node(
        turn=turn,
        calls=[
            list(
                sibling_calls(
                    (1, 2),
                    [make_completion(f"answer {turn}.{agent}.{g}") for g in range(size)],
                    agent,
                    f"prompt {turn}.{agent}",
                )
            )
            for agent in range(agents)
        ],
        joint_actions=[
            JointAction((g,) * agents, Outcome(reward, **outcome), reward, (reward,) * agents)
            for g, reward in enumerate(rewards)
        ],
        children=dict(children or {}),
        transitions=dict(transitions or {index: {} for index in children or {}}),
    )


def with_completions(group: Group, completions: Iterable[Completion]) -> Group:
    """Return the group with other completions of its calls."""
    changed = [replace(call, completion=one) for call, one in zip(group.calls, completions, strict=True)]
    return replace(group, calls=tuple(changed))


def make_episode(root: Node | None, *stops: tuple[tuple[int, ...], str]) -> Episode:
    """Return an episode of `TASK` with this tree; each stop is (path, reason)."""
    return Episode(TASK, root, [Stop(path, reason) for path, reason in stops])


def row_task(row: dict[str, str]) -> Task:
    """Return the task of a row of a bundled data set."""
    return Task(row["task_id"], row["prompt"], {"entry_point": row["entry_point"], "tests": row["test"]})
