"""The learner actor: one `Learner`, and what ties it to the agent's generators."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_ray.actors.handle import Actor, Handle
from marl_ray.config.schema import AgentConfig, ModelConfig, OptimizerConfig
from marl_ray.core.batch import Batch, UpdateStats
from marl_ray.core.ids import ActorId
from marl_ray.core.tree import WeightVersion
from marl_ray.models.tokenization import fingerprint

if TYPE_CHECKING:  # they import torch, which the driver, who imports this module, does without
    from marl_ray.actors.generator import Generator
    from marl_ray.weights.transport import TransportName


class LearnerActor(Actor):
    """Ray actor: one rank of an agent's learner. The arguments after `id` are those of `Learner`."""

    def __init__(
        self,
        id: ActorId,
        model_path: str,
        agent: AgentConfig,
        model: ModelConfig,
        optimizer: OptimizerConfig,
        wire_dtype: str,
        total_steps: int,
        threads: int,
    ) -> None:
        self.id = id
        self._arguments: Any = (model_path, agent, model, optimizer, wire_dtype, total_steps, threads)

    def start(self) -> list[str]:
        """Load the model."""
        from marl_ray.learning.learner import Learner

        self.learner = Learner(*self._arguments)
        if self.learner.layout == "packed":
            return []
        return [
            f"agent {self.id.agent}: learns in padded batches with the model's own attention, which takes longer: "
            f"{self.learner.why_padded}"
        ]

    def fingerprint(self, texts: list[str]) -> str:
        """See `marl_ray.models.tokenization.fingerprint`."""
        return fingerprint(self.learner.tokenizer, texts)

    def sees(self, path: str) -> bool:
        """Whether this actor's node sees `path` of the driver's file system."""
        return Path(path).exists()

    def connect(
        self, generators: list[Handle[Generator]], ranks_each: int, transport: TransportName, deadline_s: float
    ) -> None:
        """Join the agent's generators, of `ranks_each` workers each, for weight sync."""
        from marl_ray.actors.generator_client import GeneratorClient
        from marl_ray.weights.transport import Publisher

        client = GeneratorClient(generators, ranks_each, deadline_s)
        self.publisher = Publisher(self.learner.policy, self.learner.dtype, transport, client)

    def publish(self, version: WeightVersion) -> int:
        """Push the weights to the generators as `version`; returns the acknowledged checksum. Raises SyncError."""
        return self.publisher.publish(version)

    def relabel(self, version: WeightVersion) -> int:
        """Let the generators serve the weights that they have as `version`; returns the acknowledged checksum."""
        return self.publisher.relabel(version)

    def update(self, batch: Batch) -> UpdateStats:
        """See `Learner.update`."""
        return self.learner.update(batch)

    def save(self, folder: str) -> None:
        """See `Learner.save`."""
        self.learner.save(folder)

    def load(self, folder: str) -> None:
        """See `Learner.load`."""
        self.learner.load(folder, 0)

    def export(self, folder: str, texts: list[str]) -> None:
        """See `Learner.export`."""
        self.learner.export(folder, texts)
