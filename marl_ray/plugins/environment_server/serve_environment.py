"""Start of the server of an environment: `marl-ray environment`."""

from __future__ import annotations

import logging
import os

from marl_ray.actors.sandbox_settings import sandbox_settings
from marl_ray.config import Config
from marl_ray.core.connections import bind
from marl_ray.core.stop_signals import StopSignals
from marl_ray.core.text import pluralize
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.evaluation.scoring import LocalSandboxPool
from marl_ray.http.request_guard import RequestGuard, ServerLimits
from marl_ray.http.server import serve_http
from marl_ray.plugins.environment_server.command import EnvironmentRequest
from marl_ray.plugins.environment_server.environment_app import EnvironmentApp
from marl_ray.plugins.environment_server.served_episode import check_served

logger = logging.getLogger(__name__)
HOST = "127.0.0.1"
LIMITS = ServerLimits(body_bytes=1 << 20, requests=1024, drain_s=1.0)


def serve_environment(config: Config, request: EnvironmentRequest) -> None:
    """Serve the environment of a config until a signal stops the server. Raises UserError."""
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    split = request.split or config.dataset.train_split
    tasks = load_tasks(config.dataset.name, split, config.dataset.type, config.dataset.on_bad_row)
    check_served(environment, config.environment, config.external, tasks)
    sandboxes = LocalSandboxPool(sandbox_settings(config.sandbox), request.workers or os.cpu_count() or 1)
    with bind(HOST, request.port, "--port") as listening, StopSignals() as signals, sandboxes:
        app = EnvironmentApp(config, environment, tasks, sandboxes)
        guard = RequestGuard(app.routes(), LIMITS)
        address = f"http://{HOST}:{listening.getsockname()[1]}"

        def announce() -> None:
            logger.info(f"{config.environment}, {pluralize(len(tasks), 'task')}: {address}")

        logger.info(sandboxes.describe())
        signals.run(lambda: serve_http(guard, listening, announce, ws="auto"))
