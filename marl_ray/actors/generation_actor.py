"""The generation actor: one engine and one tokenizer of one policy.

It serves nothing before its first weight update, so that a generator that was restarted cannot answer with
the base model's weights; unless it is told to serve those that it has loaded.
"""

from __future__ import annotations

import asyncio
from typing import Any

from marl_ray.actors.engine import Engine
from marl_ray.actors.handle import Actor, loading
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

PROMPTS_AT_ONCE = 256


class GenerationActor(Actor):
    """Ray actor (asynchronous): many calls run at the same time and share the engine's batches."""

    def __init__(self, id: ActorId, spec: EngineSpec, model: ModelConfig) -> None:
        self.id = id
        self.spec = spec
        self.model = model
        self.version: WeightVersion | None = None
        self.learner_incarnation = 0

    async def start(self) -> list[str]:
        """Load tokenizer and engine. Raises UserError for settings that the engine refuses."""
        use_session_folder()
        with loading():
            self.tokenizer = load_tokenizer(self.spec.model, self.model)
            self.through_template, why = decide_template(self.spec.model, self.tokenizer, self.model)
            try:
                self.engine = Engine(self.spec, self.tokenizer.eos_token_id)
            except ValueError as error:  # vLLM's word for settings that do not go together
                raise UserError(f"vLLM refuses {self.spec.model} with these settings: {str(error)[:500]}") from None
        if self.spec.colocated:
            await self.engine.sleep()
        if self.id.replica > 0:
            return []
        return [describe_prompt_format(str(self.id.policy), self.through_template, why)]

    async def prompt_lengths(self, prompts: list[str]) -> list[int]:
        """Number of tokens of each prompt. Signs of life are given meanwhile, however many there are."""
        lengths = []
        for index, prompt in enumerate(prompts):
            if index % PROMPTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            lengths.append(len(self._encode(prompt)))
        return lengths

    async def fingerprint(self, texts: list[str]) -> str:
        """See `marl_ray.models.tokenization.fingerprint`."""
        return fingerprint(self.tokenizer, texts)

    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        """Sample a group of completions of one prompt; see `Engine.generate`.

        Raises RuntimeError before the first weight update, and ActorBroken when the engine has failed.
        """
        if self.version is None:
            raise RuntimeError(f"{self.id} has not received any weights yet")
        prompt_ids = self._encode(prompt)
        room = self.spec.max_length - len(prompt_ids)
        if room < sampling.max_new_tokens:
            return Generation(tuple(prompt_ids), ())
        samples = await self.engine.generate(prompt_ids, sampling, priority)
        texts = self.tokenizer.batch_decode([s.token_ids for s in samples], skip_special_tokens=True)
        return Generation(tuple(prompt_ids), tuple(s.completion(t) for s, t in zip(samples, texts, strict=True)))

    async def alive(self) -> None:
        """See `Engine.alive`."""
        await self.engine.alive()

    async def sleep(self) -> None:
        """See `Engine.sleep`. It wakes up for the learner's next weights."""
        await self.engine.sleep()

    async def memory(self) -> int:
        """Bytes in use; see `marl_ray.learning.cpu_offload.memory_in_use`."""
        return sum(await self.engine.call(lambda engine: engine.collective_rpc("memory_in_use")))

    async def serve_initial_weights(self, version: WeightVersion) -> None:
        """Serve what the engine has loaded, as `version`: for evaluations, in which nobody learns."""
        await self.engine.refit(lambda engine: engine.set_weight_version(str(version)))
        self.version = version

    async def meet(self, incarnation: int) -> None:
        """The learner's present incarnation. Whatever earlier ones still send is refused from now on, here and in all methods
        below: StaleSenderError."""
        if incarnation < self.learner_incarnation:
            raise StaleSenderError(
                f"refuses incarnation {incarnation} of its learner, which is in incarnation {self.learner_incarnation}"
            )
        self.learner_incarnation = incarnation

    async def run_stage(self, incarnation: int, stage: TransferStage, info: dict[str, Any] | None = None) -> None:
        """One stage of an update that the learner drives stage by stage."""
        await self.meet(incarnation)
        command = self.engine.hold if stage == "start_weight_update" else self.engine.call
        await command(lambda engine: receiver.run_stage(engine, stage, info))

    async def update_weights(self, incarnation: int, version: WeightVersion, weights: Any) -> Acknowledgement:
        """A whole update, and its commit: one command of the engine's thread."""
        await self.meet(incarnation)
        return self._serve(await self.engine.refit(lambda e: receiver.update_weights(e, self.id, version, weights)))

    async def set_version(self, incarnation: int, version: WeightVersion) -> Acknowledgement:
        """Serve the weights that were received last as `version`."""
        await self.meet(incarnation)
        return self._serve(await self.engine.refit(lambda engine: receiver.set_version(engine, self.id, version)))

    def _serve(self, acknowledgement: Acknowledgement) -> Acknowledgement:
        self.version = acknowledgement.version
        return acknowledgement

    def _encode(self, prompt: str) -> list[int]:
        return encode_prompt(self.tokenizer, prompt, self.through_template)
