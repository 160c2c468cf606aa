"""The results of one run on held-out texts, from the files of its run folder."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any

import yaml

from benchmarks.learning.measures import read_lines
from marl_ray.core.episode import Task
from marl_ray.core.statistics import half_width
from marl_ray.data.loading import load_tasks
from marl_ray.plugins.tags.environment import Tagging
from marl_ray.plugins.tags.words import split_words

Played = tuple[Task, Sequence[Sequence[str]]]
"""A text with the answers of all agents, [N][G]."""


def measure(run: Path) -> dict[str, Any]:
    """Return the results of a run as plain data.

    | key | value |
    |---|---|
    | `evaluations` | per evaluation on held-out texts: `step`, `tokens` sampled so far, and the numbers of `measured` |
    | `curve` | the same per training step, on the step's texts |
    | `answer_tokens` | mean tokens per answer over the last five steps |
    | `entropy` | per agent: mean entropy in nats per token over the last five steps |
    | `seconds` | duration of all training steps |
    """
    rule = reading_rule(run)
    rows = read_lines(run / "metrics.jsonl")
    steps = [row for row in rows if "turn_1/reward_mean" in row]
    last = steps[-5:]
    spent = {0: 0}
    for row in steps:
        spent[row["step"]] = spent[row["step"] - 1] + row["rollout/tokens"]
    by_kind: dict[str, list[dict[str, float]]] = {}
    for kind, by_step in played_texts(run).items():
        by_kind[kind] = []
        for step, played in sorted(by_step.items()):
            by_kind[kind].append({"step": step, "tokens": spent[step]} | measured(played, rule))
    return {
        "evaluations": by_kind["eval"],
        "curve": by_kind["train"],
        "answer_tokens": round(fmean(row["rollout/completion_tokens_mean"] for row in last), 2),
        "entropy": [
            round(fmean(row[key] for row in last), 2)
            for key in ("agent_0/entropy", "agent_1/entropy")
            if key in last[-1]
        ],
        "seconds": round(sum(row["time/step"] for row in steps)),
    }


def reading_rule(run: Path) -> dict[str, Any]:
    """Return the section `tags` of a run: the arguments of `Tagging`. Runs of earlier versions have none."""
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    rule: dict[str, Any] = config.get("tags", {})
    return rule


def played_texts(run: Path) -> dict[str, dict[int, list[Played]]]:
    """Return the texts of a run with the agents' answers, by kind (`train`, `eval`) and step."""
    tasks = {task.id: task for task in load_tasks("bundled:tags", "train+eval")}
    episodes: dict[str, dict[int, list[Played]]] = {"train": {}, "eval": {}}
    for episode in read_lines(run / "episodes.jsonl"):
        (node,) = episode["nodes"]
        played = (tasks[episode["task"]], node["responses"])
        episodes[episode["kind"]].setdefault(episode["step"], []).append(played)
    return episodes


def measured(played: Sequence[Played], rule: Mapping[str, Any] = MappingProxyType({})) -> dict[str, float]:
    """Return the metrics of one evaluation or training step. `rule` has the arguments of `Tagging`.

    The agents answer independently of each other, so every combination of their answers is a joint action:

    | metric | meaning |
    |---|---|
    | `partners` | different words of one answer of each agent, mean over all combinations |
    | `twice_i` | different words of two answers of agent i, mean over all pairs of its answers |
    | `twice` | mean of `twice_i` over agents |
    | `gain`, `gain_half` | `partners` less `twice`, and half of its 95 % interval over texts (normal approximation) |
    | `shared` | words that two partners both name |
    | `position_i` | mean relative position, 0 to 1, of agent i's valid words; answers without one are left out |
    | `copied` | share of answers, of all agents, whose words stand side by side in the text |

    A single agent has no `gain` and `shared`. Its two answers may have more words than it was asked for.
    """
    agents = len(played[0][1])
    team = Tagging(agents, **rule)
    pair = Tagging(2, **{**rule, "words": team.words_per_agent})
    found: dict[str, list[float]] = {}

    def add(name: str, values: Iterable[float]) -> float:
        mean = fmean(values)
        found.setdefault(name, []).append(mean)
        return mean

    for task, answers in played:
        outcomes = [_metrics(team, task, joint) for joint in itertools.product(*answers)]
        partners = add("partners", (one["different_words"] for one in outcomes))
        twice = []
        for agent, own in enumerate(answers, 1):
            if pairs := list(itertools.combinations(own, 2)):
                unions = (_metrics(pair, task, two)["different_words"] for two in pairs)
                twice.append(add(f"twice_{agent}", unions))
        if twice:
            add("twice", twice)
        if agents == 2:
            add("gain", [partners - fmean(twice)])
            add("shared", (one["shared_words"] for one in outcomes))
        for agent in range(agents):
            attempts = [team.attempt(task, [text] * agents, last=True) for text in answers[agent]]
            named = [split_words(" ".join(attempt.named[agent])) for attempt in attempts]
            add("copied", (float(side_by_side(task.prompt, words)) for words in named))
            if places := [attempt.positions[agent] for attempt in attempts if attempt.valid[agent]]:
                add(f"position_{agent + 1}", places)
    metrics = {name: round(fmean(values), 4) for name, values in found.items()}
    for name in ("partners", "gain"):
        if len(found.get(name, ())) > 1:
            metrics[f"{name}_half"] = round(half_width(stdev(found[name]), len(found[name])), 4)
    return metrics


def side_by_side(text: str, named: Sequence[str]) -> bool:
    """Return whether a text contains two or more named words in this order without others between them.

    Example:
        >>> side_by_side("The ferry leaves at noon.", ["ferry", "leaves", "at"])
        True
    """
    words, count = split_words(text), len(named)
    return count > 1 and any(words[at : at + count] == list(named) for at in range(len(words) - count + 1))


def _metrics(environment: Tagging, task: Task, answers: Sequence[str]) -> Mapping[str, float]:
    return environment.outcome(environment.attempt(task, answers, last=True), None).metrics
