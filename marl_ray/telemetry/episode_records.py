"""Episodes as plain data, one JSON object per line of `episodes.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import starmap
from typing import Any, TypeGuard

from marl_ray.core.chat import Prompt
from marl_ray.core.episode import Episode, JointAction, Node

EpisodeRecord = dict[str, Any]

ACTION_KEYS = ("indices", "reward", "levels", "rewards", "report", "solved")
"""Keys of a joint action that every environment may have; all others are the evidence of one environment."""


def episode_record(episode: Episode) -> EpisodeRecord:
    """Return an episode as plain data."""
    stops = []
    for stop in episode.stops:
        record: dict[str, Any] = {"path": list(stop.path), "reason": stop.reason}
        if stop.detail:
            record["detail"] = stop.detail
        stops.append(record)
    nodes = list(starmap(_node, episode.nodes()))
    roles = {"roles": list(episode.roles)} if episode.roles else {}
    return {"task": episode.task.id, **roles, "stops": stops, "nodes": nodes}


def recorded_prompt(node: Mapping[str, Any], agent: int, index: int) -> Prompt:
    """Return the prompt of an agent's completion in a node of `episode_record`: of a later role on another branch than
    the followed one, and of a program's call, its own one."""
    others = node.get("other_prompts") or [()] * len(node["prompts"])
    first_other = len(node["responses"][agent]) - len(others[agent])
    prompt: Prompt = node["prompts"][agent] if index < first_other else others[agent][index - first_other]
    return prompt


def passed_of_total(report: Any) -> tuple[int, int] | None:
    """Return the passed tests and all tests of evidence named `report`; None if it is no report on tests: the evidence
    of a plug-in may call anything a report."""
    if not isinstance(report, Mapping):
        return None
    passed = report.get("passed")
    total = report.get("total")
    if not isinstance(passed, int) or not isinstance(total, int):
        return None
    return passed, total


def is_test_report(report: Any) -> TypeGuard[Mapping[str, Any]]:
    """Return whether evidence named `report` is the sandbox's, with an entry per test."""
    if passed_of_total(report) is None or not isinstance(report.get("tests"), list):
        return False
    return all(isinstance(test, Mapping) for test in report["tests"])


def is_solved(action: Mapping[str, Any]) -> bool | None:
    """Return whether a recorded joint action solved its task; None if its environment does not tell."""
    if "solved" in action:
        return bool(action["solved"])
    counts = passed_of_total(action.get("report"))
    if counts is None:
        return None
    passed, total = counts
    return passed == total > 0


def other_evidence(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return the evidence of a recorded joint action, beside its reward, levels and tests."""
    evidence = {key: value for key, value in action.items() if key not in ACTION_KEYS}
    report = action.get("report")
    if report is not None and not is_test_report(report):
        evidence["report"] = report
    return evidence


def _node(path: Sequence[int], node: Node) -> dict[str, Any]:
    responses = []
    weight_versions = []
    other_prompts = []
    callers = []
    """Calls of a program: the joint action of each."""
    for calls in node.calls:
        texts = []
        versions = set()
        prompts = []
        siblings = []
        for call in calls:
            texts.append(call.completion.text)
            versions.add(call.completion.weight_version)
            if call.branch:
                prompts.append(call.prompt)
                if call.sibling is not None:
                    siblings.append(call.sibling)
        responses.append(texts)
        weight_versions.append(sorted(versions))
        other_prompts.append(prompts)
        callers.append(siblings)
    record: dict[str, Any] = {
        "turn": node.turn + 1,
        "path": list(path),
        "prompts": node.prompts,
        "responses": responses,
        "weight_versions": weight_versions,
        "joint_actions": list(map(_joint_action, node.joint_actions)),
        # Joint actions whose next prompt was too long are expanded too.
        "expanded": sorted({*node.children, *node.transitions}),
    }
    if any(other_prompts):
        record["other_prompts"] = other_prompts
    if any(callers):
        record["callers"] = callers
    if node.replays:
        record["replays"] = list(map(asdict, node.replays))
    if node.greedy is not None:
        texts = [completion.text for completion in node.greedy.completions]
        record["greedy"] = {"responses": texts, "reward": node.greedy.reward}
    if node.counterfactuals:
        # JSON has no keys that are numbers.
        by_agent = sorted(node.counterfactuals.items())
        record["counterfactuals"] = {str(agent): rewards for agent, rewards in by_agent}
    return record


def _joint_action(action: JointAction) -> dict[str, Any]:
    outcome = action.outcome
    data: dict[str, Any] = {"indices": list(action.indices), "reward": action.reward, "levels": dict(outcome.levels)}
    if any(reward != action.reward for reward in action.rewards):
        data["rewards"] = list(action.rewards)
    if action.latency:
        data["latency"] = -action.latency  # a part of the return beside the reward
    if outcome.evidence is not None:
        data |= outcome.evidence.data()
    if "all_passed" in outcome.metrics and is_solved(data) is None:
        data["solved"] = outcome.metrics["all_passed"] == 1  # no tests in the record say so
    return data
