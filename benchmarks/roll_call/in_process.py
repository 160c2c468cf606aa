"""A training run in one process: the package's trainer, rollout, estimators and learners, without Ray and vLLM.

Each policy samples in the process of its learner, so a run of eight policies of 0.04 M parameters has no actors to
start. The trainer takes these policies in the places of generators and learners.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.simulated_actors import NoLog, Sandbox
from marl_ray.config import Config, from_keywords
from marl_ray.config.budget import training_budget
from marl_ray.core.batch import GroupQueue, UpdateStats
from marl_ray.core.chat import Prompt, as_text
from marl_ray.core.episode import Completion, Generation, SamplingSpec
from marl_ray.core.ids import PolicyId
from marl_ray.launch.run_checks import check
from marl_ray.learning.arguments import learner_arguments
from marl_ray.learning.learner import Learner
from marl_ray.storage.resume import ResumeState
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.metrics import MetricRow
from marl_ray.telemetry.sinks import MetricStream, Sink
from marl_ray.trainer.loop import Trainer


class Rows(Sink):
    """The metric rows of a run in memory."""

    def __init__(self) -> None:
        self.rows: list[MetricRow] = []

    def row(self, row: MetricRow, name: str) -> None:
        self.rows.append(row)


class Request:
    """A group to sample: the prompt's ids, and one uniform random number per completion and token [G, T]."""

    def __init__(self, prompt_ids: Sequence[int], sampling: SamplingSpec) -> None:
        self.prompt_ids = tuple(prompt_ids)
        self.sampling = sampling
        size = (sampling.num_generations, sampling.max_new_tokens)
        # From the group's own seed, so that a group does not depend on the groups that are sampled beside it.
        self.uniform = torch.rand(size, generator=torch.Generator().manual_seed(sampling.seed % 2**63))
        self.completions: tuple[Completion, ...] = ()


class Policy:
    """The generator and the learner of one policy."""

    def __init__(self, config: Config, policy: PolicyId, optimizer_steps: int) -> None:
        self.policy = policy
        arguments = learner_arguments(config, policy, optimizer_steps, on_gpu=False)
        self.learner = Learner(*arguments, name=policy.key)
        # The learner's own model has an attention for packed rows.
        self._model = AutoModelForCausalLM.from_pretrained(arguments.model_path)
        self._waiting: list[Request] = []
        self._batch: asyncio.Task[None] | None = None

    async def generate(
        self, prompt: Prompt, sampling: SamplingSpec, priority: int = 0, history: tuple[int, ...] = ()
    ) -> Generation:
        request = Request(self.learner.tokenizer(as_text(prompt)).input_ids, sampling)
        self._waiting.append(request)
        if self._batch is None:
            self._batch = asyncio.create_task(self._sample_waiting())
        await self._batch
        return Generation(request.prompt_ids, request.completions)

    async def learn(self, queue: GroupQueue) -> UpdateStats:
        return self.learner.update(await queue.batch())

    async def update_weights(self, changed: bool) -> None:
        self._model.load_state_dict(self.learner.policy.state_dict())

    async def begin_save(self, folder: str) -> None:
        """Copy nothing: runs of seconds are repeated, not resumed."""

    async def finish_save(self, may_restart: bool = True) -> None:
        """Write nothing."""

    async def _sample_waiting(self) -> None:
        await asyncio.sleep(0)  # all requests of this turn of the event loop become one batch
        self._batch = None
        by_length: dict[tuple[int, int], list[Request]] = {}
        for request in self._waiting:
            key = (len(request.prompt_ids), request.sampling.max_new_tokens)
            by_length.setdefault(key, []).append(request)
        self._waiting = []
        for requests in by_length.values():
            self._sample(requests)

    @torch.no_grad()
    def _sample(self, requests: Sequence[Request]) -> None:
        """Sample groups whose prompts have one length."""
        eos = self.learner.tokenizer.eos_token_id
        prompts = []
        for request in requests:
            prompts += [request.prompt_ids] * request.sampling.num_generations
        start = len(prompts[0])
        ids = torch.tensor(prompts)
        uniform = torch.cat([request.uniform for request in requests])
        logprobs = []
        for place in range(uniform.shape[1]):
            logits = self._model(input_ids=ids, use_cache=False).logits[:, -1].double()
            of_tokens = (logits / self.learner.agent.temperature).log_softmax(-1)
            bounds = of_tokens.exp().cumsum(-1)
            bounds /= bounds[:, -1:].clone()  # rounding must not leave a gap below 1
            token = (bounds <= uniform[:, place, None]).sum(-1, keepdim=True)
            logprobs.append(of_tokens.gather(1, token))
            ids = torch.cat([ids, token], dim=1)
        sampled = zip(ids[:, start:].tolist(), torch.cat(logprobs, dim=1).tolist(), strict=True)
        completions = [self._completion(tokens, values, eos) for tokens, values in sampled]
        for request in requests:
            count = request.sampling.num_generations
            request.completions = tuple(completions[:count])
            del completions[:count]

    def _completion(self, tokens: Sequence[int], logprobs: Sequence[float], eos: int) -> Completion:
        length = len(tokens)
        reason = "length"
        if eos in tokens:
            length = tokens.index(eos) + 1
            reason = "stop"
        kept = tuple(tokens[:length])
        text = self.learner.tokenizer.decode(kept, skip_special_tokens=True)
        return Completion(kept, text, tuple(logprobs[:length]), reason, ((self.learner.step, length),))


async def _train(config: Config, folder: Path) -> list[MetricRow]:
    inputs = check(config, dry=True)
    steps = training_budget(config, len(inputs.train_tasks)).optimizer_steps
    policies = {policy: Policy(config, policy, steps) for policy in config.policies}
    actors: Any = SimpleNamespace(
        generators=[policies[config.policy_of(agent)] for agent in range(config.num_agents)],
        learners=list(policies.values()),
        sandbox=Sandbox(workers=1, program_s=0.0),  # roll calls have no programs
        pop_memory_metrics=lambda step: {},
        take_queue_metrics=dict,
    )
    sink = Rows()
    run = RunFolder(folder / "run")
    run.log = NoLog()  # type: ignore[assignment]
    await Trainer(config, inputs, run, ResumeState.at_start(), actors, MetricStream([sink])).run()
    return sink.rows


def train(config_file: Path, settings: Mapping[str, Any]) -> list[MetricRow]:
    """Train with the config and these settings by dotted key, and return the metric rows of all steps."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        own = {"output.base_dir": folder, "output.save_final_model": False, "output.episodes_per_step": 0}
        config = from_keywords(config_file, "magrpo", {}, {**settings, **own, "dataset.eval_split": None})
        return asyncio.run(_train(config, Path(folder)))
