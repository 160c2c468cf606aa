"""Rows of APPS and LiveCodeBench."""

from __future__ import annotations

import base64
import datetime
import json
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from marl_ray.core.errors import UserError
from marl_ray.data import infer_type
from marl_ray.data.loading import UnsupportedRow, load_tasks
from marl_ray.plugins.contests.rows import APPS, LIVECODEBENCH
from marl_ray.sandbox import Program, Sandbox, count_tests

PAIRS = {"inputs": ["1 2\n", ["3", "4"]], "outputs": ["3\n", ["7"]]}
PUBLIC = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
PRIVATE = [{"input": "3 4\n", "output": "7\n", "testtype": "stdin"}]


def packed(value: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


LONG_INTEGER = f'{{"fn_name": "f", "inputs": [[1]], "outputs": [{"9" * 5000}]}}'


def apps(**changes: Any) -> dict[str, Any]:
    return {"problem_id": 7, "question": "Add.", "input_output": json.dumps(PAIRS), "starter_code": ""} | changes


def live(**changes: Any) -> dict[str, Any]:
    row = {"question_id": "abc_a", "question_content": "Add.", "public_test_cases": json.dumps(PUBLIC)}
    return row | {"private_test_cases": packed(json.dumps(PRIVATE))} | changes


CALL = {"input": "[2, 7, 11]\n9", "output": "[0, 1]", "testtype": "functional"}
STARTER = "class Solution:\n    def twoSum(self, nums: List[int], target: int) -> Optional[List[int]]:\n        "
LINKED = "# class ListNode:\n#     ...\nclass Solution:\n\tdef twoSum(self, head: Optional[ListNode]) -> int:\n\t\t"


def function(**changes: Any) -> dict[str, Any]:
    row = live(public_test_cases=[CALL], private_test_cases="", starter_code=STARTER)
    return row | {"metadata": json.dumps({"func_name": "twoSum"})} | changes


def pairs(task: Any) -> list[tuple[str, str]]:
    return [(case["stdin"], case["stdout"]) for case in map(json.loads, task.fields["tests"])]


def test_apps() -> None:
    task = APPS.task(apps(), 0)
    assert (task.id, task.prompt, task.fields["entry_point"], task.fields["script"]) == ("APPS/7", "Add.", "main", True)
    assert pairs(task) == [("1 2\n", "3\n"), ("3\n4", "7")]
    assert count_tests(task.fields["tests"], "main") == 2
    assert APPS.task(apps(input_output=PAIRS, problem_id=None), 4).id == "APPS/row 4"


def test_integers_of_apps_are_texts() -> None:
    """Convert numbers in place of texts, and integers of more digits than Python converts."""
    digits = "7" * 5000
    tests = f'{{"inputs": [["1", 2], 3], "outputs": [{digits}, "4"]}}'
    assert pairs(APPS.task(apps(input_output=tests), 0)) == [("1\n2", digits), ("3", "4")]


def test_rows_of_another_kind_are_left_out_without_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [apps(problem_id=n, input_output="" if n < 9 else PAIRS) for n in range(10)]
    path = tmp_path / "apps.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert [task.id for task in load_tasks(str(path), "test", "apps")] == ["APPS/9"]
    (warning,) = caplog.messages
    assert "9 of 10 rows of 'test' left out: task APPS/0 has no tests" in warning
    assert warning.endswith("; and 4 more")
    with pytest.raises(UserError, match=r"9 of 9 rows of .* cannot be read: task APPS/0 has no tests"):
        load_tasks(str(path), "test[:9]", "apps")


def test_public_tests_of_livecodebench_come_first() -> None:
    for private in (packed(json.dumps(PRIVATE)), json.dumps(PRIVATE), PRIVATE):
        task = LIVECODEBENCH.task(live(private_test_cases=private), 0)
        assert task.id == "LiveCodeBench/abc_a"
        assert pairs(task) == [("1 2\n", "3\n"), ("3 4\n", "7\n")]
    assert len(pairs(LIVECODEBENCH.task(live(private_test_cases=""), 0))) == 1


@pytest.mark.parametrize(
    ("dataset", "row", "says"),
    [
        (APPS, apps(input_output="{"), "task APPS/7: input_output is not JSON"),
        (APPS, apps(input_output=""), "has no tests (field input_output"),
        (APPS, apps(input_output=None), "has no tests (field input_output"),
        (APPS, apps(input_output={**PAIRS, "fn_name": "add"}), "should be lists of arguments, not '1 2"),
        (APPS, apps(input_output={"fn_name": "a b", "inputs": [[1]], "outputs": [1]}), "is not a function's name"),
        (APPS, apps(input_output={"fn_name": "f", "inputs": [], "outputs": []}), "has no tests"),
        (APPS, apps(input_output=LONG_INTEGER), "an argument or result is no finite JSON value"),
        (APPS, apps(input_output={**PAIRS, "outputs": ["3"]}), "as many outputs as inputs"),
        (APPS, apps(input_output={"inputs": [[1.5, 2]], "outputs": ["3"]}), "should be texts, not [1.5, 2]"),
        (APPS, apps(input_output={"inputs": [], "outputs": []}), "has no tests"),
        (APPS, apps(question=" "), "has no problem text (field question)"),
        (LIVECODEBENCH, live(public_test_cases="{", private_test_cases=""), "public_test_cases is not JSON"),
        (LIVECODEBENCH, live(public_test_cases='{"a": 1}'), "should be a list of objects"),
        (LIVECODEBENCH, live(public_test_cases='[{"testtype": "functional"}]'), "tests of several kinds"),
        (LIVECODEBENCH, function(metadata="{}"), "metadata should have func_name"),
        (LIVECODEBENCH, function(public_test_cases=[CALL | {"input": "[1"}]), "an argument of a test is not JSON"),
        (LIVECODEBENCH, function(public_test_cases=[CALL | {"output": "Infinity"}]), "is no finite JSON value"),
        (LIVECODEBENCH, live(private_test_cases="b2g="), "is neither JSON nor packed as LiveCodeBench's is"),
        (LIVECODEBENCH, live(private_test_cases="nö"), "is neither JSON nor packed as LiveCodeBench's is"),
        (LIVECODEBENCH, live(public_test_cases=None, private_test_cases=None), "has no tests"),
    ],
)
def test_errors_name_the_invalid_row(dataset: Any, row: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as error:
        dataset.task(row, 0)
    assert says in str(error.value)


def test_unpickling_private_tests_executes_nothing(tmp_path: Any) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    with pytest.raises(UserError, match="neither JSON nor packed"):
        LIVECODEBENCH.task(live(private_test_cases=packed(Harm())), 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04X\x01\0\0\0ar\xff\xff\xff\x7f.",  # stores the text at place 2 ** 31 - 1 of a list: 32 GB
        b"\x80\x04\x96\xff\xff\xff\xff\x07\0\0\0.",  # a bytearray of 32 GB
        b"\x80\x04X\xff\xff\xff\x7f.",  # a text that is not there
        b"X\x01\0\0\0aX\x01\0\0\0b.",
        pickle.dumps(["a"]),
        pickle.dumps(b"a"),
        b".",
        b"",
    ],
)
def test_a_pickle_of_anything_but_a_text_is_refused_before_it_allocates(data: bytes) -> None:
    text = base64.b64encode(zlib.compress(data)).decode()
    with pytest.raises(UserError, match="neither JSON nor packed"):
        LIVECODEBENCH.task(live(private_test_cases=text), 0)


@pytest.mark.parametrize("protocol", [4, 5])
def test_private_tests_of_any_length_are_read(protocol: int) -> None:
    for length in (10, 1000, 100_000):
        private = json.dumps([{"input": "3", "output": "7" * length, "testtype": "stdin"}])
        text = base64.b64encode(zlib.compress(pickle.dumps(private, protocol))).decode()
        assert pairs(LIVECODEBENCH.task(live(private_test_cases=text), 0))[1] == ("3", "7" * length)


@pytest.mark.parametrize("date", ["2024-08-03T00:00:00", datetime.datetime(2024, 8, 3)])
def test_livecodebench_has_dates(date: object) -> None:
    cases = json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}])
    row = {"question_id": "a", "question_content": "q", "public_test_cases": cases, "contest_date": date}
    assert LIVECODEBENCH.task(row, 0).fields["date"] == "2024-08-03"
    assert "date" not in LIVECODEBENCH.task({**row, "contest_date": None}, 0).fields


def test_names() -> None:
    assert infer_type("livecodebench/code_generation_lite") == "livecodebench"
    assert infer_type("data/livecodebench.jsonl") == "livecodebench"


@pytest.mark.plugins("serve")
def test_a_method_of_livecodebench_is_asked_for_as_a_function(sandbox: Sandbox) -> None:
    from marl_ray.plugins.serve.formats.code_samples import as_function

    task = LIVECODEBENCH.task(function(), 0)
    assert task.prompt == (
        "Add.\n\nfrom typing import List, Optional\n\n"
        "def twoSum(nums: List[int], target: int) -> Optional[List[int]]:\n"
    )
    assert task.fields["entry_point"] == "twoSum"
    assert passes(sandbox, task, "def twoSum(nums, target):\n    return [0, 1]")
    assert passes(sandbox, task, "def twoSum(nums, target):\n    return 0, 1"), "a tuple counts as a list"
    assert not passes(sandbox, task, "def twoSum(nums, target):\n    return [1, 0]")
    method = "class Solution:\n    def twoSum(self, nums, target):\n        return [0, 1]"
    assert passes(sandbox, task, as_function(method, "twoSum")), "a program of another system"


def test_a_tuple_within_a_list_is_a_list_in_apps_only(sandbox: Sandbox) -> None:
    tests = {"fn_name": "pairs", "inputs": [[3], [{"1": 2}]], "outputs": [[[[3, 4]]], [[[1, 2]]]]}
    task = APPS.task(apps(input_output=tests, starter_code="def pairs(x):\n\t"), 0)
    assert task.prompt == "Add.\n\ndef pairs(x):\n"
    program = "def pairs(x):\n    return list(x.items()) if isinstance(x, dict) else [(x, x + 1)]"
    assert passes(sandbox, task, program), "keys of digits are integers, and the expected result may be in a list"
    live_task = LIVECODEBENCH.task(function(public_test_cases=[CALL | {"output": "[[0, 1]]"}]), 0)
    assert not passes(sandbox, live_task, "def twoSum(nums, target):\n    return [(0, 1)]")


def test_arguments_and_keys_of_unusual_letters() -> None:
    call = {"input": '"a\u2028b"\n1', "output": "[0, 1]", "testtype": "functional"}
    source = str(LIVECODEBENCH.task(function(public_test_cases=[call]), 0).fields["tests"])
    assert repr("a\u2028b")[1:-1] in source.replace("\\\\", "\\")
    tests = {"fn_name": "f", "inputs": [[{"--1": 2}]], "outputs": [1]}
    source = str(APPS.task(apps(input_output=tests, starter_code="def f(x):\n\t"), 0).fields["tests"])
    assert "--1" in source


def test_a_function_of_objects_is_left_out() -> None:
    with pytest.raises(UnsupportedRow, match="asks for a function of ListNode objects"):
        LIVECODEBENCH.task(function(starter_code=LINKED), 0)


def passes(sandbox: Sandbox, task: Any, source: str) -> bool:
    report = sandbox.run(Program(source, task.fields["tests"], task.fields["entry_point"], prompt=task.prompt))
    assert report.trusted
    return report.passed == report.total
