"""The actors of a run from their start to their end, and requests to scale the generators in between."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from marl_ray.actors.actor_gauges import actor_gauges
from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.handle import ActorFailed
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.actors.run_actors import RunActors, start_actors
from marl_ray.cluster.hardware import cluster_nodes
from marl_ray.cluster.ray_connection import describe_cluster
from marl_ray.config import Config, to_yaml
from marl_ray.config.budget import training_budget
from marl_ray.core.concurrency import gather, run_with_background
from marl_ray.core.errors import UserError
from marl_ray.core.files import write_atomically
from marl_ray.core.state import TrainingResult
from marl_ray.core.text import pluralize
from marl_ray.launch.capacity import FittedRun, fit_to_nodes
from marl_ray.launch.run_checks import agreement_probe, check_actors, check_logprob_agreement
from marl_ray.storage.resume import ResumeState
from marl_ray.storage.run_folder import RunFolder, StoredHistory
from marl_ray.storage.scale_requests import POLL_INTERVAL_S, ScaleReply, ScaleRequest, ScaleRequests, validate_request
from marl_ray.telemetry import SINKS
from marl_ray.telemetry.background_sink import BackgroundSink, BackgroundSinks
from marl_ray.telemetry.console_sink import ConsoleSink
from marl_ray.telemetry.prometheus_sink import Gauge, PrometheusSink
from marl_ray.telemetry.sinks import JsonlSink, MetricStream, Sink
from marl_ray.telemetry.timing import StartupTimer
from marl_ray.telemetry.trackers import tracker_names
from marl_ray.trainer.context import RunInputs
from marl_ray.trainer.loop import Trainer

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class TrainingSession:
    """The actors and the training loop of one run. `startup` contains the parts of the start that are done."""

    config: Config
    inputs: RunInputs
    folder: RunFolder
    resume_state: ResumeState
    startup: StartupTimer = field(default_factory=StartupTimer)

    async def run(self) -> TrainingResult:
        """Start the actors, train, and end the actors. Raises UserError."""
        with self.startup.part("plan"):
            fitted = await asyncio.to_thread(self._fit_to_cluster)
        self.config = fitted.config
        budget = training_budget(self.config, len(self.inputs.train_tasks))
        self._log_start()
        actors = await start_actors(
            fitted.on_nodes, budget.optimizer_steps, self.startup, fitted.kv_cache_bytes, fitted.nodes
        )
        try:
            await self.prepare(actors)
            logger.info(f"ready after {self.startup}; weights are transferred by {actors.transport}")
            machine = describe_cluster() | {"startup_s": self.startup.as_json()}
            write_atomically(self.folder.machine, json.dumps(machine, indent=1).encode())
            gauges = partial(actor_gauges, actors)
            metrics = open_metric_stream(self.config, self.folder, self.resume_state, budget.total_steps, gauges)
            try:
                trainer = Trainer(self.config, self.inputs, self.folder, self.resume_state, actors, metrics)
                return await run_with_background(trainer.run(), serve_scale_requests(self.folder.requests, actors))
            finally:
                metrics.close()
        finally:
            await actors.close()

    def _log_start(self) -> None:
        replicas = 0
        for policies in self.config.generator_groups:
            replicas += self.config.agents[policies[0].first_agent].generator.replicas
        generators = pluralize(replicas, "generator")
        learners = pluralize(len(self.config.policies), "learner")
        workers = pluralize(self.config.resources.sandbox.workers, "sandbox worker")
        logger.info(f"starting {generators}, {learners} and {workers}")

    def _fit_to_cluster(self) -> FittedRun:
        fitted = fit_to_nodes(self.config, self.inputs, cluster_nodes())
        if fitted.reason:
            logger.info(fitted.reason)
        return fitted

    async def prepare(self, actors: RunActors) -> None:
        """Check the actors, load the checkpoint, and send the first weights to the generators."""
        learners = actors.learners
        with self.startup.part("tokenizers"):
            await check_actors(self.config, actors, self.inputs, self.folder.path)
        with self.startup.part("weights"):
            await gather(*map(self._load_checkpoint, learners))
            await gather(*(self._connect(learner, actors.generators) for learner in learners))
            await gather(*(learner.update_weights(changed=True) for learner in learners))
        with self.startup.part("agreement"):
            await check_logprob_agreement(self.config, actors, self.inputs)
            # One more update of the same version, so that no engine reuses cached keys and values of the comparison.
            await gather(*(learner.update_weights(changed=False) for learner in learners))

    async def _load_checkpoint(self, learner: LearnerGroup) -> None:
        checkpoint = self.resume_state.checkpoint
        if checkpoint is not None:
            await learner.load(str(checkpoint / learner.policy.key), self.resume_state.state.step)

    async def _connect(self, learner: LearnerGroup, generators: Sequence[GeneratorGroup]) -> None:
        policy = learner.policy
        probe = agreement_probe(self.config, self.inputs, policy.first_agent)
        await learner.connect(generators[policy.first_agent], StoredHistory(self.folder, policy), probe)


def open_metric_stream(
    config: Config,
    folder: RunFolder,
    resume_state: ResumeState,
    total: int,
    gauges: Callable[[], Iterable[Gauge]] = tuple,
) -> MetricStream:
    """Return the sinks of the config for a run of `total` steps. `gauges` returns live values for Prometheus.

    From here on the folder belongs to this config: the config.yaml of a resumed run is rewritten with the overrides.
    """
    done = resume_state.state.step
    folder.write_config(to_yaml(config), done)
    sinks: list[Sink] = [
        JsonlSink(folder.metrics, folder.episodes, done, resume_state.logged, folder.timeline),
        ConsoleSink(total, done, config.policies, config.training.num_turns, config.training.logging_steps),
    ]
    # Trackers talk to other machines, so they have threads of their own, which also create them.
    make_tracker: dict[str, Callable[[], Sink]] = {}
    for name in tracker_names(config.output, config.plugin_sections):
        make_tracker[name] = partial(SINKS.get(name), config, folder.path)
    if config.output.prometheus_port is not None:
        make_tracker["prometheus"] = partial(PrometheusSink, config.output, gauges)
    if make_tracker:
        trackers = [BackgroundSink(name, make, folder.metrics, folder.episodes) for name, make in make_tracker.items()]
        sinks.append(BackgroundSinks(trackers))
    return MetricStream(sinks)


async def serve_scale_requests(requests: ScaleRequests, actors: RunActors) -> None:
    """Serve requests one after another until cancelled. Requests that are open then are refused."""
    pending: list[tuple[str, ScaleRequest | UserError]] = []
    try:
        while True:
            pending += await asyncio.to_thread(requests.take)
            while pending:
                id, request = pending[0]
                reply = await _scale(request, actors)
                logger.info(reply.text if reply.done else f"not scaled: {reply.text}")
                pending.pop(0)  # only now: if the run ends meanwhile, the request is refused below
                await asyncio.to_thread(_settle, requests, id, reply)
            await asyncio.sleep(POLL_INTERVAL_S)
    finally:
        for id, _ in pending + requests.take():
            _settle(requests, id, ScaleReply(False, "the run is ending"))


async def _scale(request: ScaleRequest | UserError, actors: RunActors) -> ScaleReply:
    try:
        if isinstance(request, UserError):
            raise request
        validate_request(request.agent, request.replicas, len(actors.generators))
        group = actors.generators[request.agent]
        before = group.size
        await group.resize(request.replicas)
    except (UserError, ActorFailed) as error:
        return ScaleReply(False, str(error))
    now = f"{actors.learner_of(request.agent).policy} now has {pluralize(request.replicas, 'generator')}"
    return ScaleReply(True, f"{now} ({before} before), until this run ends or is resumed")


def _settle(requests: ScaleRequests, id: str, reply: ScaleReply) -> None:
    try:
        requests.settle(id, reply)
    except OSError as error:
        logger.warning(f"the answer to a request cannot be written ({error})")
