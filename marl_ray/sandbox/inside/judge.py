"""The judge: holds the tests, asks the guest, and alone can say "pass".

It runs no code of a program. An assert is evaluated here, with the program's functions replaced by stand-ins
that send the arguments to the guest and take plain data back; printed output is compared here. Only tests
that need the program's classes as classes run in the guest, and then the report says `trusted: false`.
"""

from __future__ import annotations

import itertools
import socket
import time
from typing import Any

from . import frames
from .compiler import Compiler
from .execution import Execution, Outcome, Request, Verdict
from .state import unchanged
from .suite import Case, Suite
from .visible import parts
from .watch import Watch
from .zygote_link import ZygoteClient, ZygoteError

MEMORY = 1 << 30
"""Bytes of address space a judge may add to what the zygote has: results and what tests make of them."""


class Judge:
    """Serves one owner: requests in, reports out, one after the other."""

    def __init__(self, owner: socket.socket, link: socket.socket) -> None:
        self._owner = owner
        self._zygote = ZygoteClient(link)
        self._watch = Watch()
        self._compiler = Compiler(self._zygote, self._watch)

    def serve(self) -> None:
        """Until the owner closes the connection (frames.Closed)."""
        reader = frames.Reader(self._owner)
        while True:
            message = reader.message()
            frames.send(self._owner, self._report(message))

    def _report(self, message: dict[str, Any]) -> dict[str, Any]:
        started = time.monotonic()
        tests, limits = message["tests"], message["limits"]
        tests = tests if isinstance(tests, str) else tuple(tests)
        suites = parts(tests, message["entry_point"], message["form"], message["prompt"], message["visible"])
        infra_error = None
        outcome = Outcome()
        results: dict[int, dict[str, Any]] = {}
        self._watch.place.stay()
        try:
            with self._watch.ticking():
                program = self._compiler.compiled(message["program"])
                outcome.syntax_error = program.error
                for numbers, suite in suites:
                    request = Request(message["program"], program.code, suite, limits, message["stdin"])
                    part = self._run(request) if outcome.syntax_error is None else _not_compiled(outcome, suite)
                    outcome.add(part)
                    verdicts = zip(part.verdicts, suite.cases, strict=True)
                    results |= zip(numbers, itertools.starmap(_result, verdicts), strict=True)
        except ZygoteError as error:
            infra_error = str(error)
        finally:
            self._watch.place.end(outcome.cpu_s)
        return {
            "number": message["number"],
            "trusted": all(result["trusted"] for result in results.values()),
            "syntax_error": outcome.syntax_error,
            "tests": [results[number] for number in sorted(results)],
            "stdout": "".join(outcome.output)[: limits["max_output_bytes"]],
            "cpu_s": round(outcome.cpu_s, 4),
            "wall_s": round(time.monotonic() - started, 4),
            "infra_error": infra_error,
        }

    def _run(self, request: Request) -> Outcome:
        started = time.monotonic()
        with unchanged(request.suite):
            return Execution(self._zygote, self._watch, request, started).run()


def _not_compiled(outcome: Outcome, suite: Suite) -> Outcome:
    """The same verdict on every test, without a guest."""
    error = outcome.syntax_error
    assert error is not None
    verdict = Verdict("error", "SyntaxError", error["message"], error["line"])
    return Outcome([verdict] * len(suite.cases), error)


def _result(verdict: Verdict, case: Case) -> dict[str, Any]:
    """A `report.TestResult` as JSON."""
    return {
        "status": verdict.status,
        "error_type": verdict.error_type,
        "message": verdict.message,
        "line": verdict.line,
        "source": case.source,
        "trusted": verdict.trusted,
    }
