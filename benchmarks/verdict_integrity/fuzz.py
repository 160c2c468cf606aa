"""A mutation fuzzer that looks for an unearned trusted pass and for verdicts unlike plain CPython's.

Usage: `python -m benchmarks.verdict_integrity.fuzz --hours 1 [--seed 0] [--out findings.json]`.

Two games alternate. Each keeps a mutant if the sandbox answers with verdicts or messages that no earlier mutant got,
and mutates the kept mutants further (novelty search, which climbs towards rare paths of the judge):

- *forging*: mutants of the forging programs and of their tests; the answers are random, so a trusted pass is a finding;
- *honest*: mutants of honest programs and of their tests; a test that passes here and not under CPython, or the other
  way round, is a finding.

A finding is confirmed by a second run, with other answers, and against programs that know nothing (otherwise the
mutated test is empty), reduced to the lines that it needs, and written with its tests.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import random
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.verdict_integrity import ours
from benchmarks.verdict_integrity.forging import Forgery, Job, load
from benchmarks.verdict_integrity.honest_jobs import honest_jobs
from benchmarks.verdict_integrity.jail import Jail
from marl_ray.sandbox import ExecutionReport, Limits, Sandbox

LIMITS = Limits(test_cpu_s=0.5, test_wall_s=1.5, program_wall_s=4.0, max_timeouts=1, max_crashes=1, memory_mb=256)
IGNORANT = ("return None", "return 0", "return []", "return ''", "return {}", "return (0, 0)", "raise ValueError(1)",
            "raise StopIteration", "return iter(())", "return x", "return [x]", "return True")  # fmt: skip
"""Bodies of programs that know nothing; a test that one of them passes is empty."""
METHODS = ("eq", "ne", "lt", "le", "gt", "ge", "hash", "bool", "len", "contains", "iter", "getitem", "getattr", "call",
           "str", "repr", "format", "float", "int", "index", "abs", "round", "add", "radd", "sub", "rsub", "mul",
           "mod", "xor", "enter", "exit", "reduce", "next", "reversed", "missing", "class_getitem")  # fmt: skip
WRAPPERS = ("str({})", "repr({})", "list({})", "tuple({})", "sorted({})", "set({})", "[{}]", "({},)", "{'a': {}}",
            "dict({})", "float({})", "int({})", "abs({})", "round({}, 2)", "(lambda y: y)({})", "next(iter([{}]))",
            "max({}, {})", "[y for y in {}]", "{} + {}", "-{}", "[*{}]", "format({})", "{}[:]")  # fmt: skip
COMPARISONS = ("LEFT == RIGHT", "RIGHT == LEFT", "LEFT in [RIGHT]", "not LEFT != RIGHT", "RIGHT in (LEFT,)",
               "LEFT is not None and LEFT == RIGHT", "{1: LEFT} == {1: RIGHT}", "[LEFT].count(RIGHT) == 1",
               "[RIGHT].index(LEFT) == 0", "(LEFT, 1) == (RIGHT, 1)", "(lambda y: y >= RIGHT and y <= RIGHT)(LEFT)",
               "all(y == RIGHT for y in [LEFT])", "[RIGHT, LEFT] == [RIGHT] * 2")  # fmt: skip
RESULTS = ("[value]", "(value,)", "{'a': value}", "iter([value])", "(y for y in [value])", "lambda *a: value",
           "type('T', (), {'v': value})", "[value] * 3", "str(value)", "copy.copy(value)", "Held(value)")  # fmt: skip
REPLIES = ("True", "0", "None", "[]", "'w'", "lambda *a, **k: True", "a and a[0]", "list(a)", "(True, True)", "b''")


@dataclass
class Finding:
    """A program whose verdict is wrong."""

    kind: str
    name: str
    seconds: float
    program: str
    tests: Any
    verdicts: list[str]
    expected: list[str] = field(default_factory=list)


class Forging:
    """Mutants of forging programs, whose tests no program can pass."""

    def __init__(self, rng: random.Random, sandbox: Sandbox) -> None:
        self._rng, self._sandbox = rng, sandbox
        self.corpus = [one for one in load() if "source text" not in one.label and one.label != "time"]
        self._empty: dict[tuple[str, str], bool] = {}

    def step(self) -> tuple[str, Forgery, ExecutionReport] | None:
        """Return the signature of a new mutant's verdicts, the mutant and the report; None if it does not compile."""
        mutant = self._mutate(self._rng.choice(self.corpus))
        for _ in range(self._rng.choice((0, 0, 1, 2))):
            mutant = self._mutate(mutant)
        tests = mutant.job(0).get("asserts", [])
        if len(mutant.source) > 6000 or not all(map(_compiles, [mutant.source, *tests])):
            return None
        report = self._report(mutant)
        return _signature(report), mutant, report

    def finding(self, mutant: Forgery, report: ExecutionReport) -> Forgery | None:
        """Return the mutant, reduced, if its trusted pass is unearned."""
        if not report.trusted_passed or self._is_empty(mutant) or not self._forges(mutant):
            return None
        return replace(mutant, source=_reduce(mutant.source, lambda text: self._forges(replace(mutant, source=text))))

    def _forges(self, mutant: Forgery) -> bool:
        return all(self._report(mutant).trusted_passed for _ in range(2))

    def _report(self, mutant: Forgery) -> ExecutionReport:
        return _execute(self._sandbox, mutant.job(self._rng.randrange(10**9)))

    def _is_empty(self, mutant: Forgery) -> bool:
        key = (mutant.kind, mutant.tests)
        if key not in self._empty:
            known = [replace(mutant, before="", source=f"def f(x):\n    {body}\n") for body in IGNORANT]
            self._empty[key] = any(self._report(one).passed for one in known)
        return self._empty[key]

    def _mutate(self, one: Forgery) -> Forgery:
        rng, other = self._rng, self._rng.choice(self.corpus)
        match rng.randrange(9):
            case 0:
                return replace(one, source=other.source + "\n" + one.source)
            case 1:
                return replace(one, source=_either(one.source, other.source, rng.random() < 0.5))
            case 2:
                return replace(one, source=_wrapped(one.source, rng.choice(RESULTS)))
            case 3 if other.kind != "script" and one.kind != "script" and "unittest" not in other.tests:
                return replace(one, tests=other.tests, kind=other.kind)
            case 4 | 5 if one.kind != "script":
                wrapper, comparison = rng.choice(WRAPPERS), rng.choice(COMPARISONS)
                for side, value in (("LEFT", "f(#)"), ("RIGHT", "@#@")):
                    comparison = comparison.replace(side, wrapper.replace("{}", value))
                kinds = ("word", "number", "real", "numbers", "words", "pair", "table", "group")
                return replace(one, tests=f"assert {comparison}", kind=rng.choice(kinds))
            case 6:
                old = re.findall(r"__(\w+)__", one.source)
                new = f"__{rng.choice(METHODS)}__"
                return replace(one, source=one.source.replace(f"__{rng.choice(old)}__", new) if old else one.source)
            case 7:
                return replace(one, source=_patched(one.source, rng))
            case _:
                return replace(one, source=_change(one.source, rng))


class Honest:
    """Mutants of honest programs that the sandbox and CPython judge alike."""

    def __init__(self, rng: random.Random, sandbox: Sandbox, reference: Jail) -> None:
        self._rng, self._sandbox, self._reference = rng, sandbox, reference
        jobs = [job for job in honest_jobs() if job["kind"] in ("calls", "asserts")]
        self.corpus = [job for job in jobs if not self._differences(job)]

    def step(self) -> tuple[str, Job, list[str]] | None:
        """Return the signature of a new mutant's verdicts, the mutant and its differences; None if nothing changed."""
        job = dict(self._rng.choice(self.corpus))
        if self._rng.random() < 0.7:
            job["program"] = _change(job["program"], self._rng)
        else:
            index = self._rng.randrange(len(job["asserts"]))
            job["asserts"] = list(job["asserts"])
            job["asserts"][index] = _change(job["asserts"][index], self._rng)
        if not all(map(_compiles, [job["program"], *job["asserts"]])):
            return None
        report = _execute(self._sandbox, job)
        return _signature(report), job, self._differences(job, report)

    def finding(self, job: Job, differences: list[str]) -> Job | None:
        """Return the job, reduced, if its verdicts differ from CPython's twice."""
        if not differences or self._differences(job) != differences:
            return None
        program = _reduce(job["program"], lambda text: self._differences({**job, "program": text}) == differences)
        return {**job, "program": program}

    def _differences(self, job: Job, report: ExecutionReport | None = None) -> list[str]:
        """Return "unearned: TEST" and "refused: TEST" for tests that the sandbox alone passes or does not pass."""
        verdicts = self._reference.score({**job, "kind": "asserts"})[0]
        report = report or _execute(self._sandbox, job)
        if verdicts == "lost" or "timeout" in verdicts or report.total != len(verdicts):
            return []
        if {"timeout", "skipped", "crash"} & {test.status for test in report.tests}:
            return []
        found = []
        for test, verdict, text in zip(report.tests, verdicts, job["asserts"], strict=True):
            if (test.status == "pass") != (verdict == "pass"):
                kind = "refused" if verdict == "pass" else "unearned" if test.trusted else "untrusted"
                found.append(f"{kind}: {text} [{test.error_type}: {test.message}] [{verdict}]")
        return found


def _execute(sandbox: Sandbox, job: Job) -> ExecutionReport:
    return sandbox.run_batch([replace(program, limits=LIMITS) for program in ours.programs(job)])[-1]


def _signature(report: ExecutionReport) -> str:
    """Return the verdicts and messages without names, numbers and quoted texts."""
    shapes = {(test.status, test.trusted, test.error_type, _shape(test.message)) for test in report.tests}
    return f"{sorted(shapes, key=str)} {report.infra_error}"


def _shape(message: str | None) -> str:
    return re.sub(r"'[^']*'|\"[^\"]*\"|\d+|0x\w+", "#", message or "")[:70]


def _compiles(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "<mutant>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _either(one: str, other: str, fallback: bool) -> str:
    """Return a program whose `f` asks the second program if the first one fails, or alternates between them."""
    body = (
        "    try: return _one(*a)\n    except BaseException: return _other(*a)\n"
        if fallback
        else "    _calls.append(1)\n    return (_one if len(_calls) % 2 else _other)(*a)\n"
    )
    return f"{one}\n_one = f\n{other}\n_other, _calls = f, []\ndef f(*a):\n{body}"


def _wrapped(source: str, result: str) -> str:
    held = "class Held:\n    def __init__(self, v): self.v = v\n    def __getattr__(self, n): return getattr(self.v, n)"
    body = f"    value = _inner(*a)\n    return {result}\n"
    return f"import copy\n{held}\n{source}\n_inner = f\ndef f(*a):\n{body}"


def _patched(source: str, rng: random.Random) -> str:
    """Return a program that replaces some functions of the process it runs in, found through frames or modules."""
    start, salt = rng.choice(("sys._getframe()", "sys._getframe(1)", "None")), rng.randrange(99)
    chosen = f"hash((n, len(key), {salt})) % {rng.choice((7, 40, 300, 2000))} == 0"
    return (
        f"import sys\ndef _patch():\n    frame, places = {start}, [vars(m) for m in list(sys.modules.values()) if m]\n"
        f"    while frame: places.append(frame.f_globals); places.append(frame.f_locals); frame = frame.f_back\n"
        f"    for n, place in enumerate(places):\n        for key, value in list(place.items()):\n"
        f"            if callable(value) and {chosen}:\n"
        f"                try: place[key] = lambda *a, **k: {rng.choice(REPLIES)}\n"
        f"                except Exception: pass\n{source}\n_inner = f\ndef f(*a):\n"
        f"    answer = _inner(*a)\n    _patch()\n    return answer\n"
    )


_OPERATORS: tuple[type[ast.AST], ...] = (ast.Add, ast.Sub, ast.Mult, ast.Mod, ast.FloorDiv, ast.BitOr, ast.BitAnd)
_COMPARE: tuple[type[ast.AST], ...] = (ast.Eq, ast.NotEq, ast.Lt, ast.GtE, ast.In, ast.NotIn, ast.Is, ast.IsNot)
_CONSTANTS = (0, 1, -1, 2, True, False, None, "", "a", 0.5, float("nan"), float("inf"), b"a", 10**20, "\x00", 1e300)
_NAMES = ("list", "tuple", "set", "dict", "str", "iter", "reversed", "sorted", "len", "repr", "type", "bool")


def _change(source: str, rng: random.Random) -> str:
    """Return the source with one random change of its syntax tree."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return source
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.FunctionDef | ast.AugAssign | ast.If)]
    rng.shuffle(nodes)
    for node in nodes:
        if _change_node(node, rng, nodes):
            try:
                return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
            except (ValueError, RecursionError):
                return source
    return source


def _change_node(node: ast.AST, rng: random.Random, nodes: Sequence[ast.AST]) -> bool:
    match node:
        case ast.Constant():
            node.value = rng.choice((*_CONSTANTS, node.value + 1 if isinstance(node.value, int) else 3))
            node.kind = None
        case ast.BinOp() | ast.AugAssign():
            node.op = rng.choice(_OPERATORS)()  # type: ignore[assignment]
        case ast.Compare():
            node.ops[0] = rng.choice(_COMPARE)()  # type: ignore[call-overload]
        case ast.Call() if isinstance(node.func, ast.Name) and node.args:
            if rng.random() < 0.5:
                node.args.pop(rng.randrange(len(node.args)))
            else:
                node.args[0] = _named(rng.choice(_NAMES), node.args[0])
        case ast.If():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.FunctionDef():
            node.body.insert(0, copy.deepcopy(rng.choice(node.body)))
        case ast.List() | ast.Tuple() | ast.Set() if node.elts:
            node.elts.append(copy.deepcopy(rng.choice(node.elts)))
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.Name(ctx=ast.Load()) if rng.random() < 0.3:
            names = [other.id for other in nodes if isinstance(other, ast.Name)]
            node.id = rng.choice(names)
        case _:
            return False
    return True


def _named(name: str, argument: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), [argument], [])


def _reduce(source: str, holds: Callable[[str], bool]) -> str:
    """Return the source without the lines that are not needed for `holds`."""
    lines = source.splitlines()
    for size in (8, 4, 2, 1):
        index = 0
        while index < len(lines):
            shorter = lines[:index] + lines[index + size :]
            text = "\n".join(shorter) + "\n"
            if _compiles(text) and holds(text):
                lines = shorter
            else:
                index += size
    return "\n".join(lines) + "\n"


def fuzz(hours: float, seed: int, out: Path | None) -> Iterator[dict[str, Any]]:
    """Play both games; yield a summary each minute and at the end."""
    rng, started, shown = random.Random(seed), time.monotonic(), 0.0
    counts = {"forging": 0, "honest": 0}
    seen: set[str] = set()
    findings: list[Finding] = []
    known: set[str] = set()
    warnings.simplefilter("ignore")
    with ours.open_sandbox() as sandbox, Jail("cpython") as reference:
        forging, honest = Forging(rng, sandbox), Honest(rng, sandbox, reference)
        while (elapsed := time.monotonic() - started) < hours * 3600:
            game: Any = forging if rng.random() < 0.6 else honest
            step = game.step()
            if step is not None:
                signature, mutant, outcome = step
                counts["forging" if game is forging else "honest"] += 1
                if signature not in seen:
                    seen.add(signature)
                    game.corpus.append(mutant)
                reduced = game.finding(mutant, outcome)
                if reduced is not None:
                    new = _finding(reduced, outcome, elapsed)
                    if (mark := _mark(new)) not in known:
                        known.add(mark)
                        findings.append(new)
                        print(json.dumps(vars(new), indent=1), flush=True)
            if elapsed - shown > 60:
                shown = elapsed
                yield _summary(seed, elapsed, counts, seen, sandbox, findings, out)
        yield _summary(seed, time.monotonic() - started, counts, seen, sandbox, findings, out)


def _finding(mutant: Forgery | Job, outcome: Any, elapsed: float) -> Finding:
    if isinstance(mutant, Forgery):
        job, verdicts = mutant.job(0), [test.status for test in outcome.tests]
        tests = job.get("asserts") or job.get("suite") or job.get("pairs")
        return Finding("forged pass", f"{mutant.label} / {mutant.name}", round(elapsed), mutant.source, tests, verdicts)
    kind = "unearned pass" if any(text.startswith("unearned") for text in outcome) else "unlike CPython"
    return Finding(kind, mutant["name"], round(elapsed), mutant["program"], mutant["asserts"], outcome)


def _mark(finding: Finding) -> str:
    """Return the kind of a finding, so that each kind is reported once."""
    if finding.kind == "forged pass":
        return f"{finding.kind} {finding.tests and _shape(str(finding.tests[0]))} {_shape(finding.program)}"
    return f"{finding.kind} {[_shape(text.rpartition(' [')[0].rpartition(' [')[2]) for text in finding.verdicts]}"


def _summary(
    seed: int, elapsed: float, counts: dict[str, int], seen: set[str], sandbox: Sandbox, findings: Sequence[Finding],
    out: Path | None,
) -> dict[str, Any]:  # fmt: skip
    kinds = [finding.kind for finding in findings]
    summary = {
        "seed": seed,
        "seconds": round(elapsed),
        "level": sandbox.level,
        "programs": dict(counts),
        "behaviours": len(seen),
        "sandbox_restarts": sandbox.restarts,
        "findings": {kind: kinds.count(kind) for kind in ("forged pass", "unearned pass", "unlike CPython")},
    }
    if out is not None:
        out.write_text(
            json.dumps(summary | {"list": [vars(one) for one in findings]}, indent=1) + "\n", encoding="utf-8"
        )
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the verdicts of the sandbox.")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the summary and all findings as JSON")
    arguments = parser.parse_args()
    summary: dict[str, Any] = {}
    for summary in fuzz(arguments.hours, arguments.seed, arguments.out):
        print(json.dumps(summary), flush=True)
    found = summary["findings"]
    return 1 if found["forged pass"] or found["unearned pass"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
