"""The placement plan: which actor needs what. Plain arithmetic, no Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from marl_ray.config import AgentConfig, Config
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId, Kind, PolicyId
from marl_ray.core.text import pluralize

Transport = Literal["store", "nccl", "ipc"]
"""How weights travel from a policy's learner to its generators: through Ray's object store without GPUs, by CUDA IPC
where both share one GPU, else by NCCL."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """One bundle of the placement group. `owners` share it: a fractional GPU puts generator and learner
    of a policy on one device, and so does `resources.colocate`."""

    owners: tuple[ActorId, ...]
    cpus: float
    gpus: float

    def resources(self) -> dict[str, float]:
        """In Ray's spelling."""
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})


@dataclass(frozen=True, slots=True)
class AgentPlacement:
    """GPUs of each of the generators of an agent's policy and of each rank of its learner, and how weights travel
    between them. `device`: the number of the slot where they take turns; None: nobody has to wait for another's
    memory."""

    generator_gpus: float
    learner_gpus: float
    transport: Transport
    device: int | None = None


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """All slots, and what follows for each agent."""

    slots: tuple[Bundle, ...]
    agents: tuple[AgentPlacement, ...]

    def index(self, owner: ActorId) -> int:
        """The slot of `owner`."""
        return next(i for i, slot in enumerate(self.slots) if owner in slot.owners)


class PlacementError(UserError):
    """The cluster cannot give what the config asks for."""


def make_plan(config: Config, cluster_has_gpus: bool) -> PlacementPlan:
    """Slots for every actor. Raises PlacementError for a combination of GPUs there is no transport for, and for engines
    of one device that ask for more memory than it has."""
    if config.resources.colocate:
        return _colocated_plan(config, cluster_has_gpus)
    slots: list[Bundle] = []
    plans: dict[int, AgentPlacement] = {}
    for policy in config.policies:
        agent = config.agents[policy.number]
        own = (agent.generator, agent.learner) != (config.resources.generator, config.resources.learner)
        plan = _agent_plan(agent, cluster_has_gpus, f"agents.{policy.number}." if own else "")
        generators = [ActorId("generator", policy, replica) for replica in range(agent.generator.replicas)]
        ranks = [ActorId("learner", policy, rank) for rank in range(agent.learner.ranks)]
        if (shared := learner_id(config, policy)) != ranks[0]:
            if plan.transport == "ipc":
                raise PlacementError(
                    "lora.share_base: a learner of several policies has a GPU of its own, and resources.generator.gpus "
                    f"{plan.generator_gpus:g} would share it with one policy's generator: set it to 1 or more"
                )
            slots += [Bundle((generator,), agent.generator.cpus, plan.generator_gpus) for generator in generators]
            if shared.replica == policy.number:
                slots.append(Bundle((shared,), agent.learner.cpus, plan.learner_gpus))
        elif plan.transport == "ipc":
            cpus, gpus = agent.generator.cpus + agent.learner.cpus, plan.generator_gpus + plan.learner_gpus
            slots.append(Bundle((*generators, *ranks), cpus, gpus))
        else:
            slots += [Bundle((generator,), agent.generator.cpus, plan.generator_gpus) for generator in generators]
            slots += [Bundle((rank,), agent.learner.cpus, plan.learner_gpus) for rank in ranks]
        plans |= dict.fromkeys(policy.agents, plan)
    return PlacementPlan((*slots, *_sandbox_slots(config)), tuple(plan for _, plan in sorted(plans.items())))


def learner_id(config: Config, policy: PolicyId) -> ActorId:
    """The actor that a policy learns in: its own, or one that it shares with others."""
    first, *others = config.learner_policies(policy)
    return ActorId("learner", None, first.number) if others else ActorId("learner", policy)


def generator_plan(config: Config, number: int, cluster_has_gpus: bool) -> PlacementPlan:
    """Slots for the generators of one agent's policy alone: nobody learns. Raises PlacementError as `make_plan`."""
    whole, policy = make_plan(config, cluster_has_gpus), config.policy_of(number)
    generator, agents = config.agents[number].generator, whole.agents
    if config.resources.colocate:
        alone = (replace(plan, generator_gpus=_share(config, n, cluster_has_gpus)) for n, plan in enumerate(agents))
        agents = tuple(replace(plan, device=None) for plan in alone)
    owners = [ActorId("generator", policy, replica) for replica in range(generator.replicas)]
    return PlacementPlan(tuple(Bundle((o,), generator.cpus, agents[number].generator_gpus) for o in owners), agents)


def sandbox_plan(config: Config) -> PlacementPlan:
    """Slots for the sandbox workers alone."""
    return PlacementPlan(_sandbox_slots(config), ())


def _sandbox_slots(config: Config) -> tuple[Bundle, ...]:
    workers = range(config.resources.sandbox.workers)
    return tuple(Bundle((ActorId("sandbox", None, worker),), config.resources.sandbox.cpus, 0.0) for worker in workers)


def _colocated_plan(config: Config, cluster_has_gpus: bool) -> PlacementPlan:
    """Slots of a run in which generators and learners take turns: one a device, for all actors that are on it.

    Policies fill one GPU after another. Those without one share the memory of a node.
    """
    shares = {policy: _share(config, policy.number, cluster_has_gpus) for policy in config.policies}
    devices: list[tuple[float, list[PolicyId]]] = []
    taken = 1.0
    for policy, share in shares.items():
        if not share:
            continue
        if taken + share > 1 + 1e-9:
            devices.append((1.0, []))
            taken = 0.0
        devices[-1][1].append(policy)
        taken += share
    if without := [policy for policy, share in shares.items() if not share]:
        devices.append((0.0, without))
    slots: list[Bundle] = []
    plans: dict[int, AgentPlacement] = {}
    for number, (gpus, policies) in enumerate(devices):
        agents = [config.agents[policy.number] for policy in policies]
        asked = sum(agent.generator.gpu_memory_utilization for agent in agents)
        if gpus and asked > 1:
            raise PlacementError(
                f"resources.colocate: the engines of {' and '.join(map(str, policies))} play on one GPU at the same "
                f"time, and their resources.generator.gpu_memory_utilization sum to {asked:g}: lower it to "
                f"{int(95 / len(agents)) / 100:g}, or give each a GPU (resources.generator.gpus: 1)"
            )
        kinds: tuple[Kind, Kind] = ("generator", "learner")
        owners = [ActorId(kind, policy) for policy in policies for kind in kinds]
        slots.append(Bundle(tuple(owners), sum(a.generator.cpus + a.learner.cpus for a in agents), gpus))
        each = int(gpus / len(owners) * 1e4) / 1e4  # Ray counts in ten-thousandths
        plan = AgentPlacement(each, each, "ipc" if gpus else "store", number)
        plans |= {agent: plan for policy in policies for agent in policy.agents}
    return PlacementPlan((*slots, *_sandbox_slots(config)), tuple(plan for _, plan in sorted(plans.items())))


def _share(config: Config, agent: int, cluster_has_gpus: bool) -> float:
    """Of a GPU, for an agent's generator and learner together."""
    given = config.agents[agent].generator.gpus
    return float(cluster_has_gpus) if given is None else given


def _agent_plan(agent: AgentConfig, cluster_has_gpus: bool, where: str) -> AgentPlacement:
    """`where` stands before the settings' names in an error."""
    generator, learner = agent.generator, agent.learner
    generator_gpus, learner_gpus = generator.gpus, learner.gpus
    if generator_gpus is None:
        generator_gpus = float(generator.tensor_parallel) if cluster_has_gpus else 0.0
    if learner_gpus is None:
        learner_gpus = 1.0 if cluster_has_gpus else 0.0
    if (generator_gpus > 0) != (learner_gpus > 0):
        raise PlacementError(
            f"{where}resources.generator.gpus is {generator_gpus:g} and {where}resources.learner.gpus "
            f"{learner_gpus:g}: weights go from GPU to GPU or from CPU to CPU, so set both above 0 or both to 0"
        )
    if generator.tensor_parallel > 1 and not generator_gpus:
        raise PlacementError(
            f"{where}resources.generator.tensor_parallel is {generator.tensor_parallel}, but there are no GPUs: set it "
            "to 1, or run on a cluster that has some"
        )
    shared = 0 < generator_gpus < 1
    if shared and (learner_gpus + generator_gpus > 1 or generator.replicas > 1 or learner.ranks > 1):
        raise PlacementError(
            f"a generator with a fraction of a GPU shares it with its learner: {where}resources.generator.gpus and "
            f"{where}resources.learner.gpus should sum to at most 1, with {where}resources.generator.replicas and "
            f"{where}resources.learner.ranks 1"
        )
    return AgentPlacement(generator_gpus, learner_gpus, "store" if generator_gpus == 0 else "ipc" if shared else "nccl")


def place(slots: Sequence[Bundle], nodes: Sequence[Mapping[str, float]]) -> list[int] | None:
    """The node of each slot, largest first, each on the first node with room; None where one finds none. About what
    Ray's strategy PACK does."""
    free = [dict(node) for node in nodes]
    found = [0] * len(slots)
    for number, slot in sorted(enumerate(slots), key=lambda pair: (pair[1].gpus, pair[1].cpus), reverse=True):
        need = slot.resources()
        for index, node in enumerate(free):
            if all(node.get(kind, 0.0) + 1e-9 >= amount for kind, amount in need.items()):
                for kind, amount in need.items():
                    node[kind] -= amount
                found[number] = index
                break
        else:
            return None
    return found


def fits(slots: Sequence[Bundle], nodes: Sequence[Mapping[str, float]]) -> bool:
    """Whether the slots fit the nodes' free resources."""
    return place(slots, nodes) is not None


def describe_shortage(plan: PlacementPlan, nodes: Sequence[Mapping[str, float]]) -> str:
    """One line: asked for, available, and the settings to change."""
    have = "; ".join(_show({k: v for k, v in node.items() if k in ("CPU", "GPU")}) for node in nodes)
    return (
        f"the cluster cannot place this run: asked for {describe_demand(plan)}; free on {pluralize(len(nodes), 'node')}: "
        f"{have or 'nothing'}. Lower resources.generator.cpus/gpus/replicas, resources.learner.cpus/"
        "gpus/ranks or resources.sandbox.workers/cpus, or add nodes"
    )


def describe_demand(plan: PlacementPlan) -> str:
    """What the plan asks of a cluster, in all and by kind of actor."""
    asked: Counter[str] = Counter()
    kinds: Counter[tuple[str, str]] = Counter()
    for slot in plan.slots:
        for kind, amount in slot.resources().items():
            asked[kind] += amount  # type: ignore[assignment]
        kinds[" + ".join(owner.kind for owner in slot.owners), _show(slot.resources())] += 1
    detail = ", ".join(f"{count} x {what} with {need}" for (what, need), count in kinds.items())
    return f"{_show(asked)} ({detail})"


def describe_demands(config: Config) -> str:
    """What the config asks of a cluster without and with GPUs. Raises PlacementError if neither can be."""
    parts, problem, possible = [], None, False
    for has_gpus, where in ((False, "without GPUs"), (True, "with GPUs")):
        try:
            parts.append(f"{where} {describe_demand(make_plan(config, has_gpus))}")
            possible = True
        except PlacementError as error:
            parts.append(f"{where} impossible ({error})")
            problem = error
    if problem is not None and not possible:
        raise problem
    return f"asks of a cluster: {'; '.join(parts)}"


def _show(resources: Mapping[str, float]) -> str:
    return " ".join(f"{kind} {amount:g}" for kind, amount in sorted(resources.items())) or "nothing"
