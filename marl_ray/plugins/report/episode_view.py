"""Selection of a run's episodes for the HTML report, and the data that the episode template shows of each."""

from __future__ import annotations

import difflib
import heapq
import itertools
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.core.chat import describe_prompt
from marl_ray.plugins.report.svg_charts import format_number
from marl_ray.telemetry.metrics import EpisodeRecord, recorded_prompt

NodePath = tuple[int, ...]
NodeRecord = Mapping[str, Any]
STANDARD_KEYS = ("indices", "reward", "levels", "rewards", "report")
"""Keys of a joint action that the template presents; other keys are shown as JSON."""


@dataclass(frozen=True, slots=True)
class SelectedEpisode:
    """An episode's record, its reward, and why it was selected: `best`, `worst`, `last`."""

    reasons: list[str]
    reward: float
    record: EpisodeRecord


def last_turn_reward(record: EpisodeRecord) -> float | None:
    """Return the mean reward of the last turn's joint actions; None for an episode without a node."""
    last = max((node["turn"] for node in record["nodes"]), default=0)
    rewards = [a["reward"] for node in record["nodes"] if node["turn"] == last for a in node["joint_actions"]]
    return statistics.fmean(rewards) if rewards else None


def select_episodes(records: Iterable[EpisodeRecord], count: int) -> tuple[list[SelectedEpisode], int]:
    """Return the `count` best, worst and last episodes each, in file order, and the number of all records.

    Of equal rewards the later episode is selected. Keeps at most `3 * count` records in memory.
    """
    heaps: dict[str, list[tuple[float, int, SelectedEpisode]]] = {"best": [], "worst": [], "last": []}
    total = 0
    for total, record in enumerate(records, start=1):
        reward = last_turn_reward(record)
        if reward is None:
            continue
        episode = SelectedEpisode([], reward, record)
        for heap, rank in zip(heaps.values(), (reward, -reward, 0.0), strict=True):
            heapq.heappush(heap, (rank, total, episode))
            if len(heap) > count:
                heapq.heappop(heap)
    selected: dict[int, SelectedEpisode] = {}
    for reason, heap in heaps.items():
        for _, number, episode in heap:
            selected.setdefault(number, episode).reasons.append(reason)
    return [episode for _, episode in sorted(selected.items())], total


def episode_view(episode: SelectedEpisode) -> dict[str, Any]:
    """Return the variables of the episode template."""
    record = episode.record
    nodes = {tuple(node["path"]): node for node in record["nodes"]}
    is_chain = len(nodes) == len({len(path) for path in nodes})
    return {
        "task": record["task"],
        "kind": record["kind"],
        "step": record["step"],
        "reward": episode.reward,
        "reasons": episode.reasons,
        "stops": [_stop(stop) for stop in record["stops"]],
        "tree": None if is_chain else "\n".join(_tree_lines(nodes)),
        "nodes": [_node_view(path, node, nodes) for path, node in nodes.items()],
    }


def _stop(stop: Mapping[str, Any]) -> str:
    where = f"after joint actions {' '.join(map(str, stop['path']))}" if stop["path"] else "at the first turn"
    detail = f": {stop['detail']}" if stop.get("detail") else ""
    return f"ended {where}: {stop['reason'].replace('_', ' ')}{detail}"


def _tree_lines(nodes: Mapping[NodePath, NodeRecord]) -> Iterator[str]:
    """Yield a line per node with the rewards of its joint actions; `*` marks expanded joint actions."""
    for path, node in sorted(nodes.items()):
        rewards = [
            f"*{format_number(a['reward'])}" if index in node["expanded"] else format_number(a["reward"])
            for index, a in enumerate(node["joint_actions"])
        ]
        origin = f", after {path[-1]}" if path else ""
        yield f"{'  ' * len(path)}turn {node['turn']}{origin}: {' '.join(rewards)}"


def _node_view(path: NodePath, node: NodeRecord, nodes: Mapping[NodePath, NodeRecord]) -> dict[str, Any]:
    """Return a turn with one of its joint actions in full: the first expanded one, else the best."""
    actions = node["joint_actions"]
    index = node["expanded"][0] if node["expanded"] else max(range(len(actions)), key=lambda g: actions[g]["reward"])
    action = actions[index]
    origin = f" after joint action {path[-1]} of turn {node['turn'] - 1}" if path else ""
    evidence = {key: value for key, value in action.items() if key not in STANDARD_KEYS}
    return {
        "title": f"Turn {node['turn']}{origin}: joint action {index}, reward {format_number(action['reward'])}",
        "agents": [_agent_view(agent, node, index, path, nodes) for agent in range(len(node["prompts"]))],
        "report": action.get("report"),
        "evidence": json.dumps(evidence, ensure_ascii=False, indent=1) if evidence else None,
        "actions": _action_table(node),
        "action_index": index,
    }


def _agent_view(
    agent: int, node: NodeRecord, action: int, path: NodePath, nodes: Mapping[NodePath, NodeRecord]
) -> dict[str, Any]:
    """Return an agent's part of a joint action. In a run of a program the agent may have answered several calls."""
    responses, index = node["responses"][agent], node["joint_actions"][action]["indices"][agent]
    callers = node.get("callers")
    own = [index] if callers is None else [g for g, caller in enumerate(callers[agent]) if caller == action]
    previous = None
    if path:
        parent = nodes[path[:-1]]
        previous = parent["responses"][agent][parent["joint_actions"][path[-1]]["indices"][agent]]
    return {
        "earlier_calls": [
            {"prompt": describe_prompt(recorded_prompt(node, agent, g)), "response": responses[g]} for g in own[:-1]
        ],
        "prompt": describe_prompt(recorded_prompt(node, agent, index)),
        "response": responses[index],
        "previous_response": previous,
        "difference": [] if previous is None else list(_difference(previous, responses[index])),
        "other_responses": [response for g, response in enumerate(responses) if g not in own],
    }


def _difference(before: str, after: str) -> Iterator[tuple[str | None, str | None, bool]]:
    """Yield (line before, line after, equal) of a comparison side by side; None where a side has no line."""
    old, new = before.splitlines(), after.splitlines()
    for kind, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for left, right in itertools.zip_longest(old[i:j], new[k:m]):
            yield left, right, kind == "equal"


def _action_table(node: NodeRecord) -> dict[str, Any] | None:
    """Return all joint actions of a node with rewards and levels; None for a single action without levels."""
    actions: Sequence[Mapping[str, Any]] = node["joint_actions"]
    if len(actions) == 1 and not actions[0]["levels"]:
        return None
    levels = list(dict.fromkeys(name for action in actions for name in action["levels"]))
    own_rewards = any("rewards" in action for action in actions)
    rows = []
    for index, action in enumerate(actions):
        cells = [f"{index}{' (expanded)' if index in node['expanded'] else ''}", " ".join(map(str, action["indices"]))]
        cells.append(format_number(action["reward"]))
        if own_rewards:
            cells.append(" ".join(map(format_number, action.get("rewards", ()))))
        cells += [format_number(action["levels"][name]) if name in action["levels"] else "" for name in levels]
        rows.append(cells)
    header = ["joint action", "responses", "reward", *(["rewards of the agents"] if own_rewards else ()), *levels]
    return {"header": header, "rows": rows}
