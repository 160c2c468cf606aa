"""Supervision of actors: start, initialise, monitor, restart, retire.

    starting --(start returns)--> initializing --(initialize returns)--> serving <--(heartbeat)--> suspect
       ^                                                                    |                         |
       +-----(a restart is left)------------- lost <------------------------+-------------------------+
                                               +--(none is left)--> retired

Callers report a loss with `report_lost` and wait for actors with `wait_ready`, which raises errors that a restart does
not repair: errors of a start that are no loss (a bug, a file system error), and the loss of two incarnations of an
actor with the same error before any actor has succeeded (`confirm_success`). An actor is initialised before it serves:
a generator receives its policy's weights, a learner its state. Every phase has a deadline (that of `RestartLimits`, or
of the calls in `initialize`), so `wait_ready` needs none. A start waits for its `start_lock` as long as others hold it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, NoReturn, TypeVar

from ray.exceptions import RayError

from marl_ray.actors.handle import Actor, ActorFailed, Deadline, Handle
from marl_ray.core.concurrency import Condition, DeadlineExceeded, gather
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId
from marl_ray.core.text import pluralize

logger = logging.getLogger(__name__)

RESTART_WINDOW_S = 3600.0
RESTART_PAUSE_S = 2.0
"""Pause before the second attempt of a restart; each further attempt waits this much longer."""
MAX_FAILED_STARTS = 4
"""Consecutive failed starts after which an actor is retired."""

State = Literal["starting", "initializing", "serving", "suspect", "lost", "retired"]
A = TypeVar("A", bound=Actor)
Initialize = Callable[[Handle[A]], Awaitable[None]]
"""Prepares a started actor to serve."""


async def skip_initialization(handle: Handle[Any]) -> None:
    """Initialise nothing."""


@dataclass(frozen=True, slots=True)
class ActorSpec(Generic[A]):
    """The class, arguments and Ray options (CPUs, GPUs, environment, placement) of every incarnation of an actor."""

    id: ActorId
    actor_class: type[A]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RestartLimits:
    """The deadline of each start, the maximum number of restarts of one actor within RESTART_WINDOW_S, and the maximum
    seconds without a heartbeat while an actor serves (None: no heartbeats).

    `remedy` tells the user what to change if two incarnations fail alike before any success (None: restart further)."""

    start: Deadline
    restarts: int = 0
    heartbeat_s: float | None = None
    remedy: str | None = None


@dataclass(slots=True)
class _Member(Generic[A]):
    spec: ActorSpec[A]
    state: State = "starting"
    previous_incarnations: int = 0
    """Incarnations of a removed actor of the same id."""
    incarnation: int = 0
    handle: Handle[A] | None = None
    restarts: list[float] = field(default_factory=list)
    """Times of restarts within the window, on the monotonic clock."""
    last_loss: str = ""
    """Reason of the last loss, without the process."""

    @property
    def is_serving(self) -> bool:
        return self.state in ("serving", "suspect")


class Supervisor(Generic[A]):
    """Starts actors, tracks which of them serve, and replaces lost actors. For use from a single event loop.

    Each start, without its initialisation, holds `start_lock()`. `on_change` is called whenever an actor begins to
    serve or is retired.
    """

    def __init__(
        self,
        specs: Sequence[ActorSpec[A]],
        limits: RestartLimits,
        initialize: Initialize[A] = skip_initialization,
        start_lock: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.lost_count = 0
        self.last_failure = ""
        """Reason why the last actor was retired."""
        self._members = {spec.id: _Member(spec) for spec in specs}
        self._removed: dict[ActorId, int] = {}
        """Last incarnation of each removed actor."""
        self._limits = limits
        self._initialize_actor = initialize
        self._start_lock = start_lock
        self._on_change = on_change
        self._tasks: set[asyncio.Task[None]] = set()
        self._condition = Condition()
        self._closed = False
        self._succeeded = False
        self._error: Exception | None = None
        """Error that a restart does not repair."""

    async def start(self) -> list[list[str]]:
        """Start all actors in parallel and return the notes of each. If a start fails, end all and raise its error."""
        try:
            return await gather(*(self._start(member) for member in self._members.values()))
        except BaseException:
            await self.close()
            raise

    def serving(self) -> list[Handle[A]]:
        """Return the handles of serving actors, in the order of their specs."""
        handles = []
        for member in self._members.values():
            if member.is_serving and member.handle is not None:
                handles.append(member.handle)
        return handles

    def is_serving(self, handle: Handle[A]) -> bool:
        """Return whether this incarnation is the current one and serves."""
        member = self._members.get(handle.id)
        return member is not None and member.is_serving and member.incarnation == handle.incarnation

    def is_suspect(self, handle: Handle[A]) -> bool:
        """Return whether a heartbeat of this incarnation is overdue."""
        return self.is_serving(handle) and self._members[handle.id].state == "suspect"

    async def wait_ready(self, all_members: bool = False) -> list[Handle[A]]:
        """Wait until one actor serves, or all with `all_members`, and return the serving actors. Raises UserError with
        the cause if that cannot happen any more."""

        def is_ready() -> bool:
            needed = len(self._members) if all_members else 1
            return len(self.serving()) >= needed

        def is_hopeless() -> bool:
            return self._is_hopeless() or (all_members and bool(self.retired()))

        # Without a deadline: every phase of a start has one (see above).
        await self._condition.wait_for(lambda: is_ready() or is_hopeless())
        if self._error is not None:
            raise self._error
        if not is_ready():
            raise UserError(self.last_failure)
        return self.serving()

    async def raise_loss(self) -> NoReturn:
        """Wait until no actor can serve any more, and raise the error of `wait_ready`."""
        await self._condition.wait_for(self._is_hopeless)
        raise self._error or UserError(self.last_failure)

    def _is_hopeless(self) -> bool:
        return self._error is not None or self.exhausted()

    def exhausted(self) -> bool:
        """Return whether no actor serves or will serve again."""
        return self._closed or all(member.state == "retired" for member in self._members.values())

    def report_lost(self, handle: Handle[A], reason: str) -> None:
        """End this incarnation and start the next one, unless it has been replaced already."""
        if self._closed or not self.is_serving(handle):
            return
        member = self._members[handle.id]
        if not self._retire_if_repeated(member, reason):
            self._replace_lost(member, reason)

    def _retire_if_repeated(self, member: _Member[A], reason: str) -> bool:
        """Return whether the previous incarnation ended with the same error before any success, and end the actor."""
        previous = member.last_loss
        location = member.handle and member.handle.location
        # Incarnations end alike if their errors are the same but for the process.
        member.last_loss = reason.replace(str(location), "")
        is_the_same = member.last_loss == previous
        if self._limits.remedy is None or self._succeeded or not is_the_same:
            return False
        self._end(member)
        member.state = "retired"
        self._error = UserError(f"{reason}, twice in a row and before any result: {self._limits.remedy}")
        self._notify()
        return True

    def confirm_success(self) -> None:
        """Record that an actor has done its work once, so that further losses are no fault of the settings."""
        self._succeeded = True

    def initialize_again(self, handle: Handle[A]) -> None:
        """Stop serving from this incarnation until it has been initialised again."""
        if self._closed or not self.is_serving(handle):
            return
        member = self._members[handle.id]
        member.state = "initializing"
        self._spawn(self._repeat_initialization(member, handle))

    def add(self, spec: ActorSpec[A]) -> None:
        """Start one more actor, which serves after its initialisation."""
        # Incarnations are counted on, so that a late answer of the removed actor is not taken for the new one's.
        previous = self._removed.pop(spec.id, 0)
        member = _Member(spec, previous_incarnations=previous, incarnation=previous)
        self._members[spec.id] = member
        self._spawn(self._restart(member, ""))

    def remove(self, id: ActorId) -> None:
        """End one actor for good; its requests in flight fail."""
        member = self._members.pop(id)
        self._removed[id] = member.incarnation
        self._end(member)
        member.state = "retired"
        logger.info(f"{id} was removed")
        self._notify()

    def retired(self) -> list[ActorId]:
        """Return the actors that are lost for good."""
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
        self._notify()

    def _replace_lost(self, member: _Member[A], reason: str) -> None:
        self.lost_count += 1
        logger.warning(f"{member.spec.id} is lost: {reason}")
        self._end(member)
        member.state = "lost"
        self._spawn(self._restart(member, reason))

    async def _repeat_initialization(self, member: _Member[A], handle: Handle[A]) -> None:
        try:
            await self._initialize(member, handle)
        except (UserError, ActorFailed) as error:
            if member.handle is handle:  # not removed meanwhile
                self._replace_lost(member, str(error))

    async def _restart(self, member: _Member[A], reason: str) -> None:
        """Start the next incarnation, in as many attempts as allowed. `reason` is the cause of the last loss."""
        failures = 0
        given_up = False
        while not given_up and self._may_start(member):
            await asyncio.sleep(RESTART_PAUSE_S * failures)
            if member.state == "retired":
                return  # removed meanwhile
            try:
                await self._start(member)
            except (UserError, ActorFailed, RayError) as error:
                if member.state == "retired":
                    return
                if not isinstance(error, DeadlineExceeded) and self._retire_if_repeated(member, str(error)):
                    return
                self._end(member)
                failures += 1
                reason = str(error)
                logger.warning(f"{member.spec.id} does not start: {reason}")
                if isinstance(error, DeadlineExceeded):
                    # The actor waits for a place, for example after the loss of a node, while others serve.
                    given_up = not self.serving()
                else:
                    given_up = failures >= MAX_FAILED_STARTS
            except Exception as error:  # a bug, or an error of a file system, which a restart does not repair
                self._end(member)
                member.state = "retired"
                self._error = error
                self._notify()
                return
            else:
                logger.info(f"{member.spec.id} serves in its incarnation number {member.incarnation}")
                return
        self._retire(member, reason, given_up)

    def _may_start(self, member: _Member[A]) -> bool:
        """Return whether a restart is left, and count it. The first start of an actor is no restart."""
        # Losses of a long run, such as lost nodes, are forgotten after a while.
        now = time.monotonic()
        member.restarts = [at for at in member.restarts if at > now - RESTART_WINDOW_S]
        if member.incarnation == member.previous_incarnations:
            return True
        if len(member.restarts) >= self._limits.restarts:
            return False
        member.restarts.append(now)
        return True

    def _retire(self, member: _Member[A], reason: str, given_up: bool) -> None:
        id = member.spec.id
        limit = f"resources.{id.kind}.max_restarts allows {self._limits.restarts} restarts within an hour"
        if given_up:
            limit = "it does not start"
        self.last_failure = f"{id} is lost for good ({limit}): {reason}"
        member.state = "retired"
        serving = len(self.serving())
        if serving:
            logger.warning(f"{id} is lost for good ({limit}); {pluralize(serving, 'other')} of its kind continue")
        elif id.kind != "sandbox":  # without sandbox workers, programs are reported as infrastructure errors
            self.last_failure += "; --resume continues the run"
        self._notify()

    async def _start(self, member: _Member[A]) -> list[str]:
        """Start the next incarnation and return its notes."""
        spec = member.spec
        deadline = self._limits.start
        member.state = "starting"
        member.incarnation += 1
        async with self._start_lock():
            if member.state == "retired":  # removed while it waited for the lock
                raise UserError(f"{spec.id} was removed before it started")
            handle = Handle.create(spec.id, member.incarnation, spec.actor_class, spec.arguments, spec.options)
            member.handle = handle  # `close` ends it while it starts
            begin = time.monotonic()
            location = await handle.call(spec.actor_class.location).within(deadline)
            handle = replace(handle, location=location)
            member.handle = handle
            elapsed = time.monotonic() - begin
            remaining = replace(deadline, seconds=round(deadline.seconds - elapsed, 1))
            notes: list[str] = await handle.call(spec.actor_class.start).within(remaining)
        await self._initialize(member, handle)
        if self._limits.heartbeat_s is not None:
            self._spawn(self._monitor(member, handle, self._limits.heartbeat_s))
        return notes

    async def _initialize(self, member: _Member[A], handle: Handle[A]) -> None:
        member.state = "initializing"
        await self._initialize_actor(handle)
        member.state = "serving"  # no coroutine has run since the initialisation returned, so no update was missed
        self._notify()

    async def _monitor(self, member: _Member[A], handle: Handle[A], heartbeat_s: float) -> None:
        """Request heartbeats as long as this incarnation serves or is initialised again. A late heartbeat is requested
        twice, because the first answer may only look late if this process was suspended."""
        # A pause and two requests fit into the time: 1/4 + 1/2 of it, and the second request.
        deadline = Deadline(heartbeat_s / 2, "heartbeat_s", "to answer a heartbeat")

        async def request_heartbeat() -> None:
            try:
                await handle.call(member.spec.actor_class.heartbeat).within(deadline)
            except DeadlineExceeded:
                await handle.call(member.spec.actor_class.heartbeat).within(deadline)

        while member.handle is handle:
            await asyncio.sleep(heartbeat_s / 4)
            heartbeat = asyncio.ensure_future(request_heartbeat())
            try:
                answered, _ = await asyncio.wait({heartbeat}, timeout=heartbeat_s / 4)
                if not answered and self.is_serving(handle):
                    member.state = "suspect"
                await heartbeat
            except (UserError, ActorFailed) as error:
                self.report_lost(handle, str(error))
            finally:
                heartbeat.cancel()
            if self.is_suspect(handle):
                member.state = "serving"
                self._notify()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _notify(self) -> None:
        self._condition.notify_all()
        self._on_change()

    def _end(self, member: _Member[A]) -> None:
        handle = member.handle
        member.handle = None
        if handle is not None:
            with contextlib.suppress(RayError):  # Ray has lost it already
                handle.kill()
