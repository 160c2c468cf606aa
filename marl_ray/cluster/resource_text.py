"""The text of the resources that a run requests, and that a cluster lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from marl_ray.cluster.placement_plan import PlacementError, PlacementPlan, make_plan
from marl_ray.config import AgentConfig, LoraConfig
from marl_ray.config.resource_sections import ResourcesConfig
from marl_ray.core.text import pluralize


def describe_shortage(plan: PlacementPlan, nodes: Sequence[Mapping[str, float]]) -> str:
    """Return one line with the requested resources, the free resources and the settings to change."""
    free_per_node = []
    for node in nodes:
        # Ray's other resources, such as the addresses of nodes, are no concern of a user.
        free_per_node.append(_format({kind: node[kind] for kind in ("CPU", "GPU") if kind in node}))
    free = "; ".join(free_per_node)
    return (
        f"the cluster cannot place this run: asked for {describe_demand(plan)}; free on "
        f"{pluralize(len(nodes), 'node')}: {free or 'nothing'}. Lower "
        "resources.generator.cpus/gpus/replicas, resources.learner.cpus/gpus/ranks or "
        "resources.sandbox.workers/cpus, or add nodes"
    )


def describe_demand(plan: PlacementPlan) -> str:
    """Return the requested resources of a plan, in total and by kind of bundle."""
    total: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for bundle in plan.bundles:
        resources = bundle.resources()
        total.update(resources)  # type: ignore[arg-type]
        actors = " + ".join(actor.kind for actor in bundle.actors)
        kinds[f"{actors} with {_format(resources)}"] += 1
    parts = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    return f"{_format(total)} ({parts})"


def describe_demands(agents: Sequence[AgentConfig], lora: LoraConfig, resources: ResourcesConfig) -> str:
    """Return the resources needed on a cluster without and with GPUs. Raises PlacementError if both are impossible."""
    parts = []
    errors = []
    for has_gpus, cluster in ((False, "without GPUs"), (True, "with GPUs")):
        try:
            parts.append(f"{cluster} {describe_demand(make_plan(agents, lora, resources, has_gpus))}")
        except PlacementError as error:
            parts.append(f"{cluster} impossible ({error})")
            errors.append(error)
    if len(errors) == len(parts):
        raise errors[-1]
    return f"requested resources: {'; '.join(parts)}"


def _format(resources: Mapping[str, float]) -> str:
    return " ".join(f"{kind} {amount:g}" for kind, amount in sorted(resources.items())) or "nothing"
