"""An actor as others hold it: who it is, what it is asked, how long that may take, and what went wrong.

Nothing else in the package calls `.remote`. A call names a method of the actor's class, so that mypy knows what goes in
and what comes out:

    lengths = await handle.call(GenerationActor.prompt_lengths, prompts).within(deadline)

| in the actor | raised here |
|---|---|
| its process is gone, or its answer with its node | ActorDied, which says where it was |
| Ray has ended its process, as its node was short of memory | ActorDied, which says so |
| ActorBroken: it can do no more | the same, with the actor before the text; it is an ActorDied too |
| no answer in time | DeadlineExceeded, which names it and the setting |
| UserError | UserError, with the actor and its node before the text; ActorDied and DeadlineExceeded as they are |
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
from ray.exceptions import (
    GetTimeoutError,
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    RpcError,
)

from marl_ray.core.concurrency import DeadlineExceeded, wait_within
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId

A = TypeVar("A", bound="Actor")
P = ParamSpec("P")
R = TypeVar("R")


class ActorDied(UserError):
    """The actor's process is gone."""


class ActorBroken(ActorDied):
    """The actor's process is there and of no use: what it works with has failed, and would fail again."""


class ActorFailed(RuntimeError):
    """A bug: the actor raised what is no UserError. The cause has the remote traceback."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """How long to wait, in seconds, the setting that says so, and what for.

    Example:
        >>> Deadline(30.0, "sync_s", "to take the weights")
    """

    seconds: float
    setting: str
    purpose: str


@dataclass(frozen=True, slots=True)
class Location:
    """Where an actor's process is."""

    host: str
    ip: str
    process: int

    def __str__(self) -> str:
        return f"process {self.process} on {self.ip}"


@contextmanager
def loading() -> Iterator[None]:
    """What is loaded within stays: the garbage collector looks at it neither meanwhile (8 % of the time of importing
    torch) nor again and again later."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.collect()
    gc.freeze()


class Actor(ABC):
    """What every actor's class begins with.

    The constructor only keeps its arguments, so that the location is known before anything fails; `start`, whose errors
    arrive as they are, does the rest.
    """

    concurrency_groups: ClassVar[Mapping[str, int]] = {}
    """Threads, by name, for methods that are to answer while others work: `ray.method(concurrency_group=name)`."""

    def location(self) -> Location:
        """Answers once there is a process."""
        return Location(socket.gethostname(), ray.util.get_node_ip_address(), os.getpid())

    @abstractmethod
    def start(self) -> Any:
        """Answers once the actor can serve, with a list of lines that people should know."""

    @abstractmethod
    def alive(self) -> Any:
        """Answers soon as long as what the actor works with goes on, whatever it works on."""


@dataclass(frozen=True, eq=False)
class Handle(Generic[A]):
    """One actor of class `A` in one of its incarnations, counted from 1. It can be sent to other actors."""

    id: ActorId
    actor: Any
    incarnation: int
    location: Location | None = None
    """None until it has told."""

    @classmethod
    def create(
        cls, id: ActorId, incarnation: int, actor_class: type[A], arguments: Sequence[Any], options: Mapping[str, Any]
    ) -> Handle[A]:
        """Begin a incarnation of an actor; returns at once. `options` are Ray's."""
        remote: Any = ray.remote
        groups = actor_class.concurrency_groups
        remote_class = remote(concurrency_groups=dict(groups))(actor_class) if groups else remote(actor_class)
        actor = remote_class.options(max_restarts=0, **options).remote(*arguments)
        return cls(id, actor, incarnation)

    @overload
    def call(
        self, method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
    ) -> Call[R]: ...

    @overload
    def call(self, method: Callable[Concatenate[A, P], R], *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...

    def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Call[Any]:
        """Ask the actor to run a method of its class; returns at once."""
        name = method.__name__
        return Call(self, name, getattr(self.actor, name).remote(*args, **kwargs))

    def kill(self) -> None:
        """End its process, without waiting for that."""
        ray.kill(self.actor, no_restart=True)


@dataclass(frozen=True, eq=False)
class Call(Generic[R]):
    """What an actor was asked, and where the answer will be."""

    handle: Handle[Any]
    method: str
    reference: Any

    async def within(self, deadline: Deadline) -> R:
        """The answer. Raises what the table above says."""
        waited_for = f"{self.handle.id} {deadline.purpose}"
        try:
            return await wait_within(deadline.seconds, waited_for, deadline.setting, self.reference)
        except RayError as error:
            raise self.translated(error) from error

    def translated(self, error: RayError) -> Exception:
        """Ray's error as one of ours."""
        who, location = self.handle.id, self.handle.location
        if isinstance(error, RayActorError):
            if location is None:
                return ActorDied(f"{who} died before it had started: {_last_line(error)}")
            return ActorDied(f"{who} died ({location})")
        if isinstance(error, OutOfMemoryError):
            return ActorDied(
                f"{who} was ended by Ray, as its node was short of memory ({location or 'no process yet'})"
            )
        if isinstance(error, NodeDiedError | ObjectLostError):
            return ActorDied(f"{who}'s answer is lost, with its node ({location or 'no process yet'})")
        if isinstance(error, LocalRayletDiedError | RpcError):
            return ActorDied(f"{who} cannot be asked: {_last_line(error)}")
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, ActorBroken):
            return ActorBroken(f"{who} ({location or 'no process yet'}): {cause}")
        if isinstance(cause, ActorDied | DeadlineExceeded):
            return cause
        if isinstance(cause, UserError):
            return UserError(f"{who} on {location.ip if location else 'no node yet'}: {cause}")
        what = f"{type(cause).__name__}: {_last_line(cause) if cause is error else cause}"
        return ActorFailed(f"{who} ({location or 'no process yet'}) failed in {self.method}: {what}")


def settle(calls: Sequence[Call[R]], deadline: Deadline) -> list[R | Exception]:
    """Every call's answer, or what `Call.within` would raise, in order; blocking, for a process without event loop."""
    until = time.monotonic() + deadline.seconds
    settled: list[R | Exception] = []
    for call in calls:
        try:
            settled.append(ray.get(call.reference, timeout=max(0.0, until - time.monotonic())))
        except GetTimeoutError:
            waited_for = f"{call.handle.id} {deadline.purpose}"
            settled.append(DeadlineExceeded.after(deadline.seconds, waited_for, deadline.setting))
        except RayError as error:
            settled.append(call.translated(error))
    return settled


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
