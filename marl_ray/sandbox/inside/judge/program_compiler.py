"""Compilation of programs in a guest process that runs none of them.

A program is compiled once, here, and its guest receives the code object; a program that does not compile needs no guest
of its own. Compilation can cost much time and memory (nested `finally` blocks, alternatives in patterns, constant
folding), so this process has the limits of a guest and is discarded when it reaches them. The program is then compiled
by its own guest, under its own limits. An answer of this process is only passed on to guests or reports a syntax error;
no answer can produce a pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.messages import GuestLimits, SyntaxDiagnosis
from .evaluation_context import GuestFault
from .guest_session import GuestSession
from .sanitising import parse_syntax_error
from .scheduling import DeadlineTimer
from .zygote_client import ZygoteClient

_CPU_S, _WALL_S = 0.5, 2.0
_LIMITS = GuestLimits(memory_mb=128, cpu_s=1 << 30, output=0, reply=4 << 20)
_MAX_CHARACTERS = 1 << 16


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """Result of compilation: `code` (marshalled, in hexadecimal) or `error`.

    Neither is set if only the program's own guest can tell, under its limits: errors that depend on the process (the
    permitted nesting depth), and programs that cost too much here.
    """

    code: str | None = None
    error: SyntaxDiagnosis | None = None


class ProgramCompiler:
    """Compiler of one judge. The timer must be running."""

    def __init__(self, zygote: ZygoteClient, timer: DeadlineTimer) -> None:
        self._zygote = zygote
        self._timer = timer
        self._session: GuestSession | None = None

    def compile(self, source: str) -> CompiledProgram:
        """Compile a program. Raises ZygoteError if no process can be started."""
        if len(source) > _MAX_CHARACTERS:
            return CompiledProgram()
        session = self._session
        if session is None:
            session = self._session = GuestSession(self._zygote.fork(_LIMITS), _LIMITS.reply)
        answer = ["ok", None]
        try:
            with self._timer.limit(session, _CPU_S, _WALL_S):
                answer = session.request("compile", source)
        except GuestFault:
            pass
        if session.fault is not None:
            self._session = None
            self._zygote.kill(session.guest)
            return CompiledProgram()
        if answer[0] == "syntax":
            return CompiledProgram(error=parse_syntax_error(answer))
        code = answer[1] if answer[0] == "ok" else None
        return CompiledProgram(code=code if type(code) is str else None)
