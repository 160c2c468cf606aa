"""Groups by turn against groups by trajectory, and a second turn against a second first answer.

All arms end an episode after a joint answer that passes the visible test, and evaluations continue from a first answer
that is drawn. `first_visible@2` is the honest alternative to a second turn: a second first answer where the first one
fails the visible test.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from tokenizers import Tokenizer

from benchmarks.learning.measures import read_lines
from benchmarks.learning.primary import Comparison
from benchmarks.learning.studies import HELD_OUT, ONE_TURN, TOY_GATEWAY, TOY_HARD
from benchmarks.learning.study import JOINT, Arm, Study
from marl_ray.toy import HARD_TASKS_PATH, REVISING_BASE_PATH

SERVICE = Path(__file__).resolve().parent / "revising_service.py"
TRAJECTORY: Mapping[str, Any] = {"magrpo.handoff": "all", "magrpo.num_generations": "[8, 1]"}
FIRST_OF_2 = "first_visible@2"


def first_answers(run: Path, step: int, last: int) -> dict[str, float]:
    """Return `first_visible@2` of an evaluation, and the mean tokens of an agent's answer in each turn.

    An episode of a program has no answers by turn, so it has no such numbers.
    """
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    if config["environment"] == "gateway":
        return {}
    tokenizer = Tokenizer.from_file(str(REVISING_BASE_PATH / "tokenizer.json"))
    chances = []
    tokens: dict[int, list[int]] = {}
    for episode in read_lines(run / "episodes.jsonl"):
        if (episode["kind"], episode["step"]) != ("eval", step):
            continue
        for node in episode["nodes"]:
            if node["turn"] == 1:
                chances += _chances(node["joint_actions"])
            for texts in node["responses"]:
                for text in texts:
                    tokens.setdefault(node["turn"], []).append(len(tokenizer.encode(text).ids) + 1)  # the end token
    found = {FIRST_OF_2: round(fmean(chances), 4)}
    for turn, lengths in tokens.items():
        found[f"tokens_{turn}"] = round(fmean(lengths), 2)
    return found


def _chances(actions: list[dict[str, Any]]) -> list[float]:
    """Return for each first joint answer the probability that it passes or, if it fails the visible test, one of the
    others of the task."""
    passes = [action["levels"]["tests"] == 1.0 for action in actions]
    chances = []
    for action, own in zip(actions, passes, strict=True):
        tests = action["report"]["tests"]
        visible = bool(tests) and tests[0]["status"] == "pass"
        chances.append(float(own) if visible else (sum(passes) - own) / (len(actions) - 1))
    return chances


SECOND_TURN = Study(
    name="toy-second-turn",
    config=TOY_HARD.config,
    common={
        "model.name": "bundled:toy-revising-base",
        "magrpo.num_train_epochs": 100,
        "magrpo.max_steps": 40,
        "external.stop": "visible",
        **HELD_OUT,
    },
    groups={
        "groups": {
            JOINT: Arm("by turn: handoff random", {}),
            "best": Arm("by turn: handoff best", {"magrpo.handoff": "best"}),
            "trajectory": Arm("by trajectory: [8, 1], handoff all", TRAJECTORY),
            "program": Arm(
                "by trajectory: a program behind the gateway",
                {
                    **TOY_GATEWAY.arms["service"].overrides,
                    "gateway.command": "python -m benchmarks.learning.revising_service 64",
                    "gateway.task_fields": "[entry_point, tests]",
                    "magrpo.num_turns": 1,
                    "external.stop": "never",
                },
            ),
            "one_turn": Arm("one turn, twice the tasks", {**ONE_TURN, "external.stop": "never"}),
        },
        "last turn by difference": {
            "difference": Arm(
                "[8, 1], handoff all, difference",
                {
                    **TRAJECTORY,
                    "magrpo.estimator": "difference",
                    # Turn 2 has eight groups of one answer per task, turn 1 one group of eight.
                    "magrpo.turn_gradient_weights": "[1, 0.125]",
                },
            ),
        },
    },
    files=(HARD_TASKS_PATH, REVISING_BASE_PATH / "model.safetensors", SERVICE),
    columns={
        "reward": "reward",
        "first_passed": "passed in turn 1",
        FIRST_OF_2: "of two first answers, by the visible test",
        "passed": "passed at the end",
        "fix_rate": "mended",
        "tokens_1": "tokens of a first answer",
        "tokens_2": "of a revision",
    },
    compared=("passed",),
    drawn=TOY_HARD.drawn,
    extra_metrics=first_answers,
    in_process=True,
)
COMPARISONS = (
    Comparison("random: turn 2, less two first answers", JOINT, JOINT, other_metric=FIRST_OF_2),
    Comparison("random: turn 2, less two answers of one turn", JOINT, "one_turn", other_metric=FIRST_OF_2),
    Comparison("[8, 1] with all, less random", "trajectory", JOINT),
    Comparison("best, less random", "best", JOINT),
    Comparison("program behind the gateway, less random", "program", JOINT),
)
"""Share of programs that pass all tests at the end (study `toy-second-turn`)."""
