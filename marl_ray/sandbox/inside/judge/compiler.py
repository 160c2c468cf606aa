"""The guest that compiles: one process for all programs of a judge, which runs none of them.

A program is compiled once, here, and its guest gets the code; what does not compile needs no guest of its own. The
source can cost much time and memory (nested `finally` blocks, alternatives in patterns, folding of constants), so this
process has the limits of a guest, and one that reaches them is thrown away. The program is then left to its own guest,
under its own limits. Whatever this process answers goes to guests only, or says that a program does not compile: there
is no pass in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..wire.forks import Resources
from ..wire.verdicts import SyntaxDiagnosis
from .findings import syntax_diagnosis
from .notes import Fault
from .session import GuestSession
from .watch import Watch
from .zygote_client import ZygoteClient

_CPU_S, _WALL_S = 0.5, 2.0
_RESOURCES = Resources(memory_mb=128, cpu_s=1 << 30, output=0, reply=4 << 20)
_MAX_CHARACTERS = 1 << 16


@dataclass(frozen=True, slots=True)
class Compiled:
    """`code`: marshalled, in hexadecimal; neither that nor `error` if only the program's own guest can tell, under its
    limits: errors that depend on the process (how deep nesting may go), and what costs too much.
    """

    code: str | None = None
    error: SyntaxDiagnosis | None = None


class Compiler:
    """Of one judge. The watch must be ticking."""

    def __init__(self, zygote: ZygoteClient, watch: Watch) -> None:
        self._zygote = zygote
        self._watch = watch
        self._session: GuestSession | None = None

    def compiled(self, source: str) -> Compiled:
        """See `Compiled`. Raises ZygoteError without a process."""
        if len(source) > _MAX_CHARACTERS:
            return Compiled()
        session = self._session
        if session is None:
            session = self._session = GuestSession(self._zygote.fork(_RESOURCES), _RESOURCES.reply)
        answer = ["ok", None]
        try:
            with self._watch.armed(session, _CPU_S, _WALL_S):
                answer = session.request("compile", source)
        except Fault:
            pass
        if session.fault is not None:
            self._session = None
            self._zygote.bury(session.guest)
            return Compiled()
        if answer[0] == "syntax":
            return Compiled(error=syntax_diagnosis(answer))
        code = answer[1] if answer[0] == "ok" else None
        return Compiled(code=code if type(code) is str else None)
