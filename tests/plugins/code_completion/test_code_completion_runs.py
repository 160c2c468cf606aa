"""Two training steps on class completion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.helpers import QUICK, rows, train

pytestmark = pytest.mark.slow

SMALL = ["magrpo.rollout_buffer_size=2", "magrpo.num_generations=8", "magrpo.max_steps=2", "magrpo.max_new_tokens=32"]
TESTS = """\
import unittest


class TestAux(unittest.TestCase):
    def test_aux(self):
        self.assertEqual(Number.aux(1), {one})

    def test_more(self):
        self.assertEqual(Number.aux(7), {two})


class TestGrow(unittest.TestCase):
    def test_grow(self):
        self.assertEqual(Number.grow(1), {grown})
"""


def make_class(number: int) -> dict[str, Any]:
    """Return a row with the required fields of ClassEval. The tiny policy may well write `aux`."""
    skeleton = f'''\
class Number:
    """A number."""

    @staticmethod
    def aux(n):
        """Add {number} to n."""

    @staticmethod
    def grow(n, by=2):
        """Add {number} to n, then multiply by 2."""
'''
    tests = TESTS.format(one=number + 1, two=number + 7, grown=2 * (number + 1))
    return {"task_id": f"Number_{number}", "class_name": "Number", "skeleton": skeleton, "test": tests}


def test_two_agents_complete_classes_for_two_steps(tmp_path: Path) -> None:
    data = tmp_path / "classeval.jsonl"
    data.write_text("\n".join(json.dumps(make_class(number)) for number in range(3, 11)))
    settings = [f"dataset.name={data}", "dataset.type=classeval", "dataset.train_split=test", "dataset.eval_split=null"]
    settings += ["code_completion.strategy=balanced", "external.sandbox_slice=all", "output.save_final_model=false"]
    result = train(*QUICK, *SMALL, *settings, f"output.base_dir={tmp_path}", "output.run_name=r")
    assert result.returncode == 0, result.stderr
    first, second = rows(tmp_path / "r", "step")
    assert {"turn_1/methods_valid", "turn_2/level/tests", "turn_1/overlap"} <= set(first)
    assert max(row["turn_1/methods_valid"] for row in (first, second)) > 0
    assert second["agent_1/weight_version"] == 2
    episodes = [json.loads(line) for line in (tmp_path / "r" / "episodes.jsonl").read_text().splitlines()]
    one, two = episodes[0]["nodes"]
    assert "Complete the class `Number`: write the method `aux`." in one["prompts"][1 - ("grow`." in one["prompts"][1])]
    assert "Revise the method" in two["prompts"][0]
    assert any(line.startswith("tests: ") for line in two["prompts"][0].splitlines())
    assert one["joint_actions"][0]["report"]["total"] == 3
