"""The placement plan: resources of every actor, grouped into placement group bundles. Arithmetic without Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from marl_ray.cluster.colocation import PlacementError as PlacementError
from marl_ray.cluster.colocation import assign_gpus
from marl_ray.config import AgentConfig, Config, LoraConfig
from marl_ray.config.keys import key_of
from marl_ray.config.resource_sections import Residency
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.core.text import pluralize
from marl_ray.learning.arguments import wire_dtype

Transport = Literal["store", "nccl", "ipc", "adapter"]
"""Weight transport from a policy's learner to its generators: Ray's object store without GPUs, CUDA IPC if both share
one GPU, NCCL otherwise. adapter: engines have the base model, and receive adapters through Ray's object store."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """One bundle of the placement group, and the actors that share it."""

    actors: tuple[ActorId, ...]
    cpus: float
    gpus: float

    def resources(self) -> dict[str, float]:
        """Return CPUs and GPUs under Ray's resource names."""
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})


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
        return next(i for i, bundle in enumerate(self.bundles) if actor in bundle.actors)


def make_plan(config: Config, cluster_has_gpus: bool) -> PlacementPlan:
    """Return the bundles of all actors.

    Raises PlacementError for GPUs without a weight transport and for engines that need more than their GPU's memory.
    """
    if config.resources.residency is not None:
        return _make_colocated_plan(config, cluster_has_gpus)
    bundles: list[Bundle] = []
    placements: dict[int, AgentPlacement] = {}
    for policy in config.policies:
        agent = config.agents[policy.number]
        is_specific = (agent.generator, agent.learner) != (config.resources.generator, config.resources.learner)
        placement = _place_agent(config, agent, cluster_has_gpus, f"agents.{policy.number}." if is_specific else "")
        generators = [ActorId("generator", policy, replica) for replica in range(agent.generator.replicas)]
        if placement.divides_gpu and config.lora.share_engine:
            raise PlacementError(
                "lora.share_engine: an engine of several policies needs a GPU of its own, and resources.generator.gpus "
                f"is {placement.generator_gpus:g}: set it to 1 or more"
            )
        if policy != config.generator_policies(policy)[0]:
            generators = []  # the policy uses the generators of another one
        ranks = [ActorId("learner", policy, rank) for rank in range(agent.learner.ranks)]
        if (shared := learner_id(config, policy)) != ranks[0]:
            if placement.divides_gpu:
                raise PlacementError(
                    "lora.share_base: a learner of several policies needs a GPU of its own, and "
                    f"resources.generator.gpus {placement.generator_gpus:g} would share its GPU with one policy's "
                    "generator: set it to 1 or more"
                )
            ranks = [shared] if shared.replica == policy.number else []
        if placement.divides_gpu:
            cpus, gpus = agent.generator.cpus + agent.learner.cpus, placement.generator_gpus + placement.learner_gpus
            bundles.append(Bundle((*generators, *ranks), cpus, gpus))
        else:
            bundles += [Bundle((id,), agent.generator.cpus, placement.generator_gpus) for id in generators]
            bundles += [Bundle((id,), agent.learner.cpus, placement.learner_gpus) for id in ranks]
        placements |= dict.fromkeys(policy.agents, placement)
    by_agent = tuple(placements[agent] for agent in range(config.num_agents))
    return PlacementPlan((*bundles, *sandbox_plan(config).bundles), by_agent)


def sandbox_plan(config: Config) -> PlacementPlan:
    """Return the bundles of the sandbox workers only."""
    sandbox = config.resources.sandbox
    bundles = (Bundle((ActorId("sandbox", None, worker),), sandbox.cpus, 0.0) for worker in range(sandbox.workers))
    return PlacementPlan(tuple(bundles), ())


def learner_id(config: Config, policy: PolicyId) -> ActorId:
    """Return the actor that trains a policy: the policy's own, or one that several policies share."""
    first, *others = config.learner_policies(policy)
    return ActorId("learner", None, first.number) if others else ActorId("learner", policy)


def generator_plan(config: Config, number: int, cluster_has_gpus: bool) -> PlacementPlan:
    """Return the bundles of one agent's generators only, for an evaluation. Raises PlacementError like `make_plan`."""
    config = replace(config, lora=LoraConfig())  # an evaluation merges adapters
    generator, policy = config.agents[number].generator, config.policy_of(number)
    if config.resources.residency is None:
        agents = make_plan(config, cluster_has_gpus).agents
    else:  # an evaluation has no learners
        gpus = [_engine_gpus(agent, cluster_has_gpus) for agent in config.agents]
        agents = tuple(AgentPlacement(own, own, "ipc" if own else "store") for own in gpus)
        if not gpus[number]:
            _check_tensor_parallel(config.agents[number], key_of(config, number, "generator.tensor_parallel"))
    ids = [ActorId("generator", policy, replica) for replica in range(generator.replicas)]
    return PlacementPlan(tuple(Bundle((id,), generator.cpus, agents[number].generator_gpus) for id in ids), agents)


def _make_colocated_plan(config: Config, cluster_has_gpus: bool) -> PlacementPlan:
    """Return bundles of GPUs that engines and learners use in turns, and one bundle for all policies without GPUs."""
    engine_gpus = {policy: _engine_gpus(config.agents[policy.number], cluster_has_gpus) for policy in config.policies}
    # A policy that uses the generators of another one has no engine, and learns on the same GPUs as the other.
    first_of = {policy: config.generator_policies(policy)[0] for policy in config.policies}
    with_engines = {policy: gpus for policy, gpus in engine_gpus.items() if gpus and first_of[policy] == policy}
    shared = assign_gpus(config, with_engines)
    gpus_of = dict(shared.gpus)
    for policy in config.policies:
        gpus_of |= _gpus_of_learners(config, policy, first_of[policy], shared.gpus) if engine_gpus[policy] else {}
    _check_shared_learners(config, engine_gpus, first_of, shared.gpus)
    devices = shared.devices()
    members: dict[int, list[ActorId]] = {}
    placements: dict[int, AgentPlacement] = {}
    for policy, gpus in engine_gpus.items():
        agent = config.agents[policy.number]
        learners = [id for id in _learner_ids(config, policy) if id.policy is not None or id.replica == policy.number]
        generators = [ActorId("generator", policy, replica) for replica in range(agent.generator.replicas)]
        ids = [*generators, *learners] if first_of[policy] == policy else learners
        if gpus:
            transport = _with_adapters("ipc", config, agent, gpus)
            on_gpu = gpus_of[_learner_ids(config, policy)[0]][0]
            placement = AgentPlacement(gpus, 1.0, transport, devices[on_gpu])
        else:
            _check_tensor_parallel(agent, key_of(config, policy.number, "generator.tensor_parallel"))
            transport = _with_adapters("store", config, agent, 0.0)
            placement = AgentPlacement(0.0, 0.0, transport, len(set(devices.values())))
        placements |= dict.fromkeys(policy.agents, placement)
        for id in ids:
            bundle = gpus_of[id][0] // shared.per_bundle if gpus else shared.total
            members.setdefault(bundle, []).append(id)
    bundles = []
    for number, actors in sorted(members.items()):
        numbers = [id.replica if id.policy is None else id.policy.number for id in actors]
        cpus = sum(getattr(config.agents[number], id.kind).cpus for number, id in zip(numbers, actors, strict=True))
        bundles.append(Bundle(tuple(actors), cpus, 0.0 if number == shared.total else float(shared.per_bundle)))
    in_bundle = {id: tuple(gpu % shared.per_bundle for gpu in gpus) for id, gpus in gpus_of.items()}
    by_agent = tuple(placements[agent] for agent in range(config.num_agents))
    all_bundles = (*bundles, *sandbox_plan(config).bundles)
    return PlacementPlan(all_bundles, by_agent, in_bundle, config.resources.residency)


def _gpus_of_learners(
    config: Config, policy: PolicyId, first: PolicyId, gpus: Mapping[ActorId, tuple[int, ...]]
) -> dict[ActorId, tuple[int, ...]]:
    """Return the GPU of each learner of a policy that uses the generators of policy `first`."""
    ranks, expected = (config.agents[number].learner.ranks for number in (policy.number, first.number))
    if ranks != expected:
        raise PlacementError(
            f"{key_of(config, policy.number, 'learner.ranks')} is {ranks}, and {policy} shares the engines of {first}, "
            f"whose learner has {expected}: set it to {expected}, or lora.share_engine to false"
        )
    learners = _learner_ids(config, policy)
    # A learner of several policies is one process, with one rank.
    return {
        learner: gpus[ActorId("learner", first, 0 if learner.policy is None else learner.replica)]
        for learner in learners
    }


def _check_shared_learners(
    config: Config,
    engine_gpus: Mapping[PolicyId, float],
    first_of: Mapping[PolicyId, PolicyId],
    gpus: Mapping[ActorId, tuple[int, ...]],
) -> None:
    """Raise PlacementError if a learner of several policies is not on the GPU of all of their engines, which only
    engines that receive adapters do not need."""
    for policies in config.learner_groups if config.lora.share_base else ():
        names = " and ".join(map(str, policies))
        on_gpus = {engine_gpus[policy] > 0 for policy in policies}
        if len(on_gpus) > 1:
            raise PlacementError(
                f"lora.share_base: the engines of {names} have GPUs and none: set resources.generator.gpus to one value"
            )
        agents = [config.agents[policy.number] for policy in policies]
        if config.lora.serves_adapters or on_gpus == {False}:
            continue
        places = {gpus[ActorId("generator", first_of[policy], 0)] for policy in policies}
        replicas = max(agent.generator.replicas for agent in agents)
        if len(places) > 1 or replicas > 1:
            raise PlacementError(
                f"lora.share_base: the learner of {names} is on one GPU, and their engines are not: set lora.in_engine "
                "to true, or share_base to false"
            )


def _learner_ids(config: Config, policy: PolicyId) -> list[ActorId]:
    """Return the actors that train a policy: its ranks, or the one process of several policies."""
    shared = learner_id(config, policy)
    if shared.policy is None:
        return [shared]
    return [ActorId("learner", policy, rank) for rank in range(config.agents[policy.number].learner.ranks)]


def _engine_gpus(agent: AgentConfig, cluster_has_gpus: bool) -> float:
    """Return the number of GPUs of an agent's engine, or its share of one."""
    gpus = agent.generator.gpus
    return float(cluster_has_gpus * agent.generator.tensor_parallel) if gpus is None else gpus


def _check_tensor_parallel(agent: AgentConfig, key: str) -> None:
    """Raise PlacementError if an engine without GPUs uses tensor parallelism."""
    if agent.generator.tensor_parallel > 1:
        raise PlacementError(
            f"{key} is {agent.generator.tensor_parallel}, but there are no GPUs: set it to 1, or run on a cluster with "
            "GPUs"
        )


def _with_adapters(merged: Transport, config: Config, agent: AgentConfig, generator_gpus: float) -> Transport:
    """Return `adapter` if engines receive only adapters (`lora.in_engine`), and otherwise `merged`.

    vLLM's kernels on GPUs compute adapters in 16 bits. Raises PlacementError for a setting that cannot work.
    """
    if not config.lora.serves_adapters:
        return merged
    if generator_gpus and wire_dtype(agent, generators_have_gpus=True) == "float32":
        raise PlacementError(
            "lora.in_engine: on GPUs vLLM computes adapters in 16 bits, and model.model_kwargs.torch_dtype is float32: "
            "set it to bfloat16, or lora.in_engine and share_engine to false"
        )
    return "adapter"


def _place_agent(config: Config, agent: AgentConfig, cluster_has_gpus: bool, prefix: str) -> AgentPlacement:
    """Return GPUs and transport of an agent. `prefix` precedes the names of settings in errors."""
    generator, learner = agent.generator, agent.learner
    generator_gpus, learner_gpus = _engine_gpus(agent, cluster_has_gpus), learner.gpus
    if learner_gpus is None:
        learner_gpus = float(cluster_has_gpus)
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
    transport: Transport = "store" if generator_gpus == 0 else "ipc" if is_shared else "nccl"
    transport = _with_adapters(transport, config, agent, generator_gpus)
    return AgentPlacement(generator_gpus, learner_gpus, transport)


def pack(bundles: Sequence[Bundle], nodes: Sequence[Mapping[str, float]]) -> list[int] | None:
    """Return the node of each bundle by first fit, largest first, like Ray's PACK; None if a bundle does not fit.

    Example:
        >>> pack([Bundle((), 1, 0), Bundle((), 4, 0)], [{"CPU": 4}, {"CPU": 2}])
        [1, 0]
    """
    free = [dict(node) for node in nodes]
    assignment = [0] * len(bundles)
    for number, bundle in sorted(enumerate(bundles), key=lambda pair: (pair[1].gpus, pair[1].cpus), reverse=True):
        need = bundle.resources().items()
        fits = (i for i, node in enumerate(free) if all(node.get(k, 0.0) + 1e-9 >= amount for k, amount in need))
        if (index := next(fits, None)) is None:
            return None
        assignment[number] = index
        for kind, amount in need:
            free[index][kind] -= amount
    return assignment


def describe_shortage(plan: PlacementPlan, nodes: Sequence[Mapping[str, float]]) -> str:
    """Return one line with the requested resources, the free resources and the settings to change."""
    free = "; ".join(_format({k: v for k, v in node.items() if k in ("CPU", "GPU")}) for node in nodes)
    return (
        f"the cluster cannot place this run: asked for {describe_demand(plan)}; free on "
        f"{pluralize(len(nodes), 'node')}: {free or 'nothing'}. Lower "
        "resources.generator.cpus/gpus/replicas, resources.learner.cpus/gpus/ranks or "
        "resources.sandbox.workers/cpus, or add nodes"
    )


def describe_demand(plan: PlacementPlan) -> str:
    """Return the requested resources of a plan, in total and by kind of bundle."""
    total, kinds = Counter[str](), Counter[str]()
    for bundle in plan.bundles:
        total.update(bundle.resources())  # type: ignore[arg-type]
        kinds[f"{' + '.join(actor.kind for actor in bundle.actors)} with {_format(bundle.resources())}"] += 1
    return f"{_format(total)} ({', '.join(f'{count} x {kind}' for kind, count in kinds.items())})"


def describe_demands(config: Config) -> str:
    """Return the resources needed on a cluster without and with GPUs. Raises PlacementError if both are impossible."""
    parts, errors = [], []
    for has_gpus, cluster in ((False, "without GPUs"), (True, "with GPUs")):
        try:
            parts.append(f"{cluster} {describe_demand(make_plan(config, has_gpus))}")
        except PlacementError as error:
            parts.append(f"{cluster} impossible ({error})")
            errors.append(error)
    if len(errors) == len(parts):
        raise errors[-1]
    return f"requested resources: {'; '.join(parts)}"


def _format(resources: Mapping[str, float]) -> str:
    return " ".join(f"{kind} {amount:g}" for kind, amount in sorted(resources.items())) or "nothing"
