"""Start of a server: its checks, actors and stop."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from marl_ray.config import Config
from marl_ray.core.concurrency import gather, run_with_background
from marl_ray.core.connections import BoundedListener, bind
from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home
from marl_ray.environments.base import BaseEnvironment
from marl_ray.evaluation.running_models import RunningModel, prepare_model, run_with_model
from marl_ray.http.request_guard import ServerLimits
from marl_ray.http.server import serve_http
from marl_ray.plugins.serve.app import LOOPBACK, make_app
from marl_ray.plugins.serve.team_player import TeamPlayer

logger = logging.getLogger(__name__)
MIN_KEY_CHARS = 16


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """The arguments of `marl-ray serve`."""

    model: str
    host: str
    port: int
    key_file: Path | None
    limits: ServerLimits


def read_key(request: ServeRequest) -> str | None:
    """Return the API key. The key comes from a file, because processes of the sandbox could read it in an environment
    or on a command line. Raises UserError if another host than this machine is served without a key."""
    if request.key_file is None:
        if request.host not in LOOPBACK:
            raise UserError(f"--host {request.host} is reachable from other machines: give --api-key-file FILE")
        return None
    path = expand_home(request.key_file)
    try:
        key = path.read_text(encoding="utf-8").strip()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the API key cannot be read from {path} ({type(error).__name__})") from None
    if len(key) < MIN_KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(f"{path} should have one key of at least {MIN_KEY_CHARS} ASCII characters without spaces")
    if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
        logger.warning(f"other users can read {path}: chmod 600 {path}")
    return key


def serve_team(config: Config, request: ServeRequest, on_ready: Callable[[str], None]) -> None:
    """Serve a run, checkpoint or export until a signal. `on_ready` receives the address as soon as the server answers.

    Raises UserError, also if the models are lost for good, and KeyboardInterrupt when it is stopped.
    """
    key = read_key(request)
    prepared = prepare_model(request.model, config)
    with bind(request.host, request.port) as listening:
        run_with_model(prepared, lambda running: _serve(running, request, key, listening, on_ready))


async def _serve(
    running: RunningModel,
    request: ServeRequest,
    key: str | None,
    listening: BoundedListener,
    on_ready: Callable[[str], None],
) -> None:
    player = TeamPlayer(running.config, running.environment, running.generators, running.sandbox)
    guard = make_app(player, _roles(running.environment), request.limits, key)
    port = listening.getsockname()[1]
    host = f"[{request.host}]" if ":" in request.host else request.host
    logger.info(f"process {os.getpid()}; Ctrl-C stops after the answers in progress")
    serving = serve_http(guard, listening, lambda: on_ready(f"http://{host}:{port}"))
    # A server whose models are lost for good ends, so that whatever started it can start it again.
    losses = gather(*(group.replicas.raise_loss() for group in dict.fromkeys(running.generators)))
    await run_with_background(serving, losses)


def _roles(environment: BaseEnvironment) -> list[str | None]:
    """Return each agent's role for an entry point called `main`; None if roles depend on further fields."""
    try:
        return list(environment.roles(Task("task", "", {"entry_point": "main", "tests": ()})))
    except Exception:  # environments may raise anything for a task without their fields
        return [None] * environment.num_agents
