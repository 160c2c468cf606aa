"""The generation actor: one engine and one tokenizer of one agent.

It serves nothing before its first weight update, so that a generator that was restarted cannot answer with
the base model's weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marl_ray.actors.engine import Engine, EngineSpec, SamplingSpec, to_completion
from marl_ray.config.schema import ModelConfig
from marl_ray.core.messages import Completion, WeightVersion
from marl_ray.models.tokenization import decide_template, encode_prompt, fingerprint, load_tokenizer, prompt_note


@dataclass(frozen=True, slots=True)
class Generation:
    """A prompt's ids and its group of completions; no completions when the prompt is too long."""

    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]


class Generator:
    """Ray actor (asynchronous): many calls run at the same time and share the engine's batches."""

    def __init__(self, agent: int, replica: int, spec: EngineSpec, model: ModelConfig) -> None:
        self.name = f"agent {agent} generator {replica}"
        self.spec = spec
        self.tokenizer = load_tokenizer(spec.model, model)
        self.through_template, why = decide_template(spec.model, self.tokenizer, model)
        self.notes = [prompt_note(agent, self.through_template, why)] if replica == 0 else []
        self.engine = Engine(spec, self.tokenizer.eos_token_id)
        self.version: WeightVersion | None = None

    async def ready(self) -> list[str]:
        """Answers once the engine is up, with what people should know of it."""
        return self.notes

    async def prompt_lengths(self, prompts: list[str]) -> list[int]:
        """Number of tokens of each prompt."""
        return [len(self._encode(prompt)) for prompt in prompts]

    async def tokenizer_fingerprint(self, texts: list[str]) -> str:
        """See `marl_ray.models.tokenization.fingerprint`."""
        return fingerprint(self.tokenizer, texts)

    async def generate(self, prompt: str, sampling: SamplingSpec) -> Generation:
        """Sample a group of completions of one prompt.

        Raises RuntimeError before the first weight update, or when the engine has failed.
        """
        if self.version is None:
            raise RuntimeError(f"{self.name} has not received any weights yet")
        prompt_ids = self._encode(prompt)
        room = self.spec.max_length - len(prompt_ids)
        if room < sampling.max_new_tokens:
            return Generation(tuple(prompt_ids), ())
        samples = await self.engine.generate(prompt_ids, sampling)
        texts = self.tokenizer.batch_decode([s[0] for s in samples], skip_special_tokens=True)
        completions = tuple(to_completion(s, text) for s, text in zip(samples, texts, strict=True))
        return Generation(tuple(prompt_ids), completions)

    async def weight_update(self, stage: str, info: dict[str, Any] | None = None) -> None:
        """One stage of vLLM's weight transfer: init, start, update or finish."""
        if info is not None and "weights_ref" in info:
            info = {"weights": await info["weights_ref"][0]}
        methods = {
            "init": "init_weight_transfer_engine",
            "start": "start_weight_update",
            "update": "update_weights",
            "finish": "finish_weight_update",
        }
        arguments = () if info is None else (info,)
        await self.engine.call(lambda engine: engine.collective_rpc(methods[stage], args=arguments))

    async def commit_weights(self, version: WeightVersion) -> tuple[WeightVersion, int]:
        """Serve the weights just received as `version`; returns it with their checksum."""

        def commit(engine: Any) -> tuple[str, int]:
            if not engine.reset_prefix_cache():
                raise RuntimeError(f"{self.name}: requests were in flight during a weight update")
            engine.set_weight_version(str(version))
            checksums = engine.collective_rpc("weight_checksum")
            if len(set(checksums)) > 1:
                raise RuntimeError(f"{self.name}: its workers loaded different weights ({checksums})")
            return engine.get_weight_version(), checksums[0]

        label, checksum = await self.engine.call(commit)
        self.version = int(label)
        return self.version, checksum

    def _encode(self, prompt: str) -> list[int]:
        return encode_prompt(self.tokenizer, prompt, self.through_template)
