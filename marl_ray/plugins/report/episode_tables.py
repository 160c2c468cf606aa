"""Records of episodes as small plain data, for a page: equal texts, test results and outcomes are stored once.

An episode refers to the tables by index:

| table | entry |
|---|---|
| `texts` | a text |
| `tests` | `[status, error, message, source]`, indices of texts or null |
| `reports` | `{passed, total, trusted, tests: [index], error, stdout}`; `error` is a syntax error |
| `outcomes` | `{reward, levels: [[text, value]], rewards, solved, report, evidence}` of a joint action, if present |

Numbers are as in the record. Times of executions and the level of the sandbox are left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from marl_ray.core.chat import describe_prompt
from marl_ray.plugins.report.episode_file import ListedEpisode
from marl_ray.telemetry.episode_records import EpisodeRecord, is_test_report, other_evidence, recorded_prompt
from marl_ray.telemetry.recorded_episode import agent_names, told_before

LONGEST_TEXT = 12_000
"""Characters of a text of which a page keeps both halves' ends; the episode's own file has the whole text."""


class EpisodeTables:
    """Tables that grow with each episode, and their size on a page. `longest` None keeps texts whole."""

    def __init__(self, longest: int | None = LONGEST_TEXT) -> None:
        self.tables: dict[str, list[Any]] = {"texts": [], "tests": [], "reports": [], "outcomes": []}
        self.size = 0
        """Bytes of the tables' entries on a page."""
        self._longest = longest
        self._places: dict[str, dict[Any, int]] = {name: {} for name in self.tables}

    def add(self, episode: ListedEpisode, record: EpisodeRecord) -> dict[str, Any]:
        """Return the data of an episode, and add its texts and outcomes to the tables."""
        stops = []
        for stop in record["stops"]:
            stops.append({**stop, "detail": self.text(stop.get("detail") or "")})
        by_path = {tuple(node["path"]): node for node in record["nodes"]}
        nodes = []
        for node in record["nodes"]:
            data = self._node(node)
            if node["path"]:
                names = agent_names(record, len(node["prompts"]))
                told = told_before(by_path[tuple(node["path"][:-1])], node, names)
                data["told"] = list(map(self.text, told.by_agent))
                data["told_all"] = self.text(told.shared)
            nodes.append(data)
        return {**episode.data(), "roles": record.get("roles"), "stops": stops, "nodes": nodes}

    def mark(self) -> tuple[int, dict[str, int]]:
        """Return the present end of the tables, for `cut`."""
        return self.size, {name: len(entries) for name, entries in self.tables.items()}

    def cut(self, mark: tuple[int, dict[str, int]]) -> None:
        """Remove all entries since `mark`."""
        self.size, ends = mark
        for name, end in ends.items():
            del self.tables[name][end:]
            places = self._places[name]
            while len(places) > end:
                places.popitem()  # dicts keep the order of insertion

    def text(self, text: str) -> int:
        """Return the index of a text."""
        if self._longest is not None and len(text) > self._longest:
            half = self._longest // 2
            left_out = len(text) - 2 * half
            text = f"{text[:half]}\n[{left_out} characters are left out here]\n{text[-half:]}"
        return self._index("texts", text, text)

    def _index(self, table: str, key: Any, entry: Any) -> int:
        places = self._places[table]
        if key not in places:
            places[key] = len(places)
            self.tables[table].append(entry)
            self.size += page_size(entry) + 1
        return places[key]

    def _node(self, node: Mapping[str, Any]) -> dict[str, Any]:
        actions = node["joint_actions"]
        agents = range(len(node["prompts"]))
        data: dict[str, Any] = {
            "turn": node["turn"],
            "path": node["path"],
            "prompts": [self.text(describe_prompt(prompt)) for prompt in node["prompts"]],
            "responses": [list(map(self.text, of_agent)) for of_agent in node["responses"]],
            "versions": node["weight_versions"],
            "outcomes": list(map(self._outcome, actions)),
            "expanded": node["expanded"],
        }
        indices = [action["indices"] for action in actions]
        if indices != aligned(len(actions), len(agents)):
            data["indices"] = indices
        if "other_prompts" in node:
            # Every response has a prompt of its own then, or shares the first one.
            own = []
            for agent in agents:
                own.append(self._own_prompts(node, agent))
            data["own_prompts"] = own
        if "callers" in node:
            data["callers"] = node["callers"]
        if "greedy" in node:
            greedy = node["greedy"]
            data["greedy"] = {**greedy, "responses": list(map(self.text, greedy["responses"]))}
        if "counterfactuals" in node:
            data["counterfactuals"] = _finite(node["counterfactuals"])
        return data

    def _own_prompts(self, node: Mapping[str, Any], agent: int) -> list[int]:
        prompts = []
        for index in range(len(node["responses"][agent])):
            prompts.append(self.text(describe_prompt(recorded_prompt(node, agent, index))))
        return prompts

    def _outcome(self, action: Mapping[str, Any]) -> int:
        levels = [[self.text(name), value] for name, value in action["levels"].items()]
        outcome: dict[str, Any] = {"reward": action["reward"], "levels": levels}
        if "rewards" in action:
            outcome["rewards"] = action["rewards"]
        if "solved" in action:
            outcome["solved"] = bool(action["solved"])
        report = action.get("report")
        if is_test_report(report):
            outcome["report"] = self._report(report)
        evidence = other_evidence(action)
        if evidence:
            outcome["evidence"] = self.text(json.dumps(evidence, ensure_ascii=False, indent=1))
        return self._index("outcomes", json.dumps(outcome), outcome)

    def _report(self, report: Mapping[str, Any]) -> int:
        tests = []
        for test in report["tests"]:
            entry: list[int | None] = []
            for key in ("status", "error_type", "message", "source"):
                fact = test.get(key)
                entry.append(None if fact is None else self.text(str(fact)))
            tests.append(self._index("tests", tuple(entry), entry))
        data = {
            "passed": report["passed"],
            "total": report["total"],
            "trusted": report.get("trusted", True),
            "tests": tests,
        }
        syntax = report.get("syntax_error")
        if syntax:
            data["error"] = self.text(f"syntax error in line {syntax.get('line')}: {syntax.get('message')}")
        if report.get("stdout"):
            data["stdout"] = self.text(report["stdout"])
        return self._index("reports", json.dumps(data), data)


def _finite(by_agent: Mapping[str, list[float]]) -> dict[str, list[float | None]]:
    """Return rewards with None in the place of NaN, the reward without a verdict."""
    rewards: dict[str, list[float | None]] = {}
    for agent, numbers in by_agent.items():
        rewards[agent] = [number if math.isfinite(number) else None for number in numbers]
    return rewards


def aligned(actions: int, agents: int) -> list[list[int]]:
    """Return the indices of joint actions that pair answer g of every agent."""
    return [[index] * agents for index in range(actions)]


def page_size(value: Any) -> int:
    """Return the bytes of a value in the data of a page."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # The page writes < as an escape of six bytes.
    return len(text.encode("utf-8", "surrogatepass")) + 5 * text.count("<")
