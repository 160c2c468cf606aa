"""The placement plan: which actor needs what. Plain arithmetic, no Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marl_ray.config.schema import Config
from marl_ray.core.words import counted


@dataclass(frozen=True, slots=True)
class Slot:
    """One bundle of the placement group. `owners` share it: a fractional GPU puts generator and learner
    of an agent on one device."""

    owners: tuple[str, ...]
    cpus: float
    gpus: float

    def resources(self) -> dict[str, float]:
        """In Ray's spelling."""
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})


@dataclass(frozen=True, slots=True)
class Plan:
    """All slots, and what follows from them."""

    slots: tuple[Slot, ...]
    generator_gpus: float
    learner_gpus: float
    transport: str
    """store without GPUs, ipc where generator and learner share one, else nccl."""

    def index(self, owner: str) -> int:
        """The slot of `owner`."""
        return next(i for i, slot in enumerate(self.slots) if owner in slot.owners)


class PlacementError(RuntimeError):
    """The cluster cannot give what the config asks for."""


def generator_name(agent: int, replica: int) -> str:
    return f"agent {agent} generator {replica}"


def learner_name(agent: int) -> str:
    return f"agent {agent} learner"


def sandbox_name(worker: int) -> str:
    return f"sandbox {worker}"


def make_plan(config: Config, cluster_has_gpus: bool) -> Plan:
    """Slots for every actor. Raises PlacementError for a combination of GPUs there is no transport for."""
    resources = config.resources
    generator, learner = resources.generator, resources.learner
    generator_gpus = generator.gpus
    if generator_gpus is None:
        generator_gpus = float(generator.tensor_parallel) if cluster_has_gpus else 0.0
    learner_gpus = learner.gpus
    if learner_gpus is None:
        learner_gpus = 1.0 if cluster_has_gpus else 0.0
    if (generator_gpus > 0) != (learner_gpus > 0):
        raise PlacementError(
            f"resources.generator.gpus is {generator_gpus:g} and resources.learner.gpus {learner_gpus:g}: "
            "weights go from GPU to GPU or from CPU to CPU, so set both above 0 or both to 0"
        )
    if generator.tensor_parallel > 1 and not generator_gpus:
        raise PlacementError(
            f"resources.generator.tensor_parallel is {generator.tensor_parallel}, but there are no GPUs: set it to 1, "
            "or run on a cluster that has some"
        )
    shared = 0 < generator_gpus < 1
    if shared and (learner_gpus + generator_gpus > 1 or generator.replicas > 1):
        raise PlacementError(
            "a generator with a fraction of a GPU shares it with its learner: resources.generator.gpus and "
            "resources.learner.gpus should sum to at most 1, with resources.generator.replicas 1"
        )
    slots = []
    for agent in range(config.num_agents):
        if shared:
            slots.append(
                Slot(
                    (generator_name(agent, 0), learner_name(agent)),
                    generator.cpus + learner.cpus,
                    generator_gpus + learner_gpus,
                )
            )
            continue
        for replica in range(generator.replicas):
            slots.append(Slot((generator_name(agent, replica),), generator.cpus, generator_gpus))
        slots.append(Slot((learner_name(agent),), learner.cpus, learner_gpus))
    for worker in range(resources.sandbox.workers):
        slots.append(Slot((sandbox_name(worker),), resources.sandbox.cpus, 0.0))
    transport = "store" if generator_gpus == 0 else "ipc" if shared else "nccl"
    return Plan(tuple(slots), generator_gpus, learner_gpus, transport)


def fits(slots: Sequence[Slot], nodes: Sequence[Mapping[str, float]]) -> bool:
    """Whether the slots fit the nodes' free resources, largest first, each on the first node with room."""
    free = [dict(node) for node in nodes]
    for slot in sorted(slots, key=lambda s: (s.gpus, s.cpus), reverse=True):
        for node in free:
            need = slot.resources()
            if all(node.get(kind, 0.0) + 1e-9 >= amount for kind, amount in need.items()):
                for kind, amount in need.items():
                    node[kind] -= amount
                break
        else:
            return False
    return True


def shortage(plan: Plan, nodes: Sequence[Mapping[str, float]]) -> str:
    """One line: asked for, available, and the settings to change."""
    have = "; ".join(_show({k: v for k, v in node.items() if k in ("CPU", "GPU")}) for node in nodes)
    return (
        f"the cluster cannot place this run: asked for {demand(plan)}; free on {counted(len(nodes), 'node')}: "
        f"{have or 'nothing'}. Lower resources.generator.cpus/gpus/replicas, resources.learner.cpus/"
        "gpus or resources.sandbox.workers/cpus, or add nodes"
    )


def demand(plan: Plan) -> str:
    """What the plan asks of a cluster, in all and by kind of actor."""
    asked = Counter[str]()
    kinds = Counter[tuple[str, str]]()
    for slot in plan.slots:
        for kind, amount in slot.resources().items():
            asked[kind] += amount  # type: ignore[assignment]
        what = " + ".join(owner.split()[2] if owner.startswith("agent") else "sandbox" for owner in slot.owners)
        kinds[what, _show(slot.resources())] += 1
    detail = ", ".join(f"{count} x {what} with {need}" for (what, need), count in kinds.items())
    return f"{_show(asked)} ({detail})"


def demands(config: Config) -> str:
    """What the config asks of a cluster without and with GPUs. Raises PlacementError if neither can be."""
    parts, problem, possible = [], None, False
    for has_gpus, where in ((False, "without GPUs"), (True, "with GPUs")):
        try:
            parts.append(f"{where} {demand(make_plan(config, has_gpus))}")
            possible = True
        except PlacementError as error:
            parts.append(f"{where} impossible ({error})")
            problem = error
    if problem is not None and not possible:
        raise problem
    return f"asks of a cluster: {'; '.join(parts)}"


def _show(resources: Mapping[str, float]) -> str:
    return " ".join(f"{kind} {amount:g}" for kind, amount in sorted(resources.items())) or "nothing"
