"""The choices between samples of the study toy-math, from the records of an evaluation."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.learning.math_studies import choices
from marl_ray.config import load, to_yaml
from tests.factories import ROOT


def test_choices_count_each_call_once(tmp_path: Path) -> None:
    config = load(ROOT / "configs" / "toy_math.yaml", "magrpo")
    (tmp_path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    # Two verifiers read the first answer, and one each other answer; the answer to this problem is 8.
    verdicts = ["Verdict: right", "Verdict: wrong", "Verdict: right", "Verdict: wrong"]
    pairs = ([0, 0], [1, 0], [2, 1], [3, 2])
    node = {
        "turn": 1,
        "responses": [verdicts, ["#### 3", "#### 8", "#### 3"]],
        "joint_actions": [{"indices": pair} for pair in pairs],
    }
    episode = {"kind": "eval", "step": 0, "task": "arithmetic/eval-0", "nodes": [node]}
    (tmp_path / "episodes.jsonl").write_text(json.dumps(episode), encoding="utf-8")
    # The second joint action is left out: its solver's answer has been counted. So 3 and 8 are accepted, and 3 wins.
    assert choices(tmp_path, 0, 1) == {
        "majority": 0.0,
        "best": 0.5,
        "choice": 0.5,
        "any": 1.0,
        "told_apart": 0.5,  # 8 is always accepted, 3 in one of two cases
        "right_0": 0.3333,  # the problem has no product
        "accepted_0": 0.6667,
    }
