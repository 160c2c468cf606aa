"""The incarnation of actors, of every kind: started, fitted, serving, lost, replaced.

    starting --(start has answered)--> fitting --(fit is done)--> serving <--(signs of life)--> suspect
       ^                                                             |                             |
       +-----(a restart is left)------- lost <-----------------------+-----------------------------+
                                         +--(none is left)--> retired

A incarnation is counted from 1, and every incarnation has a handle of its own: whoever still holds the handle of an earlier one can
neither end nor replace the actor of a later one. Who notices a loss says so with `lose`; who needs an actor waits for
it with `ready`. Before an actor serves again it is fitted: a generator gets its policy's weights, a learner its state.
What a start raises that is no loss, a bug or a file system's trouble, ends every wait.

| phase | deadline | then |
|---|---|---|
| starting | `RestartPolicy.start` | one more start; where nobody else serves, retired: there is no place for it |
| fitting | of each call that it makes | one more start |
| fitting again, after `mark_stale` | the same | lost |
| serving | `RestartPolicy.heartbeat_s` for a sign of life | lost |

So `ready`, which waits for these, needs no deadline of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

from ray.exceptions import RayError

from marl_ray.actors.handle import Actor, ActorFailed, Deadline, Handle
from marl_ray.core.concurrency import Condition, DeadlineExceeded, gather
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId
from marl_ray.core.text import pluralize

logger = logging.getLogger(__name__)

RESTART_WINDOW_S = 3600.0
RESTART_PAUSE_S = 2.0
"""Before the second try of a incarnation; before each further one as much more."""
MAX_FAILED_STARTS = 4
"""In a row, after which a further one would fail too."""

State = Literal["starting", "fitting", "serving", "suspect", "lost", "retired"]


A = TypeVar("A", bound=Actor)


@dataclass(frozen=True, slots=True)
class ActorSpec(Generic[A]):
    """What an actor is made from, in each of its incarnations. `options` are Ray's: cores, GPUs, environment, place."""

    id: ActorId
    actor_class: type[A]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How actors are looked after.

    `start`: the deadline of each start. `restarts`: how often one of them may be started again within
    RESTART_WINDOW_S. `heartbeat_s`: how long one that serves may give no sign of life; None: nobody asks.
    """

    start: Deadline
    restarts: int = 0
    heartbeat_s: float | None = None


@dataclass(slots=True)
class _Member(Generic[A]):
    recipe: ActorSpec[A]
    state: State = "starting"
    former: int = 0
    """Lives of one of its name that was taken away."""
    incarnation: int = 0
    handle: Handle[A] | None = None
    restarts: list[float] = field(default_factory=list)
    """When, on the monotonic clock, within the window."""

    @property
    def is_serving(self) -> bool:
        return self.state in ("serving", "suspect")


class Supervisor(Generic[A]):
    """Starts actors, knows which of them serve, and replaces those that are lost.

    `changed` is called whenever an actor serves again or is retired. For use from a single
    event loop.
    """

    def __init__(
        self,
        recipes: Sequence[ActorSpec[A]],
        care: RestartPolicy,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.fit: Callable[[Handle[A]], Awaitable[None]] | None = None
        """Makes a started actor ready to serve; may be set later."""
        self.turn: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext
        """What each start, without its fit, is done in; may be set later."""
        self.lost_count = 0
        """Actors that were lost."""
        self.last_failure = ""
        """Why the last one was retired."""
        self._members = {recipe.id: _Member(recipe) for recipe in recipes}
        self._removed: dict[ActorId, int] = {}
        """The last incarnations of those that were taken away."""
        self._care = care
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()
        self._condition = Condition()
        self._closed = False
        self._bug: Exception | None = None
        """What a start raised that is no loss."""

    async def start(self) -> list[list[str]]:
        """Start all of them side by side; the lines of each. Where one does not start all are ended.

        Raises what that one's start raised, or DeadlineExceeded.
        """
        try:
            return await gather(*(self._start(member) for member in self._members.values()))
        except BaseException:
            await self.close()
            raise

    def serving(self) -> list[Handle[A]]:
        """Those that can be asked, in the order of their recipes."""
        return [m.handle for m in self._members.values() if m.is_serving and m.handle is not None]

    def is_serving(self, handle: Handle[A]) -> bool:
        """Whether this incarnation of the actor is its present one, and can be asked."""
        member = self._members.get(handle.id)
        return member is not None and member.is_serving and member.incarnation == handle.incarnation

    def is_suspect(self, handle: Handle[A]) -> bool:
        """Whether this incarnation of the actor owes a sign of life."""
        return self.is_serving(handle) and self._members[handle.id].state == "suspect"

    async def wait_ready(self, all_members: bool = False) -> list[Handle[A]]:
        """Those that serve, as soon as there is one; with `all_members`, as soon as all do. Raises UserError, with the
        cause, where that will never be."""
        await self._condition.wait_for(lambda: self._enough(all_members) or self._hopeless(all_members))
        if self._bug is not None:
            raise self._bug
        if not self._enough(all_members):
            raise UserError(self.last_failure)
        return self.serving()

    def _enough(self, all_members: bool) -> bool:
        serving = len(self.serving())
        return serving == len(self._members) if all_members else serving > 0

    def _hopeless(self, all_members: bool) -> bool:
        return (
            self._bug is not None
            or self.exhausted()
            or (all_members and any(m.state == "retired" for m in self._members.values()))
        )

    def exhausted(self) -> bool:
        """Whether none serves, and none will again."""
        return self._closed or all(member.state == "retired" for member in self._members.values())

    def report_lost(self, handle: Handle[A], why: str) -> None:
        """This incarnation of the actor is over: end its process and start the next incarnation, if that has not been done yet."""
        if self._closed or not self.is_serving(handle):
            return
        self._lost(self._members[handle.id], why)

    def mark_stale(self, handle: Handle[A]) -> None:
        """This incarnation of the actor has not got any more what it was fitted with: it serves when it was fitted again."""
        if self._closed or not self.is_serving(handle):
            return
        member = self._members[handle.id]
        member.state = "fitting"
        self._spawn(self._fit_again(member, handle))

    def add(self, recipe: ActorSpec[A]) -> None:
        """One more actor: started now, and serving after it was fitted."""
        former = self._removed.pop(recipe.id, 0)
        member = self._members[recipe.id] = _Member(recipe, former=former, incarnation=former)
        self._spawn(self._replace(member, ""))

    def remove(self, id: ActorId) -> None:
        """One actor fewer: its process is ended, and what it was asked fails."""
        member = self._members.pop(id)
        self._removed[id] = member.incarnation
        self._end(member)
        member.state = "retired"
        logger.info(f"{id} was taken away")
        self._tell()

    def retired(self) -> list[ActorId]:
        """Those that are lost for good."""
        return [id for id, member in self._members.items() if member.state == "retired"]

    async def close(self) -> None:
        """End all actors."""
        self._closed = True
        self.last_failure = self.last_failure or "the run is being ended"
        for member in self._members.values():
            self._end(member)
            member.state = "retired"
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tell()

    def _lost(self, member: _Member[A], why: str) -> None:
        self.lost_count += 1
        logger.warning(f"{member.recipe.id} is lost: {why}")
        self._end(member)
        member.state = "lost"
        self._spawn(self._replace(member, why))

    async def _fit_again(self, member: _Member[A], handle: Handle[A]) -> None:
        try:
            await self._fit(member, handle)
        except (UserError, ActorFailed) as error:
            if member.handle is handle:  # not taken away meanwhile
                self._lost(member, str(error))

    async def _replace(self, member: _Member[A], why: str) -> None:
        """Start the next incarnation, in as many tries as are allowed. `why` the last one ended."""
        failures = 0
        given_up = False
        while not given_up and self._may_start(member):
            await asyncio.sleep(RESTART_PAUSE_S * failures)
            if member.state == "retired":
                return  # taken away meanwhile
            try:
                await self._start(member)
            except (UserError, ActorFailed, RayError) as error:
                if member.state == "retired":
                    return
                self._end(member)
                failures, why = failures + 1, str(error)
                logger.warning(f"{member.recipe.id} does not start: {why}")
                # Out of time it waits for a place, as on a node that is gone: the others go on, if there are any.
                given_up = not self.serving() if isinstance(error, DeadlineExceeded) else failures == MAX_FAILED_STARTS
            except Exception as error:
                self._end(member)
                member.state, self._bug = "retired", error
                self._tell()
                return
            else:
                logger.info(f"{member.recipe.id} serves in its incarnation number {member.incarnation}")
                return
        self._retire(member, why, given_up)

    def _may_start(self, member: _Member[A]) -> bool:
        """Whether a restart is left, which is counted. The first start is none."""
        now = time.monotonic()
        member.restarts = [at for at in member.restarts if at > now - RESTART_WINDOW_S]
        if member.incarnation == member.former:
            return True
        if len(member.restarts) >= self._care.restarts:
            return False
        member.restarts.append(now)
        return True

    def _retire(self, member: _Member[A], why: str, given_up: bool) -> None:
        who, left = member.recipe.id, len(self.serving())
        setting = f"resources.{who.kind}.max_restarts"
        reason = "it does not start" if given_up else f"{setting} allows {self._care.restarts} restarts within an hour"
        resume = "" if who.kind == "sandbox" or left else "; --resume goes on"
        self.last_failure = f"{who} is lost for good ({reason}): {why}{resume}"
        member.state = "retired"
        if left:
            logger.warning(f"{who} is lost for good ({reason}); {pluralize(left, 'other')} of its kind go on")
        self._tell()

    async def _start(self, member: _Member[A]) -> list[str]:
        """Begin the next incarnation."""
        recipe, deadline = member.recipe, self._care.start
        member.state = "starting"
        member.incarnation += 1
        async with self.turn():
            handle = Handle.create(recipe.id, member.incarnation, recipe.actor_class, recipe.arguments, recipe.options)
            member.handle = handle
            begun = time.monotonic()
            location = await handle.call(recipe.actor_class.location).within(deadline)
            member.handle = handle = replace(handle, location=location)
            left = replace(deadline, seconds=round(deadline.seconds - (time.monotonic() - begun), 1))
            notes: list[str] = await handle.call(recipe.actor_class.start).within(left)
        await self._fit(member, handle)
        if self._care.heartbeat_s is not None:
            self._spawn(self._watch(member, handle, self._care.heartbeat_s))
        return notes

    async def _fit(self, member: _Member[A], handle: Handle[A]) -> None:
        """Fit it, and let it serve."""
        if self.fit is not None:
            member.state = "fitting"
            await self.fit(handle)
        # Nothing else has run since the fit was done, so that it is up to date.
        member.state = "serving"
        self._tell()

    async def _watch(self, member: _Member[A], handle: Handle[A], heartbeat_s: float) -> None:
        """Ask for signs of life, as long as this incarnation serves, or is fitted again.

        Twice before it is lost: where this process itself stood still, the first answer may look late.
        """
        deadline = Deadline(heartbeat_s / 2, "heartbeat_s", "to give a sign of life")

        async def ask() -> None:
            try:
                await handle.call(member.recipe.actor_class.alive).within(deadline)
            except DeadlineExceeded:
                await handle.call(member.recipe.actor_class.alive).within(deadline)

        while member.handle is handle:
            await asyncio.sleep(heartbeat_s / 4)
            sign = asyncio.ensure_future(ask())
            try:
                answered, _ = await asyncio.wait({sign}, timeout=heartbeat_s / 4)
                if not answered and self.is_serving(handle):
                    member.state = "suspect"
                await sign
            except (UserError, ActorFailed) as error:
                self.report_lost(handle, str(error))
            finally:
                sign.cancel()
            if self.is_suspect(handle):
                member.state = "serving"
                self._tell()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell(self) -> None:
        self._condition.notify_all()
        self._changed()

    def _end(self, member: _Member[A]) -> None:
        handle, member.handle = member.handle, None
        if handle is not None:
            with contextlib.suppress(RayError):
                handle.kill()
