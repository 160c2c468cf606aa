"""An agent's generators as its learner's process talks to them during a weight update: blocking, to all at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import ray

from marl_ray.actors.generator import Generator
from marl_ray.actors.handle import Call, Deadline, Handle, wait_for
from marl_ray.core.tree import WeightVersion
from marl_ray.weights.receiving import Acknowledgement, Stage

R = TypeVar("R")


class GeneratorClient:
    """The `Receivers` of `marl_ray.weights.transport`.

    Each stage of an update has `deadline_s` of resources.deadlines.sync_s. Raises as `Call.within`.
    """

    def __init__(self, generators: Sequence[Handle[Generator]], ranks_each: int, deadline_s: float) -> None:
        self._generators = generators
        self._ranks_each = ranks_each
        self._deadline_s = deadline_s

    @property
    def ranks(self) -> int:
        return len(self._generators) * self._ranks_each

    @property
    def address(self) -> str:
        return ray.util.get_node_ip_address()

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Start the rendezvous; engine i's workers come after those of the engines before it."""
        infos = []
        for index in range(len(self._generators)):
            info = dict(init_info)
            if "rank_offset" in info:
                info["rank_offset"] += index * self._ranks_each
            infos.append(info)
        self._stage("init_weight_transfer_engine", infos)

    def start_weight_update(self) -> None:
        self._stage("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._stage("update_weights", [update_info] * len(self._generators))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._stage("finish_weight_update")

    def refit(self, version: WeightVersion, weights: Any) -> list[Acknowledgement]:
        """A whole update; the weights lie in the object store once, and Ray hands each generator a view of them."""
        stored = ray.put(weights)
        return self._wait("refit", [g.call(Generator.refit, version, stored) for g in self._generators])

    def commit(self, version: WeightVersion) -> list[Acknowledgement]:
        return self._wait("commit", [g.call(Generator.commit, version) for g in self._generators])

    def _stage(self, stage: Stage, infos: Sequence[dict[str, Any] | None] = ()) -> None:
        infos = infos or [None] * len(self._generators)
        calls = [g.call(Generator.transfer, stage, info) for g, info in zip(self._generators, infos, strict=True)]
        self._wait(stage, calls)

    def _wait(self, what: str, calls: Sequence[Call[R]]) -> list[R]:
        return wait_for(calls, Deadline(self._deadline_s, "sync_s", f"to {what}"))
