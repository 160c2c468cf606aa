"""Which of a run's episodes a page shows, and how: their tree, prompts, answers and verdicts, from episodes.jsonl."""

from __future__ import annotations

import difflib
import heapq
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.core.text import pluralize
from marl_ray.reports.markup import Child, Markup, element
from marl_ray.reports.svg_charts import number
from marl_ray.telemetry.episode_records import EpisodeRecord

NodePath = tuple[int, ...]
OF_ACTION = ("indices", "reward", "levels", "rewards", "report")
"""Keys of a joint action that are shown in their own way."""


@dataclass(frozen=True, slots=True)
class SelectedEpisode:
    """An episode that was chosen: why, its reward, and its record."""

    why: str
    reward: float
    record: EpisodeRecord


def reward_of(record: EpisodeRecord) -> float | None:
    """The mean reward of its last turn's joint actions; None where nothing was played."""
    last = max((node["turn"] for node in record["nodes"]), default=0)
    rewards = [a["reward"] for node in record["nodes"] if node["turn"] == last for a in node["joint_actions"]]
    return statistics.fmean(rewards) if rewards else None


def select_episodes(records: Iterable[EpisodeRecord], count: int) -> list[SelectedEpisode]:
    """The `count` best, worst and last of them each, in the order of the file; of equals the later ones. Keeps no
    more in memory."""
    best: list[tuple[float, int, EpisodeRecord]] = []
    worst: list[tuple[float, int, EpisodeRecord]] = []
    latest: list[tuple[float, int, EpisodeRecord]] = []
    for place, record in enumerate(records):
        reward = reward_of(record)
        if reward is None:
            continue
        for heap, rank in ((best, reward), (worst, -reward), (latest, 0.0)):
            heapq.heappush(heap, (rank, place, record))
            if len(heap) > count:
                heapq.heappop(heap)
    found: dict[int, tuple[list[str], EpisodeRecord]] = {}
    for why, heap in (("best", best), ("worst", worst), ("last", latest)):
        for _, place, record in heap:
            found.setdefault(place, ([], record))[0].append(why)
    return [SelectedEpisode(", ".join(why), reward_of(r) or 0.0, r) for _, (why, r) in sorted(found.items())]


def show(episode: SelectedEpisode) -> Markup:
    """A line that opens."""
    record = episode.record
    line = [
        element("b", record["task"]),
        f" step {record['step']} ",
        element("span", "held-out" if record["kind"] == "eval" else "training", class_="tag"),
        f" reward {number(episode.reward)} ",
        [element("span", why, class_="tag") for why in episode.why.split(", ")],
    ]
    nodes = {tuple(node["path"]): node for node in record["nodes"]}
    stops = [element("p", _stop(stop), class_="alert") for stop in record["stops"]]
    body = [_tree(nodes) if len(nodes) > len({len(path) for path in nodes}) else None]
    body += [_node(path, node, nodes) for path, node in nodes.items()]
    about = {"data_task": record["task"], "data_kind": record["kind"]}
    numbers = {"data_step": str(record["step"]), "data_reward": repr(episode.reward)}
    return element("details", element("summary", line), stops, body, class_="episode", **about, **numbers)


def _stop(stop: Mapping[str, Any]) -> str:
    where = f"after joint actions {' '.join(map(str, stop['path']))}" if stop["path"] else "at the first turn"
    detail = f": {stop['detail']}" if stop.get("detail") else ""
    return f"ended {where}: {stop['reason'].replace('_', ' ')}{detail}"


def _tree(nodes: Mapping[NodePath, Mapping[str, Any]]) -> Markup:
    """Every node in a line, of a tree that is no chain."""
    lines = []
    for path, node in sorted(nodes.items()):
        rewards = [
            f"*{number(a['reward'])}" if index in node["expanded"] else number(a["reward"])
            for index, a in enumerate(node["joint_actions"])
        ]
        start = f"{'  ' * len(path)}turn {node['turn']}" + (f", after {path[-1]}" if path else "")
        lines.append(f"{start}: {' '.join(rewards)}")
    return element("pre", "\n".join(lines), title="rewards of each node's joint actions; * was handed on")


def _node(path: NodePath, node: Mapping[str, Any], nodes: Mapping[NodePath, Mapping[str, Any]]) -> Markup:
    """A turn: its joint actions, and the one of them that was handed on, or the best."""
    actions = node["joint_actions"]
    index = node["expanded"][0] if node["expanded"] else max(range(len(actions)), key=lambda g: actions[g]["reward"])
    parent = nodes[path[:-1]] if path else None
    agents = [_agent(agent, node, actions[index], parent, path) for agent in range(len(node["prompts"]))]
    where = f" after joint action {path[-1]} of turn {node['turn'] - 1}" if path else ""
    title = f"Turn {node['turn']}{where}: joint action {index}, reward {number(actions[index]['reward'])}"
    return element(
        "section",
        element("h4", title),
        element("div", agents, class_="agents"),
        _verdict(actions[index]),
        _actions(node, index),
        class_="turn",
    )


def _agent(
    agent: int, node: Mapping[str, Any], action: Mapping[str, Any], parent: Mapping[str, Any] | None, path: NodePath
) -> Markup:
    """What one agent read and answered, and how that differs from its answer the turn before."""
    answer = _answer(node, agent, action)
    heard = element("summary", "prompt" if parent is None else "hears")
    parts: list[Child] = [
        element("h5", f"agent {agent}"),
        element("details", heard, element("pre", node["prompts"][agent])),
        element("pre", answer, class_="answer"),
    ]
    if parent is not None:
        before = _answer(parent, agent, parent["joint_actions"][path[-1]])
        parts.append(_difference(before, answer))
    others = [text for g, text in enumerate(node["responses"][agent]) if g != action["indices"][agent]]
    if others:
        shown = [element("pre", text, class_="answer") for text in others]
        parts.append(element("details", element("summary", pluralize(len(others), "other answer")), shown))
    return element("div", parts, class_="agent")


def _answer(node: Mapping[str, Any], agent: int, action: Mapping[str, Any]) -> str:
    text: str = node["responses"][agent][action["indices"][agent]]
    return text


def _difference(before: str, after: str) -> Markup:
    """Line by line."""
    if before == after:
        return element("p", "the same as in the turn before", class_="quiet")
    kinds = {"+": "added", "-": "removed", " ": None}
    lines = [
        element("span", line, class_=kinds[line[0]])
        for line in difflib.ndiff(before.splitlines(), after.splitlines())
        if line[0] in kinds
    ]
    text = [(line, "\n") for line in lines]
    return element("details", element("summary", "what has changed"), element("pre", text, class_="difference"))


def _verdict(action: Mapping[str, Any]) -> list[Markup]:
    """What the environment keeps: of code each test, of others the data as it is."""
    shown = []
    report = action.get("report")
    if report:
        shown.append(_tests(report))
    rest = {key: value for key, value in action.items() if key not in OF_ACTION}
    if rest:
        shown.append(element("pre", json.dumps(rest, ensure_ascii=False, indent=1)))
    return shown


def _tests(report: Mapping[str, Any]) -> Markup:
    if error := report.get("syntax_error"):
        return element("p", f"does not parse: line {error.get('line')}: {error.get('message')}", class_="alert")
    lines = [
        element(
            "tr",
            element("td", test["status"], class_="passed" if test["status"] == "pass" else "failed"),
            element("td", element("code", test["source"])),
            element("td", f"{test['error_type'] or ''} {test['message'] or ''}".strip()),
        )
        for test in report["tests"]
    ]
    told = f"{report['passed']} of {pluralize(report['total'], 'test')} passed"
    told += "" if report["trusted"] else ", not all to be trusted"
    return element(
        "details", element("summary", told), element("table", lines), open=report["passed"] != report["total"]
    )


def _actions(node: Mapping[str, Any], index: int) -> Markup | None:
    """All joint actions of a node with their rewards and levels."""
    actions: Sequence[Mapping[str, Any]] = node["joint_actions"]
    if len(actions) == 1 and not actions[0]["levels"]:
        return None
    levels = list(dict.fromkeys(name for action in actions for name in action["levels"]))
    own = any("rewards" in action for action in actions)
    names = ["joint action", "answers", "reward", *(["agents' own"] if own else ()), *levels]
    lines = [element("tr", [element("th", name) for name in names])]
    for g, action in enumerate(actions):
        cells = [f"{g}{' (handed on)' if g in node['expanded'] else ''}", " ".join(map(str, action["indices"]))]
        cells.append(number(action["reward"]))
        if own:
            cells.append(" ".join(map(number, action.get("rewards", ()))))
        cells += [number(action["levels"][name]) if name in action["levels"] else "" for name in levels]
        lines.append(element("tr", [element("td", cell) for cell in cells], class_="here" if g == index else None))
    return element("table", lines)
