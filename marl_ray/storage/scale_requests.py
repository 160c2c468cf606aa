"""Requests to a running run, exchanged as files in its folder.

The run opens no port, and every user who may write to the folder may send a request from any machine that sees it.

    requests/ID.json      {"agent": 1, "replicas": 3}: written by the client, removed by the run when it reads it
    requests/ID.answer    {"done": true, "text": "..."}: written by the run, removed by the client

Files are written atomically. A run removes all requests and answers when it acquires and when it releases its lock.
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
from marl_ray.storage.run_lock import lock_holder

POLL_INTERVAL_S = 1.0
MAX_BYTES = 4096  # maximum size of a request
MAX_REPLICAS = 10_000
NAME = re.compile(r"[0-9a-f]{16}\.json")


@dataclass(frozen=True, slots=True)
class ScaleRequest:
    """A request for a number of generators of one agent."""

    agent: int
    replicas: int


@dataclass(frozen=True, slots=True)
class ScaleReply:
    """The answer to a request: done, or refused with the reason."""

    done: bool
    text: str


class ScaleRequests:
    """The request files of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def put(self, request: ScaleRequest) -> str:
        """Write a request and return its id. Raises OSError."""
        self.folder.mkdir(exist_ok=True)
        id = secrets.token_hex(8)
        write_atomically(self.folder / f"{id}.json", json.dumps(asdict(request)).encode())
        return id

    def take(self) -> list[tuple[str, ScaleRequest | UserError]]:
        """Remove and return the new requests with their ids. An invalid request is returned as its error."""
        taken: list[tuple[str, ScaleRequest | UserError]] = []
        try:
            paths = sorted(path for path in self.folder.iterdir() if NAME.fullmatch(path.name))
        except OSError:  # usually there is no folder; an unreadable folder must not end the run
            return []
        for path in paths:
            try:
                content = _read(path)
                path.unlink()
            except OSError:
                continue  # withdrawn, or not readable
            try:
                taken.append((path.stem, _parse(content)))
            except UserError as error:
                taken.append((path.stem, error))
        return taken

    def settle(self, id: str, answer: ScaleReply) -> None:
        """Write the answer to a request. Raises OSError."""
        write_atomically(self.folder / f"{id}.answer", json.dumps(asdict(answer)).encode())

    def answer(self, id: str) -> ScaleReply | None:
        """Return the answer to a request, if there is one yet."""
        try:
            return ScaleReply(**json.loads((self.folder / f"{id}.answer").read_bytes()))
        except FileNotFoundError:
            return None

    def withdraw(self, id: str) -> None:
        for path in (self.folder / f"{id}.json", self.folder / f"{id}.answer"):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()  # fails if there are other requests


def request_scaling(requests: ScaleRequests, lock: Path, request: ScaleRequest, deadline_s: float) -> str:
    """Send a request to the run that holds `lock`, wait and return its answer.

    Raises UserError if the run refuses, ends, or does not answer within `deadline_s` seconds.
    """
    run = lock_holder(lock)
    if run is None:
        raise UserError(f"{lock.parent} is not being run: only a run in progress can be scaled")
    until = time.monotonic() + deadline_s
    try:
        id = requests.put(request)
    except OSError as error:
        why = f"{requests.folder} cannot be written ({error.strerror})"
        raise UserError(f"{why}: the client needs the right to write there") from None
    try:
        while True:
            still_running = lock_holder(lock) == run  # before reading, since a run may end after its answer
            answer = requests.answer(id)
            if answer is not None:
                if not answer.done:
                    raise UserError(answer.text)
                return answer.text
            if not still_running:
                raise UserError(f"{lock.parent} has ended before it answered")
            if time.monotonic() > until:
                raise UserError(f"{run} has not answered in {deadline_s:g} s; see its own output")
            time.sleep(POLL_INTERVAL_S / 2)
    finally:
        requests.withdraw(id)


def _read(path: Path) -> bytes:
    """Return at most MAX_BYTES + 1 bytes of a regular file. Raises OSError for links and other files."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{path} is not a regular file")
        return os.read(file, MAX_BYTES + 1)
    finally:
        os.close(file)


def _parse(content: bytes) -> ScaleRequest:
    """Parse an untrusted request. Raises UserError."""
    if len(content) > MAX_BYTES:
        raise UserError(f"a request has no more than {MAX_BYTES} bytes")
    try:
        fields: Any = json.loads(content)
    except (ValueError, RecursionError):
        raise UserError("a request is JSON") from None
    if not isinstance(fields, dict) or set(fields) != {"agent", "replicas"}:
        raise UserError("a request has agent and replicas")
    agent = fields["agent"]
    replicas = fields["replicas"]
    if type(agent) is not int or type(replicas) is not int:  # a bool is an int, too
        raise UserError("agent and replicas are whole numbers")
    return validate_request(agent, replicas)


def validate_request(agent: int, replicas: int, agents: int | None = None) -> ScaleRequest:
    """Return a valid request for a run of `agents` agents (None: unknown). Raises UserError."""
    if agents is not None and agent not in range(agents):
        raise UserError(f"there is no agent {agent}: this run has agents 0 to {agents - 1}")
    if not 1 <= replicas <= MAX_REPLICAS:
        raise UserError(f"{replicas} replicas: an agent has 1 to {MAX_REPLICAS} generators")
    return ScaleRequest(agent, replicas)
