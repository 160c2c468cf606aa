"""The generation actor: one engine and one tokenizer of one policy.

A generator serves no requests before its first weight update, so a restarted generator cannot answer with the base
model's weights.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from marl_ray.actors.engine import Engine, engine_facts
from marl_ray.actors.engine_arguments import EngineSpec
from marl_ray.actors.handle import Actor, without_gc
from marl_ray.cluster.placement_group import BundleGpus
from marl_ray.cluster.ray_connection import use_session_folder
from marl_ray.config import ModelConfig
from marl_ray.core.chat import Prompt, TokenPrompt, as_messages
from marl_ray.core.episode import Completion, Generation, SamplingSpec, WeightVersion
from marl_ray.core.errors import RejectedMessages, UserError
from marl_ray.core.ids import ActorId
from marl_ray.models import tokenization
from marl_ray.models.control_tokens import count_control_tokens
from marl_ray.models.conversations import extend_conversation
from marl_ray.weights import receiver
from marl_ray.weights.receiver import Acknowledgement, StaleSenderError, TransferStage

PROMPTS_PER_YIELD = 256


class GenerationActor(Actor):
    """Ray actor (asynchronous): concurrent calls share the engine's batches. `gpus` are the GPUs to use; None: Ray
    assigns them. `adapter` is the number of the policy's adapter in the engine, if the engine has adapters."""

    def __init__(
        self, id: ActorId, spec: EngineSpec, model: ModelConfig, gpus: BundleGpus | None = None, adapter: int = 0
    ) -> None:
        self.id = id
        self.spec = spec
        self.model = model
        self.adapter = adapter
        self._gpus = gpus
        self.shared_engine: Engine | None = None
        """Engine of another policy to use; None: an engine of its own."""
        self.version: WeightVersion | None = None
        """Version that the engine serves; None before the first weight update."""
        self.learner_incarnation = 0
        """Incarnation of the learner whose updates are accepted."""
        self._streamed: dict[str, tuple[int, ...] | str] = {}
        """Streamed requests with new tokens since the last call of `progress`, by name: all of their tokens, or their
        text if the engine has decoded them."""
        self._has_progress = asyncio.Event()

    async def start(self) -> list[str]:
        """Load tokenizer and engine. Raises UserError for settings that vLLM rejects."""
        use_session_folder()
        # Every engine takes free ports. A port for all of them would collide, and Kubernetes sets this variable to an
        # address for a service called vllm.
        os.environ.pop("VLLM_PORT", None)
        if self._gpus is not None:
            await asyncio.to_thread(self._gpus.make_visible)
        with without_gc():
            from marl_ray.learning.device import choose_device  # with torch, which a driver need not load to start

            choose_device(self.spec.on_gpu)
            self.tokenizer = tokenization.load_tokenizer(self.spec.model, self.model)
            self.use_template, reason = tokenization.decide_template(self.spec.model, self.tokenizer, self.model)
            try:
                self.engine = self.shared_engine or Engine(self.spec, self.tokenizer.eos_token_id)
            except ValueError as error:  # vLLM's error for invalid combinations of settings
                problem = f"vLLM refuses {self.spec.model} with these settings: {str(error)[:500]}"
                if self.spec.lora is not None:
                    problem += " (with lora.in_engine false, it would serve merged weights)"
                raise UserError(problem) from None
        # The learner uses the device first: an engine that shares it wakes for its first weights.
        if self.spec.sleeps:
            await self.engine.sleep()
        if self.id.replica > 0:
            return []
        return [tokenization.describe_prompt_format(str(self.id.policy), self.use_template, reason)]

    async def prompt_lengths(self, prompts: Sequence[Prompt], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Return the number of tokens of each prompt. Yields regularly, so that heartbeats are answered."""
        lengths = []
        for index, prompt in enumerate(prompts):
            if index % PROMPTS_PER_YIELD == 0:
                await asyncio.sleep(0)
            prompt_ids = tokenization.encode_prompt(self.tokenizer, prompt, self.use_template, template_kwargs)
            lengths.append(len(prompt_ids))
        return lengths

    async def fingerprint(self, texts: list[str]) -> str:
        return tokenization.fingerprint(self.tokenizer, texts)

    async def generate(
        self, prompt: Prompt | TokenPrompt, sampling: SamplingSpec, priority: int = 0, history: tuple[int, ...] = ()
    ) -> Generation:
        """Sample a group of completions (`Engine.generate`), empty if the prompt leaves no room for `max_new_tokens`.

        `history` are the token ids of the conversation that the prompt continues. Raises RuntimeError before the first
        weight update, and ActorBroken after a failure of the engine.
        """
        self._check_weights()
        prompt_ids = self._encode(prompt, sampling, history, self.use_template)
        if not self._has_room(prompt_ids, sampling):
            return Generation(tuple(prompt_ids), ())
        samples = await self.engine.generate(prompt_ids, sampling, priority, self.adapter)
        generation = self._with_texts(prompt_ids, samples, sampling)
        if isinstance(prompt, TokenPrompt) or not self.use_template:
            return generation
        return replace(generation, control_tokens=count_control_tokens(self.tokenizer, as_messages(prompt)))

    async def stream(
        self,
        name: str,
        prompt: Prompt | TokenPrompt,
        sampling: SamplingSpec,
        report: bool,
        raw: bool,
        history: tuple[int, ...] = (),
    ) -> Generation:
        """Sample one completion as `generate` does. With `report`, `progress` returns its text meanwhile, under `name`.
        Messages go through the chat template, or are joined for a model without one. `raw`: a text does not go through
        it."""
        self._check_weights()
        prompt_ids = self._encode(prompt, sampling, history, self.use_template and not raw)
        if not self._has_room(prompt_ids, sampling):
            return Generation(tuple(prompt_ids), ())
        loop = asyncio.get_running_loop()

        def on_tokens(token_ids: tuple[int, ...], text: str) -> None:
            # The engine decodes only completions with stop texts. This is its thread, not the loop's.
            so_far = text if sampling.stop else token_ids
            loop.call_soon_threadsafe(self._note_tokens, name, so_far)

        listener = on_tokens if report else None
        samples = await self.engine.stream(self._in_engine(name), prompt_ids, sampling, listener, self.adapter)
        return self._with_texts(prompt_ids, samples, sampling)

    def _check_weights(self) -> None:
        if self.version is None:
            raise RuntimeError(f"{self.id} has not received any weights yet")

    def _encode(
        self, prompt: Prompt | TokenPrompt, sampling: SamplingSpec, history: tuple[int, ...], template: bool
    ) -> list[int]:
        """Return the token ids of a prompt after a conversation. Raises UserError if the template rejects it, or if it
        has no tokens, from which no model can sample."""
        from jinja2 import TemplateError

        if isinstance(prompt, TokenPrompt):
            return list(prompt.token_ids)
        try:
            if history:
                return extend_conversation(self.tokenizer, history, prompt, template, sampling.template_kwargs)
            prompt_ids = tokenization.encode_prompt(self.tokenizer, prompt, template, sampling.template_kwargs)
        except (TemplateError, TypeError, ValueError) as error:
            raise RejectedMessages(f"the chat template of the model rejects these messages: {error}") from None
        if not prompt_ids:
            raise UserError(f"a prompt for {self.id.policy} is empty: its model needs at least one token to begin with")
        return prompt_ids

    def _has_room(self, prompt_ids: Sequence[int], sampling: SamplingSpec) -> bool:
        return len(prompt_ids) + sampling.max_new_tokens <= self.spec.max_length

    def _with_texts(self, prompt_ids: list[int], samples: Sequence[Completion], sampling: SamplingSpec) -> Generation:
        """Return the generation with texts. With stop texts the engine has decoded them."""
        if sampling.stop:
            texts = [sample.text for sample in samples]
        else:
            texts = self._decode([sample.token_ids for sample in samples])
        completions = []
        for sample, text in zip(samples, texts, strict=True):
            completions.append(replace(sample, text=text, json_schema=sampling.json_schema))
        return Generation(tuple(prompt_ids), tuple(completions))

    def _decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        texts: list[str] = self.tokenizer.batch_decode(sequences, skip_special_tokens=True)
        return texts

    async def progress(self, wait_s: float) -> dict[str, str]:
        """Return the text so far of each streamed request with new tokens since the last call, by name. Wait at most
        `wait_s` seconds for the first."""
        try:
            async with asyncio.timeout(wait_s):
                await self._has_progress.wait()
        except TimeoutError:
            return {}
        self._has_progress.clear()
        streamed = self._streamed
        self._streamed = {}
        texts: dict[str, str] = {}
        token_ids: dict[str, tuple[int, ...]] = {}
        for name, so_far in streamed.items():
            if isinstance(so_far, str):
                texts[name] = so_far
            else:
                token_ids[name] = so_far
        decoded = self._decode(list(token_ids.values()))
        return texts | dict(zip(token_ids, decoded, strict=True))

    async def abort(self, name: str) -> None:
        """Stop a request of `stream`. Does nothing if this replica does not have it."""
        await self.engine.abort(self._in_engine(name))

    def _in_engine(self, name: str) -> str:
        """Return the engine's name of a streamed request, which differs between policies."""
        return f"{name} of adapter {self.adapter}"

    def _note_tokens(self, name: str, so_far: tuple[int, ...] | str) -> None:
        self._streamed[name] = so_far
        self._has_progress.set()

    async def heartbeat(self) -> None:
        await self.engine.heartbeat()

    async def sleep(self) -> None:
        await self.engine.sleep()

    async def engine_facts(self) -> dict[str, str]:
        return await self.engine.call(engine_facts)

    async def memory(self) -> int:
        """Return the bytes in use on the device, over all workers of the engine."""
        return sum(await self.engine.call(lambda engine: engine.collective_rpc("memory_in_use")))

    async def exit_at_weight(self, number: int) -> None:
        """Kill the engine's workers when they load weight `number` of an update, for a check of losses."""
        await self.engine.call(lambda engine: engine.collective_rpc("exit_at_weight", args=(number,)))

    async def serve_initial_weights(self, version: WeightVersion) -> None:
        """Serve the weights that the engine has loaded as `version`, for an evaluation."""
        await self.engine.update_weights(lambda engine: engine.set_weight_version(str(version)))
        self.version = version

    async def fence(self, incarnation: int) -> None:
        """Set the current incarnation of the policy's learner. From then on this method and the methods below raise
        StaleSenderError for earlier incarnations."""
        if incarnation < self.learner_incarnation:
            raise StaleSenderError(
                f"refuses incarnation {incarnation} of its learner, which is in incarnation {self.learner_incarnation}"
            )
        self.learner_incarnation = incarnation

    async def drain(self) -> None:
        """Finish all requests in flight before a weight update."""
        await self.engine.drain()

    async def run_stage(self, incarnation: int, stage: TransferStage, info: dict[str, Any] | None = None) -> bool:
        """Run one stage of a weight update that the learner drives stage by stage. Return whether it succeeded; False
        if another process of the transfer is lost."""
        await self.fence(incarnation)
        submit = self.engine.call
        if stage == "start_weight_update":
            submit = self.engine.begin_update
        elif stage == "init_weight_transfer_engine":
            submit = self.engine.occupy  # all processes of a transfer wait for each other
        return await submit(lambda engine: receiver.run_stage(engine, stage, info))

    async def update_weights(self, incarnation: int, version: WeightVersion, update: Any) -> Acknowledgement:
        """Apply a `WeightUpdate`, or None for the weights received last, and serve the weights as `version`."""
        await self.fence(incarnation)
        acknowledgement = await self.engine.update_weights(
            lambda engine: receiver.update_weights(engine, self.id, version, update, self.adapter), self.adapter
        )
        self.version = acknowledgement.version
        return acknowledgement
