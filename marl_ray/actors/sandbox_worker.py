"""The sandbox actor: one sandbox, which runs the programs it is given, one after another."""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.actors.handle import Actor
from marl_ray.core.errors import UserError
from marl_ray.sandbox import ExecutionReport, Program, Sandbox, SandboxSettings, SandboxUnavailable


class SandboxWorker(Actor):
    """Ray actor with two threads, so that `alive` answers while `run` runs."""

    def __init__(self, settings: SandboxSettings, without: tuple[str, ...] = ()) -> None:
        self._sandbox = Sandbox(settings, without=without)

    def start(self) -> list[str]:
        """Start the sandbox. Raises UserError when there is no isolation to be had here."""
        try:
            self._sandbox.start()
        except SandboxUnavailable as error:
            raise UserError(error) from None
        return [self._sandbox.describe()]

    def run(self, programs: Sequence[Program]) -> list[ExecutionReport]:
        """Reports in the order of the programs."""
        return list(self._sandbox.run_each(programs))

    def alive(self) -> None:
        """Answers, whatever the programs do."""
