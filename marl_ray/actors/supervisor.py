"""The life of actors, of every kind: started, ready, serving, lost, replaced.

    starting --(start has answered)--> serving --(lose)--> lost --(restarts left)--> starting, in its next life
                                                           --(none left)------> retired

A life is counted from 1, and every life has a handle of its own: whoever still holds the handle of an earlier one can
neither end nor replace the actor of a later one. Who notices a loss says so with `lose`; generators and learners have
no restarts, so that their loss ends the run with the line of the handle that noticed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from ray.exceptions import RayError

from marl_ray.actors.handle import Actor, ActorFailed, Deadline, Handle
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId
from marl_ray.core.waiting import together

log = logging.getLogger(__name__)

RESTART_PAUSE_S = 2.0
"""Before the second try of a life; before each further one as much more."""

State = Literal["starting", "serving", "lost", "retired"]


A = TypeVar("A", bound=Actor)


@dataclass(frozen=True, slots=True)
class Recipe(Generic[A]):
    """What an actor is made from, in each of its lives. `options` are Ray's: cores, GPUs, environment, place."""

    id: ActorId
    actor_class: type[A]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


@dataclass(slots=True)
class _Member(Generic[A]):
    recipe: Recipe[A]
    state: State = "starting"
    life: int = 0
    handle: Handle[A] | None = None


class Supervisor(Generic[A]):
    """Starts actors, knows which of them serve, and replaces those that are lost.

    `deadline`: for each start. `restarts`: how often one that was lost is tried to be started again in a row. `changed`
    is called whenever an actor serves again or is retired. For use from a single event loop.
    """

    def __init__(
        self,
        recipes: Sequence[Recipe[A]],
        deadline: Deadline,
        restarts: int = 0,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._members = {recipe.id: _Member(recipe) for recipe in recipes}
        self._deadline = deadline
        self._restarts = restarts
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.losses = 0
        """Actors that were lost."""
        self.last_failure = ""
        """Why the last start failed."""

    async def start(self) -> list[list[str]]:
        """Start all of them side by side; the lines of each. Where one does not start all are ended.

        Raises what that one's start raised, or WaitExpired.
        """
        try:
            return await together(*(self._start(member) for member in self._members.values()))
        except BaseException:
            await self.close()
            raise

    def serving(self) -> list[Handle[A]]:
        """Those that can be asked, in the order of their recipes."""
        return [m.handle for m in self._members.values() if m.state == "serving" and m.handle is not None]

    def serves(self, handle: Handle[A]) -> bool:
        """Whether this life of the actor is its present one, and can be asked."""
        member = self._members[handle.id]
        return member.state == "serving" and member.life == handle.life

    def exhausted(self) -> bool:
        """Whether none serves, and none will again."""
        return self._closed or all(member.state == "retired" for member in self._members.values())

    def lose(self, handle: Handle[A], why: str) -> None:
        """This life of the actor is over: end its process and start the next life, if that has not been done yet."""
        if self._closed or not self.serves(handle):
            return
        log.warning("%s is lost: %s", handle.id, why)
        self.losses += 1
        member = self._members[handle.id]
        self._end(member)
        member.state = "lost"
        task = asyncio.get_running_loop().create_task(self._restart(member))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all actors."""
        self._closed = True
        for member in self._members.values():
            self._end(member)
            member.state = "retired"
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _restart(self, member: _Member[A]) -> None:
        for attempt in range(self._restarts):
            await asyncio.sleep(RESTART_PAUSE_S * attempt)
            try:
                await self._start(member)
            except (UserError, ActorFailed, RayError) as error:
                self.last_failure = str(error)
                log.warning("%s does not start: %s", member.recipe.id, error)
                self._end(member)
            else:
                break
        else:
            member.state = "retired"
        self._changed()

    async def _start(self, member: _Member[A]) -> list[str]:
        """Begin the next life."""
        recipe = member.recipe
        member.state = "starting"
        member.life += 1
        handle = Handle.create(recipe.id, member.life, recipe.actor_class, recipe.arguments, recipe.options)
        member.handle = handle
        begun = time.monotonic()
        location = await handle.call(recipe.actor_class.location).within(self._deadline)
        member.handle = handle = replace(handle, location=location)
        left = replace(self._deadline, seconds=round(self._deadline.seconds - (time.monotonic() - begun), 1))
        notes: list[str] = await handle.call(recipe.actor_class.start).within(left)
        member.state = "serving"
        return notes

    def _end(self, member: _Member[A]) -> None:
        handle, member.handle = member.handle, None
        if handle is not None:
            with contextlib.suppress(RayError):
                handle.kill()
