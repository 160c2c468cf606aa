"""Live values of a run's actors: queues, busy workers and restarts."""

from __future__ import annotations

from collections.abc import Iterator

from marl_ray.actors.run_actors import RunActors
from marl_ray.telemetry.prometheus_sink import Gauge


def actor_gauges(actors: RunActors) -> Iterator[Gauge]:
    """Yield the current values. Safe on any thread: it only reads numbers."""
    lost = {"sandbox": actors.sandbox.workers.lost_count, "generator": 0, "learner": 0}
    for learner in actors.learners:
        labels = {"policy": learner.policy.key}
        group = actors.generators[learner.policy.first_agent]
        lost["generator"] += group.replicas.lost_count
        lost["learner"] += learner.ranks.lost_count
        serving = len(group.replicas.serving())
        in_flight = group.sequences_in_flight
        yield Gauge("sequences_in_flight", labels, in_flight, "Sequences that generators are sampling or have queued")
        yield Gauge("generators_serving", labels, serving, "Generators that serve requests")
        yield Gauge("weight_version", labels, learner.version, "Batches that the policy has learned from")
    yield Gauge("sandbox_programs_pending", {}, actors.sandbox.pending, "Programs that wait or run in the sandbox")
    yield Gauge("sandbox_workers_busy", {}, actors.sandbox.busy, "Sandbox workers that run programs")
    yield Gauge("sandbox_executions", {}, actors.sandbox.executions, "Programs executed since the run started")
    for kind, count in lost.items():
        yield Gauge("lost_actors", {"kind": kind}, count, "Actors lost, and restarted where allowed")
