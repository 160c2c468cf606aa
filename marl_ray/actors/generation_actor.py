"""The generation actor: one engine and one tokenizer of one policy.

A generator serves no requests before its first weight update, so a restarted generator cannot answer with the base
model's weights. In an evaluation it is told to serve the weights that it has loaded.
"""

from __future__ import annotations

import asyncio
from typing import Any

from marl_ray.actors.engine import Engine
from marl_ray.actors.handle import Actor, without_gc
from marl_ray.actors.vllm_arguments import EngineSpec
from marl_ray.cluster.ray_connection import use_session_folder
from marl_ray.config import ModelConfig
from marl_ray.core.episode import Generation, SamplingSpec, WeightVersion
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId
from marl_ray.models.tokenization import (
    decide_template,
    describe_prompt_format,
    encode_prompt,
    fingerprint,
    load_tokenizer,
)
from marl_ray.weights import receiver
from marl_ray.weights.receiver import Acknowledgement, StaleSenderError, TransferStage

PROMPTS_PER_YIELD = 256


class GenerationActor(Actor):
    """Ray actor (asynchronous): concurrent calls share the engine's batches."""

    def __init__(self, id: ActorId, spec: EngineSpec, model: ModelConfig) -> None:
        self.id = id
        self.spec = spec
        self.model = model
        self.version: WeightVersion | None = None
        self.learner_incarnation = 0

    async def start(self) -> list[str]:
        """Load tokenizer and engine. Raises UserError for settings that vLLM rejects."""
        use_session_folder()
        with without_gc():
            self.tokenizer = load_tokenizer(self.spec.model, self.model)
            self.use_template, reason = decide_template(self.spec.model, self.tokenizer, self.model)
            try:
                self.engine = Engine(self.spec, self.tokenizer.eos_token_id)
            except ValueError as error:  # vLLM's error for invalid combinations of settings
                raise UserError(f"vLLM refuses {self.spec.model} with these settings: {str(error)[:500]}") from None
        if self.spec.colocated:
            await self.engine.sleep()
        if self.id.replica > 0:
            return []
        return [describe_prompt_format(str(self.id.policy), self.use_template, reason)]

    async def prompt_lengths(self, prompts: list[str]) -> list[int]:
        """Return the number of tokens of each prompt. Yields regularly, so that heartbeats are answered."""
        lengths = []
        for index, prompt in enumerate(prompts):
            if index % PROMPTS_PER_YIELD == 0:
                await asyncio.sleep(0)
            lengths.append(len(self._encode(prompt)))
        return lengths

    async def fingerprint(self, texts: list[str]) -> str:
        """Return the fingerprint of the tokenizer (`marl_ray.models.tokenization.fingerprint`)."""
        return fingerprint(self.tokenizer, texts)

    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        """Sample a group of completions of one prompt (`Engine.generate`). The group is empty if the prompt leaves no
        room for `max_new_tokens`.

        Raises RuntimeError before the first weight update, and ActorBroken after a failure of the engine.
        """
        if self.version is None:
            raise RuntimeError(f"{self.id} has not received any weights yet")
        prompt_ids = self._encode(prompt)
        if self.spec.max_length - len(prompt_ids) < sampling.max_new_tokens:
            return Generation(tuple(prompt_ids), ())
        samples = await self.engine.generate(prompt_ids, sampling, priority)
        texts = self.tokenizer.batch_decode([s.token_ids for s in samples], skip_special_tokens=True)
        return Generation(tuple(prompt_ids), tuple(s.to_completion(t) for s, t in zip(samples, texts, strict=True)))

    async def heartbeat(self) -> None:
        """Return when the engine answers (`Engine.heartbeat`)."""
        await self.engine.heartbeat()

    async def sleep(self) -> None:
        """Release the device until the next weight update (`Engine.sleep`)."""
        await self.engine.sleep()

    async def memory(self) -> int:
        """Return the bytes in use on the device, over all workers of the engine."""
        return sum(await self.engine.call(lambda engine: engine.collective_rpc("memory_in_use")))

    async def serve_initial_weights(self, version: WeightVersion) -> None:
        """Serve the weights that the engine has loaded as `version`, for an evaluation."""
        await self.engine.update_weights(lambda engine: engine.set_weight_version(str(version)))
        self.version = version

    async def fence(self, incarnation: int) -> None:
        """Set the current incarnation of the policy's learner. Weight updates from earlier incarnations are rejected
        from then on: this method and all methods below raise StaleSenderError."""
        if incarnation < self.learner_incarnation:
            current = self.learner_incarnation
            raise StaleSenderError(
                f"refuses incarnation {incarnation} of its learner, which is in incarnation {current}"
            )
        self.learner_incarnation = incarnation

    async def run_stage(self, incarnation: int, stage: TransferStage, info: dict[str, Any] | None = None) -> None:
        """Run one stage of a weight update that the learner drives stage by stage."""
        await self.fence(incarnation)
        submit = self.engine.begin_update if stage == "start_weight_update" else self.engine.call
        await submit(lambda engine: receiver.run_stage(engine, stage, info))

    async def update_weights(self, incarnation: int, version: WeightVersion, weights: Any) -> Acknowledgement:
        """Apply a whole weight update as one command of the engine's thread, and serve it as `version`."""
        await self.fence(incarnation)
        return self._serve(
            await self.engine.update_weights(lambda engine: receiver.update_weights(engine, self.id, version, weights))
        )

    async def set_version(self, incarnation: int, version: WeightVersion) -> Acknowledgement:
        """Serve the weights that were received last as `version`."""
        await self.fence(incarnation)
        return self._serve(
            await self.engine.update_weights(lambda engine: receiver.set_version(engine, self.id, version))
        )

    def _serve(self, acknowledgement: Acknowledgement) -> Acknowledgement:
        self.version = acknowledgement.version
        return acknowledgement

    def _encode(self, prompt: str) -> list[int]:
        return encode_prompt(self.tokenizer, prompt, self.use_template)
