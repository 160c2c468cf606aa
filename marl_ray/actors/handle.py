"""Typed handles of Ray actors: calls with deadlines, and errors that name the actor.

No other module of the package calls `.remote`. A call names a method of the actor's class, so mypy checks arguments and
result:

    lengths = await handle.call(GenerationActor.prompt_lengths, prompts).within(deadline)

| in the actor | raised by the call |
|---|---|
| its process has ended, or its result is lost with its node | ActorDied with the last location |
| Ray has killed its process because the node was short of memory | ActorDied with this reason |
| ActorBroken | ActorBroken, prefixed with the actor; a subclass of ActorDied |
| no result in time | DeadlineExceeded with the actor and the setting |
| UserError | UserError, prefixed with actor and node; ActorDied and DeadlineExceeded unchanged |
| anything else | ActorFailed: a bug, with the remote traceback as its cause |
"""

from __future__ import annotations

import gc
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, overload

import ray
from ray import exceptions

from marl_ray.core.concurrency import DeadlineExceeded, wait_within
from marl_ray.core.errors import RejectedMessages, UserError
from marl_ray.core.ids import ActorId

A = TypeVar("A", bound="Actor")
P = ParamSpec("P")
R = TypeVar("R")


class ActorDied(UserError):
    """The actor's process has ended."""


class ActorBroken(ActorDied):
    """The actor's process is running but unusable, because its engine or process group has failed for good."""


class ActorFailed(RuntimeError):
    """A bug: the actor raised an error that is no UserError. The cause has the remote traceback."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time limit in seconds, the setting in `resources.deadlines` that defines it (or empty), and the purpose of the
    wait (`to update its weights`)."""

    seconds: float
    setting: str
    purpose: str


@dataclass(frozen=True, slots=True)
class Location:
    """Host and process id of an actor."""

    host: str
    ip: str
    process: int

    def __str__(self) -> str:
        return f"process {self.process} on {self.ip}"


@contextmanager
def without_gc() -> Iterator[None]:
    """Disable garbage collection during imports and model loading, and exempt the loaded objects from later
    collections. Collections take 8 % of the time of importing torch."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.collect()
    gc.freeze()


class Actor(ABC):
    """The base class of all Ray actors. The constructor only stores its arguments, so that the location is known before
    anything can fail. `start` does the work, and its errors reach the caller unchanged."""

    concurrency_groups: ClassVar[Mapping[str, int]] = {}
    """Number of threads per concurrency group (`ray.method(concurrency_group=name)`), for methods that must answer
    while others run."""

    def location(self) -> Location:
        """Return host and process id."""
        return Location(socket.gethostname(), ray.util.get_node_ip_address(), os.getpid())

    @abstractmethod
    def start(self) -> Any:
        """Prepare the actor to serve. Returns a list of notes for the console."""

    @abstractmethod
    def heartbeat(self) -> Any:
        """Return promptly as long as the actor works, whatever it is doing."""


@dataclass(frozen=True, eq=False)
class Handle(Generic[A]):
    """One incarnation, counted from 1, of an actor of class `A`. Handles can be sent to other actors."""

    id: ActorId
    actor: Any
    incarnation: int
    location: Location | None = None
    """Location of the process; None until it is known."""

    @classmethod
    def create(
        cls, id: ActorId, incarnation: int, actor_class: type[A], arguments: Sequence[Any], options: Mapping[str, Any]
    ) -> Handle[A]:
        """Create an incarnation of an actor without waiting for it. `options` are Ray's actor options."""
        remote: Any = ray.remote
        groups = actor_class.concurrency_groups
        if groups:
            remote = remote(concurrency_groups=dict(groups))
        remote_class = remote(actor_class)
        # The supervisor restarts actors: a restart by Ray would serve without its initialisation.
        actor = remote_class.options(max_restarts=0, **options).remote(*arguments)
        return cls(id, actor, incarnation)

    @overload
    def call(
        self, method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
    ) -> Call[R]: ...

    @overload
    def call(self, method: Callable[Concatenate[A, P], R], *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...

    def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Call[Any]:
        """Submit a method call without waiting for its result."""
        remote_method = getattr(self.actor, method.__name__)
        return Call(self, method.__name__, remote_method.remote(*args, **kwargs))

    def kill(self) -> None:
        """Kill the process without waiting for its end."""
        ray.kill(self.actor, no_restart=True)


@dataclass(frozen=True, eq=False)
class Call(Generic[R]):
    """A submitted method call."""

    handle: Handle[Any]
    method: str
    reference: Any

    async def within(self, deadline: Deadline) -> R:
        """Wait for the result. Raises the errors of the table above."""
        waited_for = f"{self.handle.id} {deadline.purpose}"
        try:
            return await wait_within(deadline.seconds, waited_for, deadline.setting, self.reference)
        except exceptions.RayError as error:
            raise self.translate(error) from error

    def translate(self, error: exceptions.RayError) -> Exception:
        """Return the error of the table above for an error of Ray."""
        id = self.handle.id
        location = self.handle.location
        process = location or "no process yet"
        # Errors of Ray: the process, its node or the answer is gone.
        if isinstance(error, exceptions.RayActorError):
            if location is None:
                return ActorDied(f"{id} died before it had started: {_last_line(error)}")
            return ActorDied(f"{id} died ({location})")
        if isinstance(error, exceptions.OutOfMemoryError):
            return ActorDied(f"{id} was ended by Ray, as its node was short of memory ({process})")
        if isinstance(error, exceptions.NodeDiedError | exceptions.ObjectLostError):
            return ActorDied(f"{id}'s answer is lost, with its node ({process})")
        if isinstance(error, exceptions.LocalRayletDiedError | exceptions.RpcError):
            return ActorDied(f"{id} cannot be called: {_last_line(error)}")
        # Errors that the method has raised.
        cause = error.cause if isinstance(error, exceptions.RayTaskError) else error
        if isinstance(cause, ActorBroken):
            return ActorBroken(f"{id} ({process}): {cause}")
        if isinstance(cause, ActorDied | DeadlineExceeded):
            return cause
        if isinstance(cause, UserError):
            node = location.ip if location else "no node yet"
            text = f"{id} on {node}: {cause}"
            if isinstance(cause, RejectedMessages):
                return RejectedMessages(text)
            return UserError(text)
        # The text of an error of Ray has a traceback, whose last line is the message.
        message = _last_line(cause) if cause is error else str(cause)
        return ActorFailed(f"{id} ({process}) failed in {self.method}: {type(cause).__name__}: {message}")


def wait_all(
    calls: Sequence[Call[R]],
    deadline: Deadline,
    on_result: Callable[[R | Exception], None] = lambda result: None,
) -> list[R | Exception]:
    """Wait for several calls and return each result, or the error that `Call.within` would raise, in order. Call
    `on_result` with each of them as soon as it is known; the other calls may depend on it."""
    end = time.monotonic() + deadline.seconds
    results: dict[Call[R], R | Exception] = {}
    by_reference = {call.reference: call for call in calls}
    while by_reference:
        remaining_s = max(0.0, end - time.monotonic())
        ready, _ = ray.wait(list(by_reference), num_returns=1, timeout=remaining_s)
        # Without a result in time, `ray.get` raises GetTimeoutError for each remaining call.
        for reference in ready or list(by_reference):
            call = by_reference.pop(reference)
            try:
                results[call] = ray.get(reference, timeout=0.0)
            except exceptions.GetTimeoutError:
                waited_for = f"{call.handle.id} {deadline.purpose}"
                results[call] = DeadlineExceeded.after(deadline.seconds, waited_for, deadline.setting)
            except exceptions.RayError as error:
                results[call] = call.translate(error)
            on_result(results[call])
    return [results[call] for call in calls]


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
