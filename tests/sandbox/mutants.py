"""Mutants of correct programs with one small change each, and their verdicts by direct execution."""

from __future__ import annotations

import ast
import copy
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Mod: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def _changes(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a node that can be changed, with their new values."""
    if isinstance(node, ast.Compare):
        yield "ops", [SWAPS.get(type(node.ops[0]), ast.Eq)(), *node.ops[1:]]
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPS:
        yield "op", SWAPS[type(node.op)]()
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "value", not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "value", node.value + 1
        yield "value", node.value - 1
    elif isinstance(node, ast.Return) and node.value is not None:
        yield "value", None
        yield "value", ast.List([node.value], ast.Load())
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "test", ast.UnaryOp(ast.Not(), node.test)


def mutants(source: str, entry_point: str, count: int, seed: int) -> list[str]:
    """Return up to `count` different mutants of a program, sampled from all single changes in its entry point."""
    tree = ast.parse(source)
    places = []
    entry = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == entry_point)
    inside = {id(part) for statement in entry.body for part in ast.walk(statement)}
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in inside:
            places += [(index, field, value) for field, value in _changes(node)]
    chosen = random.Random(seed).sample(places, min(count, len(places)))
    made = []
    for index, field, value in chosen:
        changed = copy.deepcopy(tree)
        node = next(node for position, node in enumerate(ast.walk(changed)) if position == index)
        setattr(node, field, copy.deepcopy(value))
        made.append(ast.unparse(ast.fix_missing_locations(changed)))
    return list(dict.fromkeys(made))


DIRECT = r"""
import ast, json, os, resource, signal, sys, time

class OutOfTime(BaseException):
    pass

def late(*_):
    raise OutOfTime

def verdicts(program, tests, entry_point, limit):
    '''Runs each statement of check(candidate) by itself.'''
    names = {"__name__": "program"}
    tree = ast.parse(tests)
    check = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "check")
    outcome, took = [], []
    def bounded(code):
        before = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, limit)
        try:
            exec(code, names)
            return True
        except BaseException:
            return False
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            took.append(time.process_time() - before)
    loaded = bounded(compile(program, "<program>", "exec"))
    names[check.args.args[0].arg] = names.get(entry_point)
    out_of_time = took[-1] >= limit * 0.9
    for statement in [n for n in tree.body if n is not check] + check.body:
        asserts = [n for n in ast.walk(statement) if isinstance(n, ast.Assert)]
        trivial = isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Constant)
        code = compile(ast.Module([statement], []), "<test>", "exec")
        good = loaded and not out_of_time and bounded(code)
        out_of_time = out_of_time or took[-1] >= limit * 0.9
        if asserts and not trivial:
            outcome.append(good)
    return outcome, took

signal.signal(signal.SIGPROF, late)
sys.setrecursionlimit(3000)
devnull = os.open(os.devnull, os.O_RDWR)
for line in sys.stdin:
    request = json.loads(line)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(devnull, 1); os.dup2(devnull, 2)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        os.write(writer, json.dumps(verdicts(*request)).encode())
        os._exit(0)
    os.close(writer)
    answer = b""
    while part := os.read(reader, 65536):
        answer += part
    os.close(reader)
    os.waitpid(child, 0)
    print((answer or b"null").decode(), flush=True)
"""


def direct_verdicts(
    programs: list[tuple[str, str, str]], limit_cpu_s: float
) -> list[tuple[list[bool], list[float]] | None]:
    """Run programs (program, tests, entry point) without a sandbox.

    Returns for each program which tests pass and the CPU seconds of every statement, or None if the process died. After
    a test that runs out of time all further tests count as not passed.
    """
    requests = "".join(json.dumps([*program, limit_cpu_s]) + "\n" for program in programs)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", DIRECT],
        input=requests,
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
        env={"PYTHONHASHSEED": "0"},
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
