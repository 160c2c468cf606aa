"""Files of other evaluation programs, from a small evaluation folder."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet
import pytest

from marl_ray.cli.main import main
from marl_ray.config import to_yaml
from marl_ray.data.loading import load_tasks
from tests.factories import quickstart_config

TASKS = load_tasks("bundled:toy", "eval[:2]", "toy")
AUX = "def aux(n):\n    return 2 * n"


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    """An evaluation of one model: two episodes of two tasks, of which the second episodes pass."""
    folder = tmp_path / "evaluation"
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(quickstart_config()))
    number = {"mean": 0.5, "low": 0.25, "high": 0.75, "tasks": 2}
    weights = {"one": [{"agent": agent, "model": f"runs/one/models/agent_{agent}"} for agent in range(2)]}
    content = {"split": "eval[:2]", "tasks": 2, "samples": 2, "weights": weights, "models": {"one": {"return": number}}}
    (folder / "evaluation.json").write_text(json.dumps(content))
    with (folder / "episodes.jsonl").open("w") as file:
        for task in TASKS:
            for episode in range(2):
                main_text = f"def {task.fields['entry_point']}(n):\n    return aux(n) + {episode}"
                report = {"tests": [{"status": "pass" if episode else "fail", "source": "assert x"}]}
                action = {"indices": [0, 0], "reward": 2.0 + episode, "levels": {"main": 0.6}, "report": report}
                node = {"turn": 1, "path": [], "prompts": ["p0", "p1"], "responses": [[AUX], [main_text]]}
                row = {"model": "one", "task": task.id, "stops": [], "nodes": [node | {"joint_actions": [action]}]}
                file.write(json.dumps(row) + "\n")
    return folder


def convert(source: Path, kind: str, *more: str) -> Path:
    target = source.parent / f"out-{kind}.jsonl"
    assert main(["convert", str(source), "--to", kind, "--output", str(target), *more]) == 0
    return target


def test_evalplus_samples_are_joint_programs(evaluation: Path) -> None:
    rows = [json.loads(line) for line in convert(evaluation, "evalplus").read_text().splitlines()]
    assert [row["task_id"] for row in rows] == [TASKS[0].id, TASKS[0].id, TASKS[1].id, TASKS[1].id]
    assert rows[1]["solution"].startswith(AUX)
    assert rows[1]["solution"].rstrip().endswith("return aux(n) + 1")
    namespace: dict = {}
    exec(rows[1]["solution"], namespace)
    assert namespace[TASKS[0].fields["entry_point"]](3) == 7


def test_livecodebench_has_all_programs_of_a_task(evaluation: Path) -> None:
    rows = json.loads(convert(evaluation, "livecodebench").read_text())
    assert [(row["question_id"], len(row["code_list"])) for row in rows] == [(task.id, 2) for task in TASKS]


def test_completions_are_scored_again(evaluation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = convert(evaluation, "completions")
    capsys.readouterr()
    arguments = ["score", "--type", "toy", "--dataset", "bundled:toy", "--split", "eval", "--completions", str(target)]
    assert main(arguments) == 0
    scores = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(scores) == 4
    assert all(score["levels"]["main"] == 0.6 for score in scores)


def test_samples_of_other_programs_become_whole_programs(tmp_path: Path) -> None:
    task = TASKS[0]
    samples = tmp_path / "samples.jsonl"
    rows = [{"task_id": task.id, "solution": "x = 1"}, {"task_id": task.id, "completion": "    return 1\n"}]
    samples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    target = tmp_path / "out.jsonl"
    arguments = ["--to", "completions", "--dataset", "bundled:toy", "--split", "eval", "--output", str(target)]
    assert main(["convert", str(samples), *arguments]) == 0
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert found[0] == {"task_id": task.id, "program": "x = 1"}
    assert found[1]["program"] == task.prompt + "    return 1\n"
    lcb = tmp_path / "lcb.json"
    lcb.write_text(json.dumps([{"question_id": task.id, "code_list": ["a", "b"]}]))
    arguments[-1] = str(tmp_path / "lcb-out.jsonl")
    assert main(["convert", str(lcb), *arguments]) == 0
    programs = [json.loads(line)["program"] for line in (tmp_path / "lcb-out.jsonl").read_text().splitlines()]
    assert programs == ["a", "b"]


def test_lm_eval_results_have_standard_errors(evaluation: Path) -> None:
    content = json.loads(convert(evaluation, "lm-eval").read_text())
    values = content["results"]["toy"]
    assert values["return,none"] == 0.5
    assert values["return_stderr,none"] == pytest.approx(0.5 / (2 * 1.96), abs=1e-4)
    assert content["n-samples"] == {"toy": {"original": 2, "effective": 2}}


def test_inspect_logs_have_one_sample_per_episode(evaluation: Path) -> None:
    content = json.loads(convert(evaluation, "inspect").read_text())
    samples = content["samples"]
    assert [(sample["id"], sample["epoch"]) for sample in samples] == [(t.id, n) for t in TASKS for n in (1, 2)]
    assert [sample["scores"]["joint_program"]["value"] for sample in samples] == ["I", "C", "I", "C"]
    assert content["eval"]["config"]["epochs"] == 2


def test_episodes_become_a_table(evaluation: Path) -> None:
    rows = pyarrow.parquet.read_table(convert(evaluation, "parquet")).to_pylist()
    assert len(rows) == 8
    assert [(row["episode"], row["agent"], row["reward"]) for row in rows[:4]] == [
        (0, 0, 2.0),
        (0, 1, 2.0),
        (1, 0, 3.0),
        (1, 1, 3.0),
    ]
    assert rows[1]["response"].startswith("def ")
    assert json.loads(rows[1]["levels"]) == {"main": 0.6}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "evalplus", "--model", "two"], "the evaluation has no model 'two', only one"),
        (["--to", "lm-eval", "--output", "/nowhere/x"], "folder /nowhere does not exist"),
    ],
)
def test_mistakes_are_explained(
    evaluation: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = [] if "--output" in arguments else ["--output", str(evaluation.parent / "x")]
    assert main(["convert", str(evaluation), *arguments, *output]) == 1
    assert message in capsys.readouterr().err
