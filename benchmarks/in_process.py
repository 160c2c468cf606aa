"""Train in one process: the package's trainer, rollout, estimators and learners, without Ray and vLLM.

    python -m benchmarks.in_process --config FILE --override output.base_dir=FOLDER output.run_name=NAME [KEY=VALUE ...]

For studies of toy policies, whose actors take longer to start than the run itself takes. Each policy samples in the
process of its learner, and one sandbox executes the programs; the trainer takes these in the places of generators,
learners and the sandbox pool. Writes config.yaml, metrics.jsonl, episodes.jsonl and models/ of the run folder, which
`marl-ray eval` and `marl-ray report` read, and no checkpoint: runs of a minute are repeated, not resumed.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import islice, starmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.simulated_actors import NoLog
from marl_ray.actors.sandbox_settings import sandbox_settings
from marl_ray.config import Config, load, parse_overrides, to_yaml
from marl_ray.config.budget import training_budget
from marl_ray.core.batch import GroupQueue, UpdateStats
from marl_ray.core.chat import Prompt, TokenPrompt, as_text
from marl_ray.core.episode import Completion, Generation, SamplingSpec
from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from marl_ray.launch.run_checks import check, folder_of
from marl_ray.learning.arguments import learner_arguments
from marl_ray.learning.learner import Learner
from marl_ray.sandbox import ExecutionReport, Program, Sandbox, SandboxSettings
from marl_ray.storage.resume import ResumeState
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.sinks import JsonlSink, MetricStream
from marl_ray.trainer.loop import Trainer

BATCH = 256
"""Completions that are sampled together."""


class Request:
    """A group to sample: the prompt's ids, and one uniform random number per completion and token [G, T]."""

    def __init__(self, prompt_ids: Sequence[int], sampling: SamplingSpec) -> None:
        self.prompt_ids = tuple(prompt_ids)
        self.sampling = sampling
        size = (sampling.num_generations, sampling.max_new_tokens)
        # From the group's own seed, so that a group does not depend on the groups that are sampled beside it.
        self.uniform = torch.rand(size, generator=torch.Generator().manual_seed(sampling.seed % 2**63))
        self.sampled: list[tuple[list[int], list[float]]] = []
        """Tokens and their log probabilities of each completion, also after the end token."""


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
        self._turn = asyncio.Lock()

    async def generate(
        self, prompt: Prompt | TokenPrompt, sampling: SamplingSpec, priority: int = 0, history: tuple[int, ...] = ()
    ) -> Generation:
        assert (sampling.stop, sampling.top_p, sampling.top_k, sampling.json_schema) == ((), 1.0, None, "")
        assert sampling.temperature > 0
        assert sampling.min_new_tokens == 0
        if isinstance(prompt, TokenPrompt):
            prompt_ids = prompt.token_ids
        else:
            prompt_ids = self.learner.tokenizer(as_text(prompt)).input_ids
        request = Request(prompt_ids, sampling)
        self._waiting.append(request)
        if self._batch is None:
            self._batch = asyncio.create_task(self._sample_waiting())
        await self._batch
        return Generation(request.prompt_ids, tuple(starmap(self._completion, request.sampled)))

    async def learn(self, queue: GroupQueue) -> UpdateStats:
        return self.learner.update(await queue.batch())

    async def update_weights(self, changed: bool) -> None:
        self._model.load_state_dict(self.learner.policy.state_dict())

    async def begin_save(self, folder: str) -> None:
        """Copy nothing: runs of seconds are repeated, not resumed."""

    async def finish_save(self, may_restart: bool = True) -> None:
        """Write nothing."""

    async def export(self, folder: str, texts: list[str]) -> None:
        self.learner.export(folder, texts)

    async def _sample_waiting(self) -> None:
        async with self._turn:
            await asyncio.sleep(0)  # all requests of this turn of the event loop become one batch
            self._batch = None
            requests, self._waiting = self._waiting, []
            # In a thread, so that requests of programs arrive meanwhile and become the next batch.
            await asyncio.to_thread(self._sample_all, requests)

    def _sample_all(self, requests: Sequence[Request]) -> None:
        alike: dict[tuple[float, ...], list[Request]] = {}
        for request in requests:
            alike.setdefault((*request.uniform.shape, request.sampling.temperature), []).append(request)
        for (siblings, *_), group in alike.items():
            group.sort(key=lambda request: len(request.prompt_ids))
            size = max(1, BATCH // int(siblings))
            for start in range(0, len(group), size):
                self._sample(group[start : start + size])

    @torch.no_grad()
    def _sample(self, requests: Sequence[Request]) -> None:
        """Sample groups of one size and temperature."""
        eos = self.learner.tokenizer.eos_token_id
        temperature = requests[0].sampling.temperature
        uniform = torch.cat([request.uniform for request in requests])
        logits, cache, mask = self._read_prompts(requests)
        one = torch.ones_like(mask[:, :1])
        positions = mask.sum(-1, keepdim=True) - 1
        ended = torch.zeros(len(uniform), dtype=torch.bool)
        tokens, logprobs = [], []
        for place in range(uniform.shape[1]):
            of_tokens = (logits.double() / temperature).log_softmax(-1)
            bounds = of_tokens.exp().cumsum(-1)
            bounds /= bounds[:, -1:].clone()  # rounding must not leave a gap below 1
            token = (bounds <= uniform[:, place, None]).sum(-1, keepdim=True)
            tokens.append(token)
            logprobs.append(of_tokens.gather(1, token))
            ended |= token[:, 0] == eos
            if ended.all():
                break
            mask = torch.cat([mask, one], dim=1)
            positions = positions + 1
            step = self._model(
                input_ids=token, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
            )
            logits = step.logits[:, -1]
        ids = torch.cat(tokens, dim=1)
        sampled = zip(ids.tolist(), torch.cat(logprobs, dim=1).tolist(), strict=True)
        for request in requests:
            request.sampled = list(islice(sampled, request.sampling.num_generations))

    def _read_prompts(self, requests: Sequence[Request]) -> tuple[torch.Tensor, Any, torch.Tensor]:
        """Return the logits of each completion's first token [B, V], the keys and values, and the mask of the prompts
        [B, P]. Each prompt is read once. Padding is on the left."""
        siblings = requests[0].sampling.num_generations
        longest = max(len(request.prompt_ids) for request in requests)
        prompts = torch.zeros(len(requests), longest, dtype=torch.long)
        mask = torch.zeros_like(prompts)
        for row, request in enumerate(requests):
            prompts[row, longest - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
            mask[row, longest - len(request.prompt_ids) :] = 1
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        read = self._model(
            input_ids=prompts, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1
        )
        cache = read.past_key_values
        cache.batch_repeat_interleave(siblings)
        return read.logits[:, -1].repeat_interleave(siblings, 0), cache, mask.repeat_interleave(siblings, 0)

    def _completion(self, tokens: Sequence[int], logprobs: Sequence[float]) -> Completion:
        eos = self.learner.tokenizer.eos_token_id
        length = len(tokens)
        reason = "length"
        if eos in tokens:
            length = tokens.index(eos) + 1
            reason = "stop"
        kept = tuple(tokens[:length])
        text = self.learner.tokenizer.decode(kept, skip_special_tokens=True)
        return Completion(kept, text, tuple(logprobs[:length]), reason, ((self.learner.step, length),))


class Programs:
    """One sandbox, started by its first program, which runs programs one after another. Equal programs run once."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._sandbox = Sandbox(settings)
        self._reports: dict[str, ExecutionReport] = {}
        self._turn = asyncio.Lock()
        self._new = 0

    async def execute(self, programs: Sequence[Program]) -> list[ExecutionReport]:
        async with self._turn:
            missing = {program.key: program for program in programs if program.key not in self._reports}
            if missing:
                await asyncio.to_thread(self._run, missing)
        return [self._reports[program.key] for program in programs]

    def take_executions(self) -> int:
        new, self._new = self._new, 0
        return new

    def close(self) -> None:
        self._sandbox.close()

    def _run(self, programs: Mapping[str, Program]) -> None:
        self._sandbox.start()
        reports = self._sandbox.run_each(list(programs.values()))
        for key, report in zip(programs, reports, strict=True):
            assert report.infra_error is None, report.infra_error
            self._reports[key] = report
            self._new += 1


async def _train(config: Config, run: RunFolder) -> None:
    inputs = check(config, dry=True)
    steps = training_budget(config, len(inputs.train_tasks)).optimizer_steps
    policies = {policy: Policy(config, policy, steps) for policy in config.policies}
    programs = Programs(sandbox_settings(config.sandbox))
    actors: Any = SimpleNamespace(
        generators=[policies[config.policy_of(agent)] for agent in range(config.num_agents)],
        learners=list(policies.values()),
        sandbox=programs,
        pop_memory_metrics=lambda step: {},
        take_queue_metrics=dict,
    )
    run.log = NoLog()  # type: ignore[assignment]
    run.write_config(to_yaml(config), 0)
    metrics = MetricStream([JsonlSink(run.metrics, run.episodes, 0, 0, run.timeline)])
    try:
        await Trainer(config, inputs, run, ResumeState.at_start(), actors, metrics).run()
    finally:
        metrics.close()
        programs.close()
        # The trainer has written its own part of checkpoints whose models do not exist.
        shutil.rmtree(run.checkpoints.folder, ignore_errors=True)


def train(config: Config) -> RunFolder:
    """Train in the run folder of the config, which is made anew, and return it."""
    torch.set_num_threads(1)
    run = folder_of(config)
    shutil.rmtree(run.path, ignore_errors=True)
    run.make()
    asyncio.run(_train(config, run))
    return run


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--override", nargs="+", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args(argv)
    try:
        train(load(arguments.config, "magrpo", parse_overrides(arguments.override)))
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
