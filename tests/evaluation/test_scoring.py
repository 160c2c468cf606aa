"""`marl-ray score`: the scores of given completions, and the files that are rejected."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marl_ray.cli.main import main
from marl_ray.data.loading import load_tasks
from tests.evaluation.solution_splits import good_split
from tests.sandbox import datasets

PROMPT = 'def f(x):\n    """Add 2."""\n'
TASKS = [
    {"task_id": f"t/{n}", "prompt": PROMPT, "entry_point": "f", "test_list": ["assert f(1) == 3", "assert f(2) == 4"]}
    for n in range(3)
]
AUX, MAIN = "def aux(x):\n    return x + 1", "def f(x):\n    return aux(x) + 1"
NO_AUX = {"main": 0.6, "syntax": 0.5, "tests": 1.0, "aux": 0, "aux_called": 0, "not_thin": 0, "misused": 0}
STATIC = ("--override", "code_generation.helper_reward=static")
"""The rule by text: the splits of these solutions move any expression, even a single name, into a helper."""
Score = Callable[..., list[dict[str, Any]]]


def line(task: str, *completions: str, **more: Any) -> dict[str, Any]:
    return {"task_id": task, "completions": list(completions), **more}


def written(path: Path, rows: list[Any]) -> str:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return str(path)


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., list[str]]:
    """Return the arguments of the command for given lines."""

    def made(rows: list[Any], *arguments: str, kind: str = "humaneval", dataset: str = "") -> list[str]:
        dataset = dataset or written(tmp_path / "tasks.jsonl", TASKS)
        files = ["--dataset", dataset, "--completions", written(tmp_path / "given.jsonl", rows)]
        return ["score", "--type", kind, *files, *arguments]

    return made


@pytest.fixture
def score(command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> Score:
    """Return the lines that the command prints."""

    def scored(*arguments: Any, **settings: Any) -> list[dict[str, Any]]:
        assert main(command(*arguments, **settings)) == 0
        return [json.loads(printed) for printed in capsys.readouterr().out.splitlines()]

    return scored


def levels(found: dict[str, Any]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in found["levels"].items()}


def test_a_score_has_reward_levels_metrics_and_report(score: Score) -> None:
    alone, both, three = score(
        [
            line("t/1", "def f(x):\n    return x + 2", turn=2),
            line("t/0", AUX, MAIN),
            line("t/0", AUX.replace("aux", "aux_1"), "", MAIN.replace("aux", "aux_1")),
        ]
    )
    assert list(alone) == ["task_id", "turn", "reward", "levels", "metrics", "report"]
    assert (alone["task_id"], alone["turn"], alone["reward"]) == ("t/1", 2, pytest.approx(2.1))
    assert alone["levels"] == {"main": 0.6, "syntax": 0.5, "tests": 1.0}
    assert both["reward"] == 4.0
    assert "turn" not in both
    assert [test["status"] for test in both["report"]["tests"]] == ["pass", "pass"]
    assert levels(three) == {**levels(both), "aux": 0.2, "aux_called": 0.25, "not_thin": 0.5}


def test_a_program_of_another_system_is_run_as_it_is(score: Score) -> None:
    program = f"STEP = 1\n\n{AUX}\n\n{MAIN.replace('+ 1', '+ STEP')}\n"
    rows = [{"task_id": "t/0", "program": text} for text in (program, MAIN, "def f(x:\n")]
    passing, unfinished, broken, completion = score([*rows, line("t/0", program)])
    assert [one["reward"] for one in (passing, unfinished, broken)] == [1.0, 0.0, 0.0]
    assert passing["metrics"] == {"syntax_ok": 1.0, "tests_passed_rate": 1.0, "all_passed": 1.0}
    assert unfinished["report"]["tests"][0]["error_type"] == "NameError"
    assert broken["metrics"]["syntax_ok"] == 0.0
    assert completion["metrics"]["all_passed"] == 0.0, "a completion contributes the function only"


@pytest.mark.plugins("tags")
def test_a_program_needs_tests_and_gets_no_feedback(
    command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"task_id": "tags/mail-7", "program": "x"}
    assert main(command([row], "--split", "eval", kind="tags", dataset="bundled:tags")) == 1
    assert capsys.readouterr().err.count("has no tests of whole programs") == 1
    assert main(command([row | {"task_id": "t/0"}], "--feedback", "plain")) == 1
    assert "a whole program gets no feedback: leave out --feedback" in capsys.readouterr().err


def test_scores_are_in_the_order_of_the_lines(score: Score) -> None:
    endless = line("t/0", "def f(x):\n    while True:\n        x += 1\n    return x")
    rows = [endless, *(line("t/1", f"def f(x):\n    return x + {n}") for n in range(4))]
    settings = ["--workers", "2", "--override", "sandbox.test_timeout_s=0.3", "sandbox.max_timeouts=1"]
    found = score(rows, *settings)
    assert [round(one["reward"], 6) for one in found] == [1.1, 1.1, 1.1, 2.1, 1.1]
    assert [test["status"] for test in found[0]["report"]["tests"]] == ["timeout", "skipped"]


def test_a_feedback_mode_adds_the_prompts_of_the_next_turn(score: Score) -> None:
    wrong = line("t/0", AUX, "def f(x):\n    return x")
    (found,) = score([wrong], "--feedback", "level_feedback", "--override", "external.sandbox_slice=-1")
    aux, main_prompt = found["prompts"]
    assert "Your previous answer:\ndef aux(x):\n    return x + 1\n" in aux
    assert "tests: 0 of 1 passed\nfailed: assert f(2) == 4 -> AssertionError" in aux
    assert "aux use: aux not called" in main_prompt
    assert "aux use" not in aux
    (plain,) = score([wrong], "--feedback", "plain", "--override", "external.original_prompt=true")
    assert all(prompt.startswith('def f(x):\n    """Add 2."""') for prompt in plain["prompts"])
    assert not any("Feedback" in prompt for prompt in plain["prompts"])
    assert plain["reward"] == found["reward"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: not a JSON object"),
        ({"completions": [""]}, "line 2: task_id is missing"),
        ({"task_id": "t/0"}, "line 2: a row has either completions or a program"),
        (line("t/0", "", program=""), "line 2: a row has either completions or a program"),
        ({"task_id": "t/0", "program": 7}, "line 2: program should be a text"),
        (line("t/0", "", trun=1), "line 2: unknown key 'trun': did you mean turn?"),
        (
            {"task_id": "t/0", "language": ""},
            "line 2: unknown key 'language': a row has task_id, completions or program, and optionally turn",
        ),
        (line("t/00", ""), "line 2: the dataset has no task 't/00': did you mean t/0?"),
        (line("7", ""), "line 2: the dataset has no task '7'; its first is 't/0'"),
        (line("t/0"), "line 2: completions should be a list of texts, one per agent"),
        ({"task_id": "t/0", "completions": "text"}, "line 2: completions should be a list of texts"),
        ({"task_id": "t/0", "completions": ["", None]}, "line 2: completions should be a list of texts"),
        (line("t/0", "", turn=0), "line 2: turn should be a whole number from 1, got 0"),
        (line("t/0", "", turn=True), "line 2: turn should be a whole number from 1, got True"),
    ],
)
def test_a_bad_line_is_reported_before_anything_runs(
    bad: Any, message: str, command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command([line("t/0", MAIN), bad, line("t/1", "")])) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)  # no sandbox was started
    assert message in err
    if not isinstance(bad, str):
        assert main(command([line("t/0", MAIN), bad, bad, bad])) == 1
        assert capsys.readouterr().err.endswith("(and 2 more bad lines)\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--feedback", "level_fedback"], "unknown external.mode 'level_fedback': did you mean level_feedback?"),
        (["--split", "tset"], "has no split 'tset'; its splits: test, train"),
        (["--override", "sandbox.isolation=none"], "isolation 'none' runs programs unprotected"),
        (["--override", "sandbox.memory=1"], "unknown setting 'sandbox.memory'"),
    ],
)
def test_settings_are_checked_before_anything_runs(
    arguments: list[str], message: str, command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command([line("t/0", MAIN)], *arguments)) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_unknown_types_and_unreadable_files_are_rejected(
    command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(command([line("t/0", MAIN)], kind="humanevl")) == 1
    assert "unknown dataset.type 'humanevl': did you mean humaneval?" in capsys.readouterr().err
    assert main(command([], kind="humaneval")) == 1
    assert "is empty" in capsys.readouterr().err
    missing = command([line("t/0", MAIN)])
    Path(missing[missing.index("--completions") + 1]).unlink()
    assert main(missing) == 1
    assert "cannot be read (No such file or directory)" in capsys.readouterr().err


def test_humaneval_solutions_earn_full_rewards(score: Score) -> None:
    problems = datasets.load("humaneval")[::2]
    solutions = {row["task_id"]: row["prompt"] + row["canonical_solution"] for row in problems}
    path = str(datasets.DATA / "humaneval.jsonl")
    split = [good_split(task, solutions[task.id]) for task in load_tasks(path, "test")[::2]]
    assert None not in split
    rows = [line(name, "", text) for name, text in solutions.items()]
    rows += [line(name, *texts) for name, texts in zip(solutions, split, strict=True) if texts]
    found = score(rows, *STATIC, dataset=path)
    assert [one["task_id"] for one in found[: len(solutions)] if levels(one) != NO_AUX] == []
    assert [one["task_id"] for one in found[len(solutions) :] if one["reward"] != 4.0] == []


@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
def test_mbpp_solutions_of_one_function_earn_full_rewards(score: Score) -> None:
    path = str(datasets.DATA / "mbpp.jsonl")
    rows: list[dict[str, Any]] = []
    for row, task in zip(datasets.load("mbpp")[:40], load_tasks(path, "test[:40]"), strict=True):
        code = row["code"].replace("\r\n", "\n")
        if sum(not isinstance(node, ast.Import | ast.ImportFrom) for node in ast.parse(code).body) == 1:
            split = good_split(task, code)
            assert split is not None
            rows += [line(row["task_id"], "", code), line(task.id, *split)]
    assert len(rows) > 60
    found = score(rows, "--split", "test[:40]", *STATIC, kind="mbpp", dataset=path)
    assert all(one["task_id"].startswith("MBPP/") for one in found)
    assert [levels(one) for one in found[0::2]] == [NO_AUX] * (len(rows) // 2)
    assert {one["reward"] for one in found[1::2]} == {4.0}


@pytest.mark.plugins("bug_fix")
def test_a_task_that_the_environment_rejects_is_reported_before_anything_runs(
    command: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = TASKS[0] | {"task_id": "one", "buggy_solution": "def f(x):\n    return x\n"}
    dataset = written(tmp_path / "bugs.jsonl", [row | {"canonical_solution": "def f(x):\n    return x + 2\n"}])
    assert main(command([line("one", "d", "p", "q")], kind="bug_fix", dataset=dataset)) == 1
    assert "task one has 1 function for 2 patchers" in capsys.readouterr().err


@pytest.mark.plugins("solver_tester")
def test_solver_and_test_writer(score: Score) -> None:
    given = line("toy/000", "assert stretch(1) == 9\nassert stretch(2) == 17", "def stretch(x):\n    return 9 * x")
    (found,) = score([given], "--split", "train", "--feedback", "passed", kind="solver_tester", dataset="bundled:toy")
    assert found["levels"] == pytest.approx({"solution": 0.5, "tests": 0.25, "valid": 0.5 / 3, "found": 0.0})
    assert found["written"] == [
        [
            {"test": "assert stretch(1) == 9", "valid": True, "solution": "pass"},
            {"test": "assert stretch(2) == 17", "valid": False, "solution": "fail"},
        ]
    ]
    assert [round(own, 6) for own in found["rewards"]] == [0.166667, 0.75]
    assert "Revise your three tests" in found["prompts"][0]


@pytest.mark.plugins("contests")
def test_programs_that_read_standard_input(score: Score, tmp_path: Path) -> None:
    tests = json.dumps({"inputs": ["1 2", "3 4"], "outputs": ["3.0", "7"]})
    dataset = written(tmp_path / "apps.jsonl", [{"problem_id": 1, "question": "Add.", "input_output": tests}])
    helper = "def aux(a, b):\n    return int(a) + int(b)"
    good = line("APPS/1", helper, "def main():\n    print(aux(*input().split()) + 0.0)")
    found, half = score([good, line("APPS/1", "def main():\n    print(3)")], kind="apps", dataset=dataset)
    assert found["reward"] == 2.5 + 0.5, "an unused addition is no use of the helper"
    assert levels(half) == {"main": 0.6, "syntax": 0.5, "tests": 0.5}
    assert half["report"]["tests"][1]["message"] == "line 1: got '3', expected '7'"
