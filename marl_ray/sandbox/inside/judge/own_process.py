"""Evaluation of tests in a process of their own, forked from the judge and gone when they are done.

Tests are code. They may patch modules, set attributes of library classes, seed generators, change the decimal context,
start threads or evaluate a program's text, and no list of what to restore afterwards is complete. The judge itself
evaluates only tests whose text shows that nothing remains of them (`suites.lasting_effects`).

The new process holds the judge's parsed tests, a connection of its own to the zygote, the file of the progress, and a
pipe for its result. The judge takes nothing from the result but the verdicts of this one program.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import random
import signal
import time
import traceback
from typing import Any

from ..isolation import process, seccomp
from ..protocol import messages, reports
from ..protocol.reports import MalformedReport
from ..suites.suite import Suite
from .deadlines import DeadlineTimer
from .suite_request import SuiteRequest, SuiteResult
from .suite_runner import SuiteRunner
from .zygote_client import ZygoteClient, ZygoteError, describe_exit

_MAX_RESULT = 64 << 20
"""Bytes of a result; the host accepts no larger report either."""
_MAX_ERROR = 1000
_RESULT: reports.Kinds = {
    "verdicts": (list,),
    "syntax_error": (dict, type(None)),
    "output": (str,),
    "cpu_s": (float,),
    "own_cpu_s": (float,),
    "infra_error": (str, type(None)),
}


class LostProcess(Exception):
    """A process for one program that died, or sent something other than a result."""


class OwnProcesses:
    """Maker of processes for single programs.

    `kept` are descriptors that such a process keeps, besides its own. `no_fork` is the filter that keeps it from making
    processes itself; None at level `none`.
    """

    def __init__(
        self, zygote: ZygoteClient, timer: DeadlineTimer, kept: tuple[int, ...], no_fork: seccomp.Filter | None
    ) -> None:
        self._zygote = zygote
        self._timer = timer
        self._kept = kept
        self._no_fork = no_fork

    def run(self, request: SuiteRequest) -> SuiteResult:
        """Return the result of a suite. Raises ZygoteError if no guest can be started, and LostProcess.

        Ends the judge, like a judge that is stuck itself, if the new process did not return from C code.
        """
        suite = request.part.suite
        seed = _seed(suite) if suite.uses_random else None
        spare = self._zygote.take_spare()
        link = self._zygote.connect_again(spare)
        reader, writer = os.pipe()
        judge = os.getpid()
        child = process.fork()
        if child == 0:
            try:
                if process.LINUX:
                    process.die_with_parent(judge)
                of_spare = () if spare is None else (spare.connection.fileno(), spare.output)
                process.close_except(link.fileno(), writer, *of_spare, *self._kept)
                if self._no_fork is not None:
                    self._no_fork.install()
                gc.freeze()  # the judge's objects, which a collection would copy page by page
                zygote = ZygoteClient(link, self._zygote.wait_for_kills)
                zygote.use_spare(spare)
                frame = messages.pack(self._evaluate(zygote, request, seed))
                while frame:
                    frame = frame[os.write(writer, frame) :]
                os._exit(0)
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(1)
        link.close()
        os.close(writer)
        self._zygote.prepare_spare(request.guest_limits)
        result = _receive(reader)
        _, status = os.waitpid(child, 0)
        if spare is not None:
            self._zygote.kill(spare)
        self._zygote.end_further_connection()
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
            os._exit(messages.STUCK_STATUS)
        if status:
            raise LostProcess(f"for one program: {describe_exit(status)}")
        try:
            return _read_result(result, request)
        except MalformedReport as error:
            raise LostProcess(f"the process for one program sent no result: {error}") from None

    def _evaluate(self, zygote: ZygoteClient, request: SuiteRequest, seed: bytes | None) -> dict[str, Any]:
        """Evaluate a suite in the new process; return the result for the judge."""
        if seed is not None:
            random.seed(seed)
        infra_error = None
        result = SuiteResult()
        with self._timer.running():
            try:
                result = SuiteRunner(zygote, self._timer, request).run()
            except ZygoteError as error:
                infra_error = str(error)
        return {
            "verdicts": [messages.to_dict(verdict) for verdict in result.verdicts],
            "syntax_error": None if result.syntax_error is None else messages.to_dict(result.syntax_error),
            "output": "".join(result.output),
            "cpu_s": float(result.cpu_s),
            "own_cpu_s": time.process_time(),
            "infra_error": infra_error,
        }


def _seed(suite: Suite) -> bytes:
    """Return a seed of the tests alone: a program would know the numbers of a seed that it shares."""
    import hashlib  # imported once, by the judge, and not in the zygote, where its libraries make every fork dearer

    return hashlib.sha256("\0".join(case.source for case in suite.cases).encode("utf-8", "replace")).digest()


def _receive(reader: int) -> Any:
    """Return the content of the one frame that the new process sent, None for anything else; close the descriptor."""
    frames = messages.FrameReader(functools.partial(os.read, reader), _MAX_RESULT)
    try:
        with contextlib.suppress(messages.ConnectionClosed, messages.FrameTooLong, ValueError, RecursionError):
            return json.loads(frames.frame())
    finally:
        os.close(reader)
    return None


def _read_result(wire: Any, request: SuiteRequest) -> SuiteResult:
    fields = reports.read_object(wire, _RESULT)
    if fields["infra_error"] is not None:
        raise ZygoteError(reports.read_text(fields["infra_error"], _MAX_ERROR))
    return SuiteResult(
        verdicts=reports.read_verdicts(fields["verdicts"], len(request.part.numbers)),
        syntax_error=reports.read_syntax_error(fields["syntax_error"]),
        output=[fields["output"]],
        cpu_s=reports.read_seconds(fields["cpu_s"]),
        judge_cpu_s=reports.read_seconds(fields["own_cpu_s"]),
    )
