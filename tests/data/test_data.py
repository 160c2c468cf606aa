"""Loading datasets by name and split, and the errors of invalid ones."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from marl_ray.core.errors import UserError
from marl_ray.data import infer_type
from marl_ray.data.loading import load_tasks, read_jsonl

SHARED = Path(__file__).parents[3] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is not there")


def row(number: int, **changes: Any) -> dict[str, Any]:
    fields = {
        "task_id": f"t/{number}",
        "prompt": f"def f(x):\n    '''Add {number}.'''\n",
        "entry_point": "f",
        "test": f"def check(candidate):\n    assert candidate(1) == {number + 1}\n",
    }
    return {**fields, **changes}


def written(path: Path, rows: list[Any]) -> str:
    path.write_text("\n".join(json.dumps(item) for item in rows) + "\n\n")
    return str(path)


@pytest.fixture
def twenty(tmp_path: Path) -> str:
    return written(tmp_path / "humaneval.jsonl", [row(number) for number in range(20)])


def message(name: str, split: str = "test", dataset_type: str | None = "humaneval") -> str:
    with pytest.raises(UserError) as caught:
        load_tasks(name, split, dataset_type)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("split", "ids"),
    [
        ("test", range(20)),
        ("train", range(20)),
        ("test[3:6]", range(3, 6)),
        ("test[:4]", range(4)),
        ("test[16:]", range(16, 20)),
        ("test[:]", range(20)),
        ("test[-2:]", range(18, 20)),
        ("test[:-18]", range(2)),
        ("test[:10%]", range(2)),
        ("test[90%:]", range(18, 20)),
        ("test[:2]+train[19:]", [0, 1, 19]),
    ],
)
def test_split_slices(twenty: str, split: str, ids: Any) -> None:
    assert [task.id for task in load_tasks(twenty, split)] == [f"t/{number}" for number in ids]


def test_slices_agree_with_those_of_datasets(twenty: str) -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list([row(number) for number in range(20)])
    for slice_ in ("[3:6]", "[:33%]", "[12%:58%]", "[-7:-2]"):
        read = datasets.ReadInstruction.from_spec(f"test{slice_}").to_absolute({"test": len(whole)})[0]
        ids = [f"t/{number}" for number in range(read.from_ or 0, read.to)]
        assert [task.id for task in load_tasks(twenty, f"test{slice_}")] == ids


def test_a_row_becomes_a_task(twenty: str) -> None:
    (task,) = load_tasks(twenty, "test[1:2]")
    assert (task.id, task.prompt) == ("t/1", row(1)["prompt"])
    assert task.fields == {"entry_point": "f", "tests": row(1)["test"]}


def test_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "coophumaneval.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([row(0), row(1)]), path)
    assert [task.id for task in load_tasks(str(path), "train[1:]")] == ["t/1"]
    path.write_bytes(b"nothing of the kind")
    assert "is not Parquet" in message(str(path))


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ("tset", "has no split 'tset'; its splits: test, train"),
        ("eval[:3]", "has no split 'eval'; its splits: test, train"),
        ("test[5:5]", "split 'test[5:5]' holds no rows"),
        ("test[8:3]", "split 'test[8:3]' holds no rows"),
        ("test[:21]", "split 'test[:21]' reaches beyond its 20 rows: 21 has to be within them"),
        ("test[33:163]", "split 'test[33:163]' reaches beyond its 20 rows"),
        ("test[:120%]", "reaches beyond"),
        ("test[3]", "is not of the form"),
        ("test[a:b]", "is not of the form"),
        ("", "is not of the form"),
    ],
)
def test_missing_splits_are_rejected(twenty: str, split: str, said: str) -> None:
    assert said in message(twenty, split)


def test_json_and_csv_files(tmp_path: Path) -> None:
    rows = [row(0), row(1)]
    listed, table = tmp_path / "tasks.json", tmp_path / "tasks.csv"
    listed.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    with table.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    expected = load_tasks(written(tmp_path / "tasks.jsonl", rows), "test", "humaneval")
    assert load_tasks(str(listed), "test", "humaneval") == load_tasks(str(table), "test", "humaneval") == expected


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", '{"a": 1}', "not a list of JSON objects"),
        ("a.json", "[1]", "not a list of JSON objects"),
        ("a.json", "[{", "not JSON (JSONDecodeError"),
        ("a.json", '[{"a": "\\ud800"}]', "not JSON (UnicodeEncodeError"),
        ("a.csv", "a,b\n1\n", "row 1: not as many values as the first line has names"),
        ("a.csv", "a,b\n1,2\n1,2,3\n", "row 2: not as many values as the first line has names"),
        ("a.csv", 'a\n"1" 2\n', "not CSV (Error"),
    ],
)
def test_malformed_json_and_csv_files_are_rejected(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert said in message(str(tmp_path / name))


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": "\u2028"}\r\n\n{"a": 2}', encoding="utf-8-sig")
    assert list(read_jsonl(file)) == [(1, {"a": "\u2028"}), (3, {"a": 2})]


def test_unreadable_files_are_rejected(tmp_path: Path, twenty: str) -> None:
    said = message(str(tmp_path / "humanevil.jsonl"))
    assert "humanevil.jsonl does not exist" in said
    assert said.endswith("humaneval.jsonl")
    assert message(str(tmp_path / "no" / "x.jsonl")).endswith("x.jsonl does not exist")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"task_id": 1}\n{"task_id"\n')
    assert "broken.jsonl, line 2: not JSON" in message(str(broken))
    assert "line 1: not a JSON object" in message(written(broken, [[1]]))
    broken.write_bytes(b"\xff\xfe\n")
    assert "line 1: not JSON" in message(str(broken))
    broken.write_text("")
    assert "holds no rows" in message(str(broken))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"test": ""}, "task t/1 has no tests"),
        ({"test": None}, "task t/1 has no tests"),
        ({"entry_point": None}, "task t/1 has no entry point"),
        ({"entry_point": " "}, "task t/1 has no entry point"),
        ({"entry_point": "f(x)"}, "task t/1: entry point 'f(x)' is not a function's name"),
        ({"entry_point": "class"}, "is not a function's name"),
        ({"prompt": ""}, "task t/1 has no problem text"),
        ({"test": "def check(candidate):\n    assert ("}, "task t/1: "),
        ({"test": "x = 1"}, "task t/1: "),
        ({"test": "def check(candidate):\n    pass"}, "task t/1: "),
    ],
)
def test_invalid_rows_are_rejected(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    assert said in message(written(tmp_path / "x.jsonl", [row(0), row(1, **changes)]))


def test_a_few_bad_rows_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [row(number) for number in range(40)]
    rows[3]["test"], rows[7]["test"] = "", ""
    name = written(tmp_path / "x.jsonl", rows)
    assert [task.id for task in load_tasks(name, "test[2:9]", "humaneval")] == ["t/2", "t/4", "t/5", "t/6", "t/8"]
    said = "task t/3 has no tests (field test); task t/7 has no tests (field test)"
    assert caplog.messages == [f"dataset {name}: 2 of 7 rows of 'test[2:9]' left out: {said}"]
    assert len(load_tasks(name, "test", "humaneval")) == 38, "2 of 40 rows are 5 %"
    with pytest.raises(UserError, match=r"x.jsonl: task t/3 has no tests \(field test\)$"):
        load_tasks(name, "test", "humaneval", "error")


def test_rows_with_one_id_are_numbered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = written(tmp_path / "x.jsonl", [row(0), row(1, task_id="t/0"), row(2), row(3, task_id="t/0")])
    assert [task.id for task in load_tasks(name, "test", "humaneval")] == ["t/0", "t/0#2", "t/2", "t/0#3"]
    assert caplog.messages == [
        f"dataset {name}: rows of 'test' with one id are numbered (ID#2): 3 rows t/0, the first two are 0 and 1"
    ]
    name = written(tmp_path / "y.jsonl", [row(0), row(1, task_id="t/0#2"), row(2, task_id="t/0")])
    assert [task.id for task in load_tasks(name, "test", "humaneval")] == ["t/0", "t/0#2", "t/0#3"]


def test_a_dataset_that_is_a_script_names_the_command_that_downloads_its_rows(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "rows.py").write_text("", encoding="utf-8")
    said = message(str(folder))
    assert "cannot be loaded from the hub: RuntimeError: Dataset scripts are no longer supported" in said
    assert "hf download --repo-type dataset --revision refs/convert/parquet" in said


def test_many_bad_rows_are_rejected(tmp_path: Path) -> None:
    name = written(
        tmp_path / "x.jsonl", [row(number, test="" if number < 7 else "assert f(1)") for number in range(99)]
    )
    said = message(name)
    start = (
        f"dataset {name}: 7 of 99 rows of 'test' cannot be read, more than 5% of the 99 rows of the dataset: task t/0"
    )
    assert said.startswith(start)
    assert said.endswith("task t/4 has no tests (field test); and 2 more. Correct or remove these rows")
    assert "3 of 3 rows of 'test[:3]' cannot be read: task t/0 has no tests" in message(name, "test[:3]")


def test_rows_without_an_id_are_named_by_their_index(tmp_path: Path) -> None:
    name = written(tmp_path / "x.jsonl", [row(0, task_id=None), row(1, task_id=7)])
    assert [task.id for task in load_tasks(name, "test", "humaneval")] == ["humaneval/row 0", "7"]


MBPP = {
    "task_id": 3,
    "text": "Write a function to double a number and add k.",
    "code": "def helper(x):\r\n  return 2 * x\r\ndef twice(x, k=0):\r\n  return helper(x) + k",
    "test_list": ["assert twice(helper(1)) == 4", "assert twice(2, 1) == 5"],
    "test_setup_code": "",
}


def test_mbpp_original_fields(tmp_path: Path) -> None:
    path = tmp_path / "mbpp.jsonl"
    (task,) = load_tasks(written(path, [MBPP]), "test")
    assert (task.id, task.fields["entry_point"]) == ("MBPP/3", "twice")
    assert task.prompt == ("Write a function to double a number and add k.\nThe function is `twice(x, k=0)`.\n")
    assert task.fields["tests"] == ("assert twice(helper(1)) == 4", "assert twice(2, 1) == 5")
    (task,) = load_tasks(written(path, [{**MBPP, "test_setup_code": "a = 1\r\nb = 2"}]), "test")
    assert task.fields["tests"][0] == "a = 1\nb = 2"
    sanitized = {key: value for key, value in MBPP.items() if key not in ("text", "test_setup_code")}
    sanitized |= {"prompt": MBPP["text"], "test_imports": ["import math"]}
    (task,) = load_tasks(written(path, [sanitized]), "test")
    assert task.fields["tests"][0] == "import math"
    assert task.prompt.startswith("Write a function to double")


def test_mbpp_with_the_fields_of_humaneval(tmp_path: Path) -> None:
    (task,) = load_tasks(written(tmp_path / "mbpp.jsonl", [row(4)]), "test")
    assert (task.id, task.fields["entry_point"]) == ("t/4", "f")
    listed = row(5, test=None, test_list=["assert f(1) == 6"])
    (task,) = load_tasks(written(tmp_path / "mbpp.jsonl", [listed]), "test")
    assert task.fields["tests"] == ("assert f(1) == 6",)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"test_list": []}, "task MBPP/3 has no tests"),
        ({"code": ""}, "task MBPP/3 has no entry point"),
        ({"code": "def ("}, "task MBPP/3 has no entry point"),
        ({"test_list": ["assert other(1) == 2"]}, "task MBPP/3 has no entry point"),
        ({"test_list": ["assert twice(1) == 2", "assert ("]}, "task MBPP/3: "),
        ({"text": ""}, "task MBPP/3 has no problem text"),
    ],
)
def test_invalid_mbpp_rows_are_rejected(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    assert said in message(written(tmp_path / "x.jsonl", [{**MBPP, **changes}]), dataset_type="mbpp")


BUG = {
    **row(1),
    "declaration": "from math import inf\r\n\ndef f(x):\r\n",
    "buggy_solution": "    return x\n",
    "canonical_solution": "    return x + 1\n",
    "import": "",
    "test_setup": "ONE = 1",
}


@pytest.mark.plugins("bug_fix")
def test_rows_of_buggy_programs(tmp_path: Path) -> None:
    whole = row(0, buggy_solution="\n\ndef f(x):\n    return x\n\n", canonical_solution=None)
    task, pack = load_tasks(written(tmp_path / "humanevalpack.jsonl", [whole, BUG]), "test")
    assert (task.fields["buggy"], task.fields["reference"]) == ("def f(x):\n    return x", "")
    assert pack.fields["buggy"] == "from math import inf\n\ndef f(x):\n    return x"
    assert pack.fields["reference"] == "from math import inf\n\ndef f(x):\n    return x + 1"
    assert pack.fields["tests"] == "ONE = 1\n" + row(1)["test"]
    assert (pack.id, pack.prompt, pack.fields["entry_point"]) == ("t/1", row(1)["prompt"], "f")


@pytest.mark.plugins("bug_fix")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"buggy_solution": ""}, "task t/1 has no buggy program (field buggy_solution)"),
        ({"buggy_solution": "    return ("}, "task t/1: buggy_solution does not parse"),
        ({"canonical_solution": "    return ("}, "task t/1: canonical_solution does not parse"),
        ({"entry_point": "g"}, "task t/1: buggy_solution has no function g, its entry point"),
        ({"canonical_solution": "\n    return x"}, "canonical_solution is the same program as buggy_solution"),
        ({"test": ""}, "task t/1 has no tests"),
        ({"test": "x = 1"}, "task t/1: "),
    ],
)
def test_invalid_rows_of_buggy_programs_are_rejected(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    assert said in message(written(tmp_path / "x.jsonl", [{**BUG, **changes}]), dataset_type="bug_fix")


@pytest.mark.plugins("bug_fix", "code_completion", "function_calls", "travel", "writing")
def test_infer_type() -> None:
    assert infer_type("openai/openai_humaneval") == "humaneval"
    assert infer_type("OpenMLRL/CoopHumanEval") == "coophumaneval"
    assert infer_type("google-research-datasets/mbpp") == "mbpp"
    assert infer_type("bundled:toy") == "toy"
    assert infer_type("/data/humaneval/mbpp.jsonl") == "mbpp"
    assert infer_type("/data/humaneval/part1.jsonl") == "humaneval"
    assert infer_type("FudanSELab/ClassEval") == "classeval"
    assert infer_type("bigcode/humanevalpack:python") == "bug_fix"
    assert infer_type("quixbugs.jsonl") == "bug_fix"
    with pytest.raises(UserError, match=r"cannot infer dataset\.type from the name 'some/thing'"):
        infer_type("some/thing")


@pytest.mark.plugins("bug_fix")
def test_unknown_types_are_rejected() -> None:
    assert "unknown dataset.type 'bugfix': did you mean bug_fix?" in message("x.jsonl", dataset_type="bugfix")
    assert "unknown dataset.type 'humanevil': did you mean humaneval?" in message("x.jsonl", dataset_type="humanevil")


def test_hub_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def load_dataset(name: str, part: str = "") -> Any:
        if (name, part) == ("some/pack", "python"):
            return datasets.DatasetDict(test=datasets.Dataset.from_list([row(1)]))
        if name != "some/humaneval":
            raise FileNotFoundError(f"Couldn't find\n{name}")
        return datasets.DatasetDict(
            validation=datasets.Dataset.from_list([row(number) for number in range(5)]),
            extra=datasets.Dataset.from_list([row(9)]),
        )

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert [task.id for task in load_tasks("some/humaneval", "validation[3:]")] == ["t/3", "t/4"]
    assert [task.id for task in load_tasks("some/pack:python", "test", "humaneval")] == ["t/1"]
    assert "has no split 'test'; its splits: validation, extra" in message("some/humaneval")
    said = "cannot be loaded from the hub: FileNotFoundError: Couldn't find some/other"
    assert message("some/other") == f"dataset some/other {said}; a local file ends in .jsonl, .parquet, .json or .csv"


def test_bundled_tasks() -> None:
    train, held_out = load_tasks("bundled:toy", "train"), load_tasks("bundled:toy", "eval")
    assert len(train) + len(held_out) >= 60
    assert not {task.id for task in train} & {task.id for task in held_out}
    assert len(load_tasks("bundled:toy", "eval[:4]", "toy")) == 4
    assert "its splits: train, eval" in message("bundled:toy", "test", "toy")
    assert "bundled with the package: bundled:toy" in message("bundled:tyo", "train", "toy")


@pytest.mark.slow
@needs_shared
def test_all_rows_of_humaneval_and_mbpp_convert() -> None:
    humaneval = str(SHARED / "humaneval.jsonl")
    assert len(load_tasks(humaneval, "test[33:163]")) == 130
    assert [task.id for task in load_tasks(humaneval, "test[:2]")] == ["HumanEval/0", "HumanEval/1"]
    mbpp = load_tasks(str(SHARED / "mbpp.jsonl"), "test")
    assert len(mbpp) == 974
    assert all(f"`{task.fields['entry_point']}(" in task.prompt for task in mbpp)


def test_data_and_environments_import_no_heavy_library() -> None:
    code = (
        "import sys, marl_ray.data.loading, marl_ray.external.transition, marl_ray.environments.code_generation\n"
        "marl_ray.data.loading.load_tasks('bundled:toy', 'eval')\n"
        "print(*{'ray', 'vllm', 'torch', 'datasets', 'transformers', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
