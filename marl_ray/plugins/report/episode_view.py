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
    by_turn: dict[int, list[float]] = {}
    for node in record["nodes"]:
        rewards = by_turn.setdefault(node["turn"], [])
        rewards += [action["reward"] for action in node["joint_actions"]]
    if not by_turn:
        return None
    return statistics.fmean(by_turn[max(by_turn)])


def select_episodes(records: Iterable[EpisodeRecord], count: int) -> tuple[list[SelectedEpisode], int]:
    """Return the `count` best, worst and last episodes each, in file order, and the number of all records.

    Of equal rewards the later episode is selected. Without a choice, because there are at most `count` episodes, there
    are no reasons. Keeps at most `3 * count` records in memory.
    """
    heaps: dict[str, list[tuple[float, int, SelectedEpisode]]] = {"best": [], "worst": [], "last": []}
    total = 0
    scored = 0
    for total, record in enumerate(records, start=1):
        reward = last_turn_reward(record)
        if reward is None:
            continue
        scored += 1
        episode = SelectedEpisode([], reward, record)
        ranks = {"best": reward, "worst": -reward, "last": 0.0}
        for reason, rank in ranks.items():
            heap = heaps[reason]
            # Of equal ranks, the heap drops the earlier episode first.
            heapq.heappush(heap, (rank, total, episode))
            if len(heap) > count:
                heapq.heappop(heap)
    selected: dict[int, SelectedEpisode] = {}
    for reason, heap in heaps.items():
        for _, number, episode in heap:
            selected.setdefault(number, episode)
            # Where all episodes are shown, none is the best ten.
            if scored > len(heap):
                selected[number].reasons.append(reason)
    return [episode for _, episode in sorted(selected.items())], total


def episode_view(episode: SelectedEpisode) -> dict[str, Any]:
    """Return the variables of the episode template."""
    record = episode.record
    nodes = {tuple(node["path"]): node for node in record["nodes"]}
    # Nodes of a chain have paths of different lengths.
    is_chain = len(nodes) == len(set(map(len, nodes)))
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
    where = "at the first turn"
    if stop["path"]:
        where = f"after joint actions {' '.join(map(str, stop['path']))}"
    text = f"ended {where}: {stop['reason'].replace('_', ' ')}"
    if stop.get("detail"):
        text += f": {stop['detail']}"
    return text


def _tree_lines(nodes: Mapping[NodePath, NodeRecord]) -> Iterator[str]:
    """Yield a line per node with the rewards of its joint actions; `*` marks expanded joint actions."""
    for path, node in sorted(nodes.items()):
        line = f"{'  ' * len(path)}turn {node['turn']}"
        if path:
            line += f", after {path[-1]}"
        line += ":"
        for index, action in enumerate(node["joint_actions"]):
            mark = "*" if index in node["expanded"] else ""
            line += f" {mark}{format_number(action['reward'])}"
        yield line


def _node_view(path: NodePath, node: NodeRecord, nodes: Mapping[NodePath, NodeRecord]) -> dict[str, Any]:
    """Return a turn with one of its joint actions in full: the first expanded one, else the best."""
    actions = node["joint_actions"]
    if node["expanded"]:
        index = node["expanded"][0]
    else:
        rewards = [action["reward"] for action in actions]
        index = rewards.index(max(rewards))
    action = actions[index]
    title = f"Turn {node['turn']}"
    if path:
        title += f" after joint action {path[-1]} of turn {node['turn'] - 1}"
    evidence = {key: value for key, value in action.items() if key not in STANDARD_KEYS}
    agents = []
    for agent in range(len(node["prompts"])):
        before = None
        if path:
            before = _response(nodes[path[:-1]], agent, path[-1])
        agents.append(_agent_view(agent, node, index, before))
    return {
        "title": f"{title}: joint action {index}, reward {format_number(action['reward'])}",
        "agents": agents,
        "report": action.get("report"),
        "evidence": json.dumps(evidence, ensure_ascii=False, indent=1) if evidence else None,
        "actions": _action_table(node),
        "action_index": index,
    }


def _response(node: NodeRecord, agent: int, action: int) -> str:
    """Return an agent's response in a joint action."""
    index = node["joint_actions"][action]["indices"][agent]
    response: str = node["responses"][agent][index]
    return response


def _agent_view(agent: int, node: NodeRecord, action: int, before: str | None) -> dict[str, Any]:
    """Return an agent's part of a joint action, with its response of the turn `before`. In a run of a program the agent
    may have answered several calls."""
    index = node["joint_actions"][action]["indices"][agent]
    calls = [index]
    if "callers" in node:
        callers = node["callers"][agent]
        calls = [number for number, caller in enumerate(callers) if caller == action]
    earlier = []
    for number in calls[:-1]:  # the last call is the response
        prompt = describe_prompt(recorded_prompt(node, agent, number))
        earlier.append({"prompt": prompt, "response": node["responses"][agent][number]})
    others = []
    for number, other in enumerate(node["responses"][agent]):
        if number not in calls:
            others.append(other)
    response = _response(node, agent, action)
    return {
        "earlier_calls": earlier,
        "prompt": describe_prompt(recorded_prompt(node, agent, index)),
        "response": response,
        "previous_response": before,
        "difference": [] if before is None else list(_difference(before, response)),
        "other_responses": others,
    }


def _difference(before: str, after: str) -> Iterator[tuple[str | None, str | None, bool]]:
    """Yield (line before, line after, equal) of a comparison side by side; None where a side has no line."""
    old = before.splitlines()
    new = after.splitlines()
    # `autojunk` would ignore lines that are frequent, such as empty ones.
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for kind, i, j, k, m in matcher.get_opcodes():
        for left, right in itertools.zip_longest(old[i:j], new[k:m]):
            yield left, right, kind == "equal"


def _action_table(node: NodeRecord) -> dict[str, Any] | None:
    """Return all joint actions of a node with rewards and levels; None for a single action without levels."""
    actions: Sequence[Mapping[str, Any]] = node["joint_actions"]
    if len(actions) == 1 and not actions[0]["levels"]:
        return None
    levels: dict[str, None] = {}
    """Names in order of first appearance."""
    for action in actions:
        levels |= dict.fromkeys(action["levels"])
    header = ["joint action", "responses", "reward"]
    agents_have_rewards = any("rewards" in action for action in actions)
    if agents_have_rewards:
        header.append("rewards of the agents")
    rows = []
    for index, action in enumerate(actions):
        expanded = " (expanded)" if index in node["expanded"] else ""
        cells = [f"{index}{expanded}", " ".join(map(str, action["indices"])), format_number(action["reward"])]
        if agents_have_rewards:
            cells.append(" ".join(map(format_number, action.get("rewards", ()))))
        for name in levels:
            value = action["levels"].get(name)
            cells.append("" if value is None else format_number(value))
        rows.append(cells)
    return {"header": header + list(levels), "rows": rows}
