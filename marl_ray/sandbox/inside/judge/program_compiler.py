"""The guest that compiles: one process for all programs of a judge, which runs none of them.

A program is compiled once, here, and its guest gets the code; what does not compile needs no guest of its own. The
source can cost much time and memory (nested `finally` blocks, alternatives in patterns, folding of constants), so this
process has the limits of a guest, and one that reaches them is thrown away. The program is then left to its own guest,
under its own limits. Whatever this process answers goes to guests only, or says that a program does not compile: there
is no pass in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.frames import GuestLimits
from ..protocol.records import SyntaxDiagnosis
from .deadline_timer import DeadlineTimer
from .evaluation_context import GuestFault
from .guest_session import GuestSession
from .suite_result import syntax_diagnosis
from .zygote_client import ZygoteClient

_CPU_S, _WALL_S = 0.5, 2.0
_RESOURCES = GuestLimits(memory_mb=128, cpu_s=1 << 30, output=0, reply=4 << 20)
_MAX_CHARACTERS = 1 << 16


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """`code`: marshalled, in hexadecimal; neither that nor `error` if only the program's own guest can tell, under its
    limits: errors that depend on the process (how deep nesting may go), and what costs too much.
    """

    code: str | None = None
    error: SyntaxDiagnosis | None = None


class ProgramCompiler:
    """Of one judge. The watch must be ticking."""

    def __init__(self, zygote: ZygoteClient, watch: DeadlineTimer) -> None:
        self._zygote = zygote
        self._watch = watch
        self._session: GuestSession | None = None

    def compiled(self, source: str) -> CompiledProgram:
        """See `CompiledProgram`. Raises ZygoteError without a process."""
        if len(source) > _MAX_CHARACTERS:
            return CompiledProgram()
        session = self._session
        if session is None:
            session = self._session = GuestSession(self._zygote.fork(_RESOURCES), _RESOURCES.reply)
        answer = ["ok", None]
        try:
            with self._watch.armed(session, _CPU_S, _WALL_S):
                answer = session.request("compile", source)
        except GuestFault:
            pass
        if session.fault is not None:
            self._session = None
            self._zygote.bury(session.guest)
            return CompiledProgram()
        if answer[0] == "syntax":
            return CompiledProgram(error=syntax_diagnosis(answer))
        code = answer[1] if answer[0] == "ok" else None
        return CompiledProgram(code=code if type(code) is str else None)
