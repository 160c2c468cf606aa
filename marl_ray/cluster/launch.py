"""Connecting to Ray, getting the placement group, and starting the actors of a run."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from marl_ray.actors.engine import EngineSpec, engine_environment
from marl_ray.actors.generator import Generator
from marl_ray.actors.sandbox_pool import SandboxPool
from marl_ray.actors.sandbox_settings import sandbox_settings
from marl_ray.cluster.plan import (
    PlacementError,
    Plan,
    fits,
    generator_name,
    learner_name,
    make_plan,
    sandbox_name,
    shortage,
)
from marl_ray.config.schema import Config
from marl_ray.core.waiting import together, within
from marl_ray.core.words import counted
from marl_ray.learning.learner import Learner
from marl_ray.models.names import resolve_model
from marl_ray.rollout.player import AgentGenerators


@dataclass(slots=True)
class Fleet:
    """The actors of a run."""

    group: PlacementGroup
    generators: list[list[Any]] = field(default_factory=list)
    learners: list[Any] = field(default_factory=list)
    sandbox: SandboxPool | None = None

    @property
    def agents(self) -> list[AgentGenerators]:
        """Each agent's replicas behind one face."""
        return [AgentGenerators(replicas) for replicas in self.generators]

    async def close(self) -> None:
        """End all actors and free their places."""
        if self.sandbox is not None:
            await self.sandbox.close()
        for actor in [*self.learners, *(g for replicas in self.generators for g in replicas)]:
            ray.kill(actor)
        remove_placement_group(self.group)


def connect(verbose: bool) -> str:
    """Join the cluster named by RAY_ADDRESS, or start one on this machine that listens on localhost only.

    Returns a line that says which.
    """
    address = os.environ.get("RAY_ADDRESS")
    level = logging.INFO if verbose else logging.ERROR
    common: dict[str, Any] = {"log_to_driver": verbose, "logging_level": level}
    if address:
        ray.init(address=address, **common)
        return f"Ray cluster at {address} with {counted(len(ray.nodes()), 'node')}"
    # Ray binds to every interface unless it believes that clusters are off, as on a Mac; its helper processes
    # read the variable, this one has read it already.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
    # Ray protects a local cluster by a token. Without one it would leave a new one in ~/.ray, which then binds every
    # cluster that this user starts later.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **common)
    return f"local Ray with {ray.cluster_resources().get('CPU', 0):g} CPUs"


async def launch(config: Config, total_steps: int) -> tuple[Fleet, Plan, list[str]]:
    """Start every actor; returns when each has answered. The lines are for the console.

    Raises PlacementError before any actor is created when the cluster cannot hold them.
    """
    plan = make_plan(config, ray.cluster_resources().get("GPU", 0) > 0)
    deadlines = config.resources.deadlines
    fleet = Fleet(await _reserve(plan, deadlines.placement_s))
    try:
        _start_models(fleet, config, plan, total_steps)
        fleet.sandbox = _sandbox(fleet, config, plan)
        names = [
            *(generator_name(a, r) for a, replicas in enumerate(fleet.generators) for r in range(len(replicas))),
            *(learner_name(a) for a in range(len(fleet.learners))),
        ]
        actors = [*(g for replicas in fleet.generators for g in replicas), *fleet.learners]
        answers = await together(
            within(deadlines.start_s, "the sandbox workers to start", "start_s", fleet.sandbox.start()),
            *(
                within(deadlines.start_s, f"{name} to start", "start_s", actor.ready.remote())
                for name, actor in zip(names, actors, strict=True)
            ),
        )
    except BaseException:
        await fleet.close()
        raise
    return fleet, plan, [line for lines in answers for line in lines]


async def _reserve(plan: Plan, deadline_s: float) -> PlacementGroup:
    """The placement group, ready; a cluster on this machine cannot grow, so it is not waited for."""
    nodes = free_resources()
    if not os.environ.get("RAY_ADDRESS") and not fits(plan.slots, nodes):
        raise PlacementError(shortage(plan, nodes))
    group = placement_group([slot.resources() for slot in plan.slots], strategy="PACK")
    try:
        await asyncio.wait_for(_ready_group(group), deadline_s)
    except TimeoutError:
        remove_placement_group(group)
        raise PlacementError(shortage(plan, free_resources())) from None
    return group


async def _ready_group(group: PlacementGroup) -> None:
    await group.ready()


def free_resources() -> list[dict[str, float]]:
    """What each live node has free."""
    per_node = ray._private.state.available_resources_per_node()
    return [dict(per_node.get(n["NodeID"], {})) for n in ray.nodes() if n["Alive"]]


def _start_models(fleet: Fleet, config: Config, plan: Plan, total_steps: int) -> None:
    resources = config.resources
    generator, learner = resources.generator, resources.learner
    on_gpu = plan.generator_gpus > 0
    dtype = config.model.model_kwargs.torch_dtype
    if dtype == "auto":
        dtype = "bfloat16" if on_gpu else "float32"
    for agent, name in enumerate(config.model_names):
        path = resolve_model(name)
        environment = engine_environment(generator.cpus, on_gpu, Path(path).is_dir(), config.output.verbose)
        spec = EngineSpec(
            model=path,
            dtype=dtype,
            max_length=config.model.max_length,
            trust_remote_code=config.model.model_kwargs.trust_remote_code,
            on_gpu=on_gpu,
            tensor_parallel=generator.tensor_parallel,
            gpu_memory_utilization=generator.gpu_memory_utilization,
            kv_cache_mb=generator.kv_cache_mb,
            max_num_seqs=generator.max_num_seqs,
            transport=plan.transport,
        )
        fleet.generators.append(
            [
                ray.remote(Generator)
                .options(
                    name=generator_name(agent, replica),
                    num_cpus=generator.cpus,
                    num_gpus=plan.generator_gpus,
                    max_concurrency=100_000,
                    runtime_env={"env_vars": environment},
                    scheduling_strategy=_place(fleet.group, plan, generator_name(agent, replica)),
                )
                .remote(agent, replica, spec, config.model)
                for replica in range(generator.replicas)
            ]
        )
        threads = max(1, round(learner.cpus))
        fleet.learners.append(
            ray.remote(Learner)
            .options(
                name=learner_name(agent),
                num_cpus=learner.cpus,
                num_gpus=plan.learner_gpus,
                runtime_env={"env_vars": {"OMP_NUM_THREADS": str(threads)}},
                scheduling_strategy=_place(fleet.group, plan, learner_name(agent)),
            )
            .remote(agent, path, config.model, config.algorithm, dtype, total_steps, threads)
        )


def _sandbox(fleet: Fleet, config: Config, plan: Plan) -> SandboxPool:
    resources = config.resources.sandbox
    return SandboxPool(
        sandbox_settings(config),
        resources.workers,
        num_cpus_per_worker=resources.cpus,
        scheduling=[_place(fleet.group, plan, sandbox_name(i)) for i in range(resources.workers)],
    )


def _place(group: PlacementGroup, plan: Plan, owner: str) -> PlacementGroupSchedulingStrategy:
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=plan.index(owner))
