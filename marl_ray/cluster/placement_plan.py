"""The placement plan: resources of every actor, grouped into placement group bundles. Arithmetic without Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from marl_ray.cluster.bundles import Bundle
from marl_ray.cluster.colocation import PlacementError as PlacementError
from marl_ray.cluster.colocation import assign_gpus
from marl_ray.config import AgentConfig, LoraConfig
from marl_ray.config.keys import resource_key
from marl_ray.config.policies import generator_groups, group_of, learner_groups, policies_of
from marl_ray.config.resource_sections import Residency, ResourcesConfig, SandboxResources
from marl_ray.core.ids import ActorId, Kind, PolicyId
from marl_ray.learning.arguments import wire_dtype

Transport = Literal["store", "nccl", "ipc", "adapter"]
"""Weight transport from a policy's learner to its generators: Ray's object store without GPUs, CUDA IPC if both share
one GPU, NCCL otherwise. adapter: engines have the base model, and receive adapters through Ray's object store."""


@dataclass(frozen=True, slots=True)
class AgentPlacement:
    """GPUs per generator and per learner rank of an agent's policy, and the weight transport between them.

    `device` is the number of the device that they share with `resources.colocate`, otherwise None.
    """

    generator_gpus: float
    learner_gpus: float
    transport: Transport
    device: int | None = None

    @property
    def divides_gpu(self) -> bool:
        """Whether generator and learner have fractions of one GPU."""
        return 0 < self.generator_gpus < 1 and self.device is None

    @property
    def shares_gpu(self) -> bool:
        """Whether generator and learner are on the same GPU."""
        return self.divides_gpu or (self.device is not None and self.generator_gpus > 0)


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """The bundles of a run, and the placement of each agent.

    shared_gpus: indexes, within its bundle, of the GPUs that an actor shares with other actors. Ray assigns the GPUs of
    all other actors.
    residency: what stays on these GPUs (`resources.colocate`); None: no actors share a device in turns.
    """

    bundles: tuple[Bundle, ...]
    agents: tuple[AgentPlacement, ...]
    shared_gpus: Mapping[ActorId, tuple[int, ...]] = field(default_factory=dict)
    residency: Residency | None = None

    def index(self, actor: ActorId) -> int:
        """Return the index of the actor's bundle."""
        return next(index for index, bundle in enumerate(self.bundles) if actor in bundle.actors)


def make_plan(
    agents: Sequence[AgentConfig], lora: LoraConfig, resources: ResourcesConfig, cluster_has_gpus: bool
) -> PlacementPlan:
    """Return the bundles of all actors.

    Raises PlacementError for GPUs without a weight transport and for engines that need more than their GPU's memory.
    """
    if resources.residency is not None:
        return _make_colocated_plan(agents, lora, resources, cluster_has_gpus)
    generators = _generators(agents, generator_groups(agents, lora))
    learners = _learners(agents, learner_groups(agents, lora))
    bundles: list[Bundle] = []
    placements: dict[int, AgentPlacement] = {}
    for policy in policies_of(agents):
        agent = agents[policy.first_agent]
        # The prefix of settings in errors: the agent may have resources of its own.
        has_defaults = (agent.generator, agent.learner) == (resources.generator, resources.learner)
        prefix = "" if has_defaults else f"agents.{policy.first_agent}."
        placement = _place_agent(agent, prefix, lora, cluster_has_gpus)
        own_generators = generators.get(policy, [])
        own_learners = _own(learners[policy], policy)
        if placement.divides_gpu:
            _check_undivided(lora, learners[policy][0], placement.generator_gpus)
            cpus = agent.generator.cpus + agent.learner.cpus
            gpus = placement.generator_gpus + placement.learner_gpus
            bundles.append(Bundle((*own_generators, *own_learners), cpus, gpus))
        else:
            bundles += _own_bundles(own_generators, agent.generator.cpus, placement.generator_gpus)
            bundles += _own_bundles(own_learners, agent.learner.cpus, placement.learner_gpus)
        placements |= dict.fromkeys(policy.agents, placement)
    bundles += sandbox_plan(resources.sandbox).bundles
    return PlacementPlan(tuple(bundles), _in_order(placements))


def _in_order(placements: Mapping[int, AgentPlacement]) -> tuple[AgentPlacement, ...]:
    """Return the placements of all agents by their numbers. Policies are placed in the order of their first agents."""
    return tuple(placements[agent] for agent in sorted(placements))


def _own_bundles(actors: Sequence[ActorId], cpus: float, gpus: float) -> list[Bundle]:
    """Return a bundle for each actor."""
    return [Bundle((actor,), cpus, gpus) for actor in actors]


def _replicas(kind: Kind, policy: PolicyId | None, number: int) -> list[ActorId]:
    return [ActorId(kind, policy, replica) for replica in range(number)]


def _check_undivided(lora: LoraConfig, learner: ActorId, gpus: float) -> None:
    """Raise PlacementError if several policies share an engine or a learner, which cannot be on a fraction of a GPU
    beside the other actor of one of them."""
    if lora.share_engine:
        raise PlacementError(
            "lora.share_engine: an engine of several policies needs a GPU of its own, and resources.generator.gpus "
            f"is {gpus:g}: set it to 1 or more"
        )
    if learner.policy is None:
        raise PlacementError(
            f"lora.share_base: a learner of several policies needs a GPU of its own, and resources.generator.gpus "
            f"{gpus:g} would share its GPU with one policy's generator: set it to 1 or more"
        )


def _generators(agents: Sequence[AgentConfig], groups: Sequence[Sequence[PolicyId]]) -> dict[PolicyId, list[ActorId]]:
    """Return the generators of the first policy of each group. The other policies of the group use them."""
    first_policies = [policies[0] for policies in groups]
    return {
        first: _replicas("generator", first, agents[first.first_agent].generator.replicas) for first in first_policies
    }


def _learners(agents: Sequence[AgentConfig], groups: Sequence[Sequence[PolicyId]]) -> dict[PolicyId, list[ActorId]]:
    """Return the actors that train each policy: its ranks, or the one process of all policies of a group."""
    learners = {}
    for policies in groups:
        for policy in policies:
            if len(policies) > 1:
                learners[policy] = [shared_learner_id(policies)]
            else:
                learners[policy] = _replicas("learner", policy, agents[policy.first_agent].learner.ranks)
    return learners


def _own(learners: list[ActorId], policy: PolicyId) -> list[ActorId]:
    """Return the actors that train a policy; none if they are listed with an earlier policy."""
    return learners if learners[0].first_agent == policy.first_agent else []


def sandbox_plan(sandbox: SandboxResources) -> PlacementPlan:
    """Return the bundles of the sandbox workers only."""
    workers = _replicas("sandbox", None, sandbox.workers)
    return PlacementPlan(tuple(_own_bundles(workers, sandbox.cpus, 0.0)), ())


def shared_learner_id(policies: Sequence[PolicyId]) -> ActorId:
    """Return the actor that trains several policies."""
    return ActorId("learner", None, policies[0].first_agent)


def generator_plan(
    agents: Sequence[AgentConfig], resources: ResourcesConfig, policy: PolicyId, cluster_has_gpus: bool
) -> PlacementPlan:
    """Return the bundles of one policy's generators only, for an evaluation. Raises PlacementError like `make_plan`."""
    number = policy.first_agent
    agent = agents[number]
    placements: list[AgentPlacement] = []
    if resources.residency is None:
        # An evaluation merges adapters.
        placements += make_plan(agents, LoraConfig(), resources, cluster_has_gpus).agents
    else:  # an evaluation has no learners, with which engines would share GPUs
        for other in agents:
            gpus = _engine_gpus(other, cluster_has_gpus)
            placements.append(AgentPlacement(gpus, gpus, "ipc" if gpus else "store"))
        if not placements[number].generator_gpus:
            _check_tensor_parallel(agent, resource_key(agent, number, "generator.tensor_parallel"))
    generators = _replicas("generator", policy, agent.generator.replicas)
    bundles = _own_bundles(generators, agent.generator.cpus, placements[number].generator_gpus)
    return PlacementPlan(tuple(bundles), tuple(placements))


def _make_colocated_plan(
    agents: Sequence[AgentConfig], lora: LoraConfig, resources: ResourcesConfig, cluster_has_gpus: bool
) -> PlacementPlan:
    """Return bundles of GPUs that engines and learners use in turns, and one bundle for all policies without GPUs."""
    policies = policies_of(agents)
    groups = generator_groups(agents, lora)
    generators = _generators(agents, groups)
    learners = _learners(agents, learner_groups(agents, lora))
    engine_gpus: dict[PolicyId, float] = {}
    with_engines: dict[PolicyId, float] = {}
    """Policies with engines of their own. Other policies use the engines of an earlier one, and learn on its GPUs."""
    for policy in policies:
        gpus = _engine_gpus(agents[policy.first_agent], cluster_has_gpus)
        engine_gpus[policy] = gpus
        if gpus and policy in generators:
            with_engines[policy] = gpus
    shared = assign_gpus(agents, with_engines)
    gpus_of = dict(shared.gpus)
    """By actor, the numbers of the GPUs that it uses."""
    engines: dict[PolicyId, list[ActorId]] = {}
    """The engines with GPUs that each policy uses."""
    for policy in policies:
        engines[policy] = []
        if engine_gpus[policy]:
            first = group_of(policy, groups)[0]
            engines[policy] = generators[first]
            _check_ranks(agents, policy, first)
            # A policy learns on the GPUs of the first policy that uses its engines.
            for learner in learners[policy]:
                rank = 0 if learner.policy is None else learner.replica  # a learner of several policies has one rank
                gpus_of[learner] = shared.gpus[ActorId("learner", first, rank)]
    _check_shared_learners(lora, learner_groups(agents, lora), engines, shared.gpus)
    devices = shared.devices()
    members: dict[int, list[ActorId]] = {}
    """Actors by the number of their bundle. The last bundle has no GPUs."""
    placements: dict[int, AgentPlacement] = {}
    for policy, gpus in engine_gpus.items():
        agent = agents[policy.first_agent]
        if gpus:
            transport = _with_adapters("ipc", lora, agent, gpus)
            gpu_of_learner = gpus_of[learners[policy][0]][0]
            placement = AgentPlacement(gpus, 1.0, transport, devices[gpu_of_learner])
        else:
            _check_tensor_parallel(agent, resource_key(agent, policy.first_agent, "generator.tensor_parallel"))
            transport = _with_adapters("store", lora, agent, 0.0)
            placement = AgentPlacement(0.0, 0.0, transport, len(set(devices.values())))
        placements |= dict.fromkeys(policy.agents, placement)
        for id in (*generators.get(policy, ()), *_own(learners[policy], policy)):
            bundle = gpus_of[id][0] // shared.per_bundle if gpus else shared.total
            members.setdefault(bundle, []).append(id)
    bundles = []
    for number, actors in sorted(members.items()):
        cpus = 0.0
        for id in actors:
            agent = agents[id.first_agent]
            cpus += agent.generator.cpus if id.kind == "generator" else agent.learner.cpus
        gpus = 0.0 if number == shared.total else float(shared.per_bundle)
        bundles.append(Bundle(tuple(actors), cpus, gpus))
    shared_gpus = {}
    for id, numbers in gpus_of.items():
        shared_gpus[id] = tuple(number % shared.per_bundle for number in numbers)
    bundles += sandbox_plan(resources.sandbox).bundles
    return PlacementPlan(tuple(bundles), _in_order(placements), shared_gpus, resources.residency)


def _check_ranks(agents: Sequence[AgentConfig], policy: PolicyId, first: PolicyId) -> None:
    """Raise PlacementError if a policy has another number of ranks than the first policy that uses its engines."""
    agent = agents[policy.first_agent]
    expected = agents[first.first_agent].learner.ranks
    if agent.learner.ranks != expected:
        key = resource_key(agent, policy.first_agent, "learner.ranks")
        raise PlacementError(
            f"{key} is {agent.learner.ranks}, and {policy} shares the engines of {first}, whose learner has "
            f"{expected}: set it to {expected}, or lora.share_engine to false"
        )


def _check_shared_learners(
    lora: LoraConfig,
    learner_groups: Sequence[Sequence[PolicyId]],
    engines: Mapping[PolicyId, Sequence[ActorId]],
    gpus: Mapping[ActorId, tuple[int, ...]],
) -> None:
    """Raise PlacementError if a learner of several policies is not on the GPU of all of their engines, which only
    engines that receive adapters do not need. `engines` are the engines with GPUs that each policy uses."""
    if not lora.share_base:
        return
    for policies in learner_groups:
        names = " and ".join(map(str, policies))
        with_gpus = [policy for policy in policies if engines[policy]]
        if with_gpus and len(with_gpus) < len(policies):
            raise PlacementError(
                f"lora.share_base: the engines of {names} have GPUs and none: set resources.generator.gpus to one value"
            )
        if lora.serves_adapters:
            continue
        places = set()
        replicas = 1
        for policy in with_gpus:
            places.add(gpus[engines[policy][0]])
            replicas = max(replicas, len(engines[policy]))
        if len(places) > 1 or replicas > 1:
            raise PlacementError(
                f"lora.share_base: the learner of {names} is on one GPU, and their engines are not: set lora.in_engine "
                "to true, or share_base to false"
            )


def _engine_gpus(agent: AgentConfig, cluster_has_gpus: bool) -> float:
    """Return the number of GPUs of an agent's engine, or its share of one."""
    generator = agent.generator
    if generator.gpus is not None:
        return generator.gpus
    return float(generator.tensor_parallel) if cluster_has_gpus else 0.0


def _check_tensor_parallel(agent: AgentConfig, key: str) -> None:
    """Raise PlacementError if an engine without GPUs uses tensor parallelism."""
    if agent.generator.tensor_parallel > 1:
        raise PlacementError(
            f"{key} is {agent.generator.tensor_parallel}, but there are no GPUs: set it to 1, or run on a cluster with "
            "GPUs"
        )


def _with_adapters(merged: Transport, lora: LoraConfig, agent: AgentConfig, generator_gpus: float) -> Transport:
    """Return `adapter` if engines receive only adapters (`lora.in_engine`), and otherwise `merged`.

    vLLM's kernels on GPUs compute adapters in 16 bits. Raises PlacementError for a setting that cannot work.
    """
    if not lora.serves_adapters:
        return merged
    if generator_gpus and wire_dtype(agent, generators_have_gpus=True) == "float32":
        raise PlacementError(
            "lora.in_engine: on GPUs vLLM computes adapters in 16 bits, and model.model_kwargs.torch_dtype is float32: "
            "set it to bfloat16, or lora.in_engine and share_engine to false"
        )
    return "adapter"


def _place_agent(agent: AgentConfig, prefix: str, lora: LoraConfig, cluster_has_gpus: bool) -> AgentPlacement:
    """Return GPUs and transport of a policy's generators and learner. Errors name settings after `prefix`."""
    generator = agent.generator
    learner = agent.learner
    generator_gpus = _engine_gpus(agent, cluster_has_gpus)
    learner_gpus = learner.gpus
    if learner_gpus is None:
        learner_gpus = 1.0 if cluster_has_gpus else 0.0
    if (generator_gpus > 0) != (learner_gpus > 0):
        raise PlacementError(
            f"{prefix}resources.generator.gpus is {generator_gpus:g} and {prefix}resources.learner.gpus "
            f"{learner_gpus:g}: weights go from GPU to GPU or from CPU to CPU, so set both above 0 or both to 0"
        )
    if not generator_gpus:
        _check_tensor_parallel(agent, f"{prefix}resources.generator.tensor_parallel")
    is_shared = 0 < generator_gpus < 1
    if is_shared and (learner_gpus + generator_gpus > 1 or generator.replicas > 1 or learner.ranks > 1):
        raise PlacementError(
            f"a generator with a fraction of a GPU shares it with its learner: {prefix}resources.generator.gpus and "
            f"{prefix}resources.learner.gpus should sum to at most 1, with {prefix}resources.generator.replicas and "
            f"{prefix}resources.learner.ranks 1"
        )
    transport: Transport = "nccl"
    if generator_gpus == 0:
        transport = "store"
    elif is_shared:
        transport = "ipc"
    transport = _with_adapters(transport, lora, agent, generator_gpus)
    return AgentPlacement(generator_gpus, learner_gpus, transport)
