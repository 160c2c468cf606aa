"""What people ask of a run that goes on, through its folder. So the run listens nowhere, and whoever may write there
may ask, from any machine that sees it.

    requests/ID.json      {"agent": 1, "replicas": 3}: written by who asks, removed by the run when it takes it up
    requests/ID.answer    {"done": true, "text": "..."}: written by the run, removed by who asked

Each is whole or absent. Whoever takes the run's lock, or gives it back, removes all of them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marl_ray.core.errors import UserError
from marl_ray.core.files import write_atomically
from marl_ray.storage.run_lock import holder

POLL_INTERVAL_S = 1.0
MAX_BYTES = 4096
"""Of a request or an answer."""
MAX_REPLICAS = 10_000
NAME = re.compile(r"([0-9a-f]{16})\.json")


@dataclass(frozen=True, slots=True)
class ScaleRequest:
    """Let an agent have so many generators."""

    agent: int
    replicas: int


@dataclass(frozen=True, slots=True)
class ScaleReply:
    """What became of a request: done, or refused with the reason."""

    done: bool
    text: str


class ScaleRequests:
    """The files of all requests to one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def clear(self) -> None:
        """Remove all of them."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def put(self, request: ScaleRequest) -> str:
        """Write a request; returns its id. Raises OSError."""
        self.folder.mkdir(exist_ok=True)
        id = secrets.token_hex(8)
        write_atomically(self.folder / f"{id}.json", json.dumps(asdict(request)).encode())
        return id

    def take(self) -> list[tuple[str, ScaleRequest | UserError]]:
        """The requests that nobody has taken up, with their ids, or what is wrong with them; they are removed."""
        taken: list[tuple[str, ScaleRequest | UserError]] = []
        for path in self._files():
            found = NAME.fullmatch(path.name)
            if found is None:
                continue
            try:
                content = _read(path)
                path.unlink()
            except OSError:
                continue  # withdrawn, or not for us to read
            try:
                taken.append((found[1], _scale(content)))
            except UserError as error:
                taken.append((found[1], error))
        return taken

    def _files(self) -> list[Path]:
        try:
            return sorted(self.folder.iterdir())
        except OSError:  # mostly there is no folder; one that cannot be read must not end a run
            return []

    def settle(self, id: str, answer: ScaleReply) -> None:
        """Answer a request. Raises OSError."""
        write_atomically(self.folder / f"{id}.answer", json.dumps(asdict(answer)).encode())

    def answer(self, id: str) -> ScaleReply | None:
        """To a request, if it is there yet."""
        try:
            return ScaleReply(**json.loads((self.folder / f"{id}.answer").read_bytes()))
        except FileNotFoundError:
            return None

    def withdraw(self, id: str) -> None:
        """Leave nothing of a request."""
        for path in (self.folder / f"{id}.json", self.folder / f"{id}.answer"):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()  # unless there are others


def request_scaling(requests: ScaleRequests, lock: Path, request: ScaleRequest, deadline_s: float) -> str:
    """Ask the run that holds `lock`; returns what it says, once it is done. Raises UserError where it is not."""
    run = holder(lock)
    if run is None:
        raise UserError(f"{lock.parent} is not being run: only a run that goes on can be scaled")
    until = time.monotonic() + deadline_s
    try:
        id = requests.put(request)
    except OSError as error:
        raise UserError(f"{requests.folder} cannot be written ({error.strerror}): who asks must be able to") from None
    try:
        while True:
            goes_on = holder(lock) == run
            answer = requests.answer(id)
            if answer is not None:
                break
            if not goes_on:
                raise UserError(f"{lock.parent} has ended before it answered")
            if time.monotonic() > until:
                raise UserError(f"{run} has not answered in {deadline_s:g} s; what it says itself tells more")
            time.sleep(POLL_INTERVAL_S / 2)
    finally:
        requests.withdraw(id)
    if not answer.done:
        raise UserError(answer.text)
    return answer.text


def _read(path: Path) -> bytes:
    """The first bytes of a file, one more than it may have. Raises OSError for what is no file."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{path} is no file")
        return os.read(file, MAX_BYTES + 1)
    finally:
        os.close(file)


def _scale(content: bytes) -> ScaleRequest:
    """A request's content, which anybody may have written. Raises UserError."""
    if len(content) > MAX_BYTES:
        raise UserError(f"a request has no more than {MAX_BYTES} bytes")
    try:
        fields: Any = json.loads(content)
    except (ValueError, RecursionError):
        raise UserError("a request is JSON") from None
    if not isinstance(fields, dict) or set(fields) != {"agent", "replicas"}:
        raise UserError("a request has agent and replicas")
    agent, replicas = fields["agent"], fields["replicas"]
    if type(agent) is not int or type(replicas) is not int:
        raise UserError("agent and replicas are whole numbers")
    return checked(agent, replicas)


def checked(agent: int, replicas: int, agents: int | None = None) -> ScaleRequest:
    """A request that a run of `agents` agents, if that is known, can do something with. Raises UserError."""
    if agents is not None and agent not in range(agents):
        raise UserError(f"there is no agent {agent}: this run has agents 0 to {agents - 1}")
    if not 1 <= replicas <= MAX_REPLICAS:
        raise UserError(f"{replicas} replicas: an agent has 1 to {MAX_REPLICAS} generators")
    return ScaleRequest(agent, replicas)
