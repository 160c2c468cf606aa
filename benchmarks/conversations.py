"""Conversations with `external.composition: chat`: drifted tokens, time of a later turn, and time of learning.

    python -m benchmarks.conversations [--model bundled:smollm2-135m] [--conversations 1000] [--new-tokens 24]
        [--parts drift turn learning]

One engine and one model in this process, without Ray. Prompts are the bundled toy tasks, the environment is a small one
that executes nothing. Prints

- drifted tokens: trained tokens whose id, or whose context in the learner's attention, differs from the engine's; and,
  for comparison, the answers whose ids would change if their text was tokenised again;
- the seconds of a second turn as a new prompt with first prompt and answer, as a conversation, and as a conversation
  without the engine's prefix cache;
- the seconds and tokens of one gradient with a row per turn and with a row per conversation, and the cosine of both.

The exit code is 1 if a token has drifted or if the cosine is below 0.9999.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from marl_ray.actors.engine import Engine
from marl_ray.actors.engine_arguments import EngineSpec
from marl_ray.actors.engine_environment import engine_environment
from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.config import Config, OptimizerConfig, from_tree
from marl_ray.core.batch import Group
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import Episode, Generation, Outcome, SamplingSpec, Task
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.data.loading import load_tasks
from marl_ray.environments.base import Environment
from marl_ray.external.modes import Message
from marl_ray.external.transition import next_prompt
from marl_ray.models.names import resolve_model
from marl_ray.models.tokenization import decide_template, load_tokenizer
from marl_ray.rollout.turn_player import TurnPlayer
from tests.credit.whole_batches import build_agent_batch

MAX_LENGTH = 1024
LEARNED, TIMED, LONG_PROMPT = 6, 8, 9
"""Conversations of the learning part and of the timing part, and tasks in each prompt of the timing part."""
MIN_COSINE, MICROBATCH = 0.9999, 8192
PARTS = ("drift", "turn", "learning")


@dataclass(frozen=True)
class Answers:
    """The answers of all agents. Nothing is executed."""

    answers: tuple[str, ...]
    program = None


class Lengths(Environment[Answers]):
    """Agents earn by the number of words of their answers."""

    modes = ("passed",)

    def roles(self, task: Task) -> list[str]:
        return [f"writer {number}" for number in range(self.num_agents)]

    def first_prompts(self, task: Task) -> list[str]:
        return [f"{task.prompt.strip()}\nExplain this function.\n"] * self.num_agents

    def revisions(self, task: Task) -> list[str]:
        return ["Write it again, and shorter."] * self.num_agents

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Answers:
        return Answers(tuple(responses))

    def outcome(self, attempt: Answers, report: None) -> Outcome:
        return Outcome(1.0 + sum(len(text.split()) for text in attempt.answers))

    def feedback(self, attempt: Answers, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return [f"the answer has {outcome.reward - 1:g} words"]


class LocalGenerator(GenerationActor):
    """A generation actor in this process. `sampled` has the token ids of every request: prompt and completions."""

    async def start(self) -> list[str]:
        self.sampled: list[tuple[tuple[int, ...], list[tuple[int, ...]]]] = []
        self.cached_tokens = 0
        self.tokenizer = load_tokenizer(self.spec.model, self.model)
        self.use_template, reason = decide_template(self.spec.model, self.tokenizer, self.model)
        self.engine = Engine(self.spec, self.tokenizer.eos_token_id)
        engine_generate = self.engine.generate

        async def generate(prompt_ids: list[int], sampling: SamplingSpec, priority: int) -> Any:
            completions = await engine_generate(prompt_ids, sampling, priority)
            self.sampled.append((tuple(prompt_ids), [c.token_ids for c in completions]))
            return completions

        self.engine.generate = generate  # type: ignore[method-assign, assignment]
        await self.engine.call(self._count_cached_tokens)
        await self.serve_initial_weights(0)
        return [reason]

    def _count_cached_tokens(self, engine: Any) -> None:
        step = engine.step

        def counted() -> Any:
            outputs = step()
            self.cached_tokens += sum(output.num_cached_tokens or 0 for output in outputs if output.finished)
            return outputs

        engine.step = counted

    async def empty_cache(self) -> None:
        """Let no later request use keys and values of earlier ones."""
        await self.serve_initial_weights(0)
        self.cached_tokens = 0


class NothingToExecute:
    async def execute(self, programs: Sequence[Any]) -> list[Any]:
        return []


def make_config(arguments: argparse.Namespace) -> Config:
    tree = {
        "model": {"name": arguments.model, "max_length": MAX_LENGTH, "temperature": 1.0},
        "dataset": {"name": "bundled:toy"},
        "external": {"mode": "passed", "composition": "chat"},
        "grpo": {
            "num_turns": arguments.turns,
            "num_generations": 1,
            "estimator": "mareinforce",
            "max_new_tokens": arguments.new_tokens,
        },
    }
    return from_tree(tree, "grpo")


async def roll_out(config: Config, generator: LocalGenerator, count: int, generations: int = 1) -> list[Episode]:
    """Return episodes of the training tasks; a task may occur several times, with other random streams."""
    environment = Lengths(1)
    runner = TurnPlayer(config, environment, [generator], NothingToExecute())
    tasks = load_tasks("bundled:toy", "train")
    repeated = (replace(tasks[n % len(tasks)], id=f"{n}") for n in range(count))
    return list(await gather(*(runner.run_episode(task, generations, "train", 0) for task in repeated)))


def groups_of(episodes: Sequence[Episode], config: Config) -> list[Group]:
    """Return the groups of a batch, in its order."""
    return [group for part in build_agent_batch(episodes, 0, 0, config).mini_batches for group in part.groups]


def count_drifted(groups: Sequence[Group], sampled: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]]) -> Any:
    """Return the number of trained tokens, of drifted tokens, and of rows in the learner's micro-batches."""
    import torch

    from marl_ray.learning.micro_batches import MicroBatcher, trainable_rows

    prompts: defaultdict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
    for prompt, completions in sampled:
        for ids in completions:
            prompts[ids].append(prompt)
    batcher = MicroBatcher(OptimizerConfig().tokens_per_microbatch, "packed")
    tokens, drifted, rows = 0, 0, 0
    for batch in (*batcher.add(trainable_rows(groups)), *batcher.flush()):
        assert batch.groups is not None
        rows += len(batch.groups.groups)
        sequences, row = batch.groups.sequences(torch.device("cpu")), batch.input_ids[0].tolist()
        contexts: dict[int, tuple[list[int], int]] = {}
        ends, queries = sequences.key_ends.tolist(), sequences.query_ends.tolist()
        for number in range(len(ends) - 1):
            keys = sequences.keys[ends[number] : ends[number + 1]].tolist()
            own = queries[number + 1] - queries[number]
            contexts |= {column: (keys, len(keys) - own + k + 1) for k, column in enumerate(keys[len(keys) - own :])}
        columns, at = batch.columns.tolist(), 0
        for completion in batch.completions:
            for k, token in enumerate(completion.token_ids):
                keys, length = contexts[columns[at]]
                seen = tuple(row[key] for key in keys[:length])
                expected = (prompt + completion.token_ids[:k] for prompt in prompts[completion.token_ids])
                drifted += int(batch.tokens[at]) != token or seen not in expected
                at += 1
        tokens += at
    return tokens, drifted, rows


async def measure_drift(arguments: argparse.Namespace, config: Config, generator: LocalGenerator) -> bool:
    """Print the drifted tokens of all conversations. Return whether there are none."""
    begun = time.perf_counter()
    episodes = await roll_out(config, generator, arguments.conversations)
    seconds = time.perf_counter() - begun
    tokens, drifted, rows = count_drifted(groups_of(episodes, config), generator.sampled)
    tokenizer, changed, answers = generator.tokenizer, 0, 0
    for _, completions in generator.sampled:
        for ids in completions:
            text = tokenizer.decode(ids)
            changed += tuple(tokenizer(text, add_special_tokens=False).input_ids) != ids
            answers += 1
    turns = sum(len(list(episode.nodes())) for episode in episodes)
    print(f"{len(episodes)} conversations of {turns} turns in {seconds:.1f} s, {rows} rows of the learner")
    print(f"{drifted} of {tokens} trained tokens drifted")
    print(f"{changed} of {answers} answers would change if their text was tokenised again")
    return drifted == 0 and tokens > 0


async def measure_turn(arguments: argparse.Namespace, generator: LocalGenerator) -> None:
    """Print the seconds of a second turn, the best of three."""
    tasks = load_tasks("bundled:toy", "train")
    firsts = [
        "\n".join(task.prompt for task in tasks[n : n + LONG_PROMPT]) + "\nExplain the last function.\n"
        for n in range(TIMED)
    ]
    message = next_prompt(None, None, Message(("the answer is too long",)), "Write it again, and shorter.")
    spec = SamplingSpec(1, arguments.new_tokens, 1.0, 1.0, None, 5)

    def again(first: str, generation: Generation, as_chat: bool) -> Any:
        answer = generation.completions[0]
        if as_chat:
            return generator.generate(message, spec, 0, generation.prompt_ids + answer.token_ids)
        facts = Message(("the answer is too long",))
        return generator.generate(next_prompt(first, answer.text, facts, "Write it again, and shorter."), spec)

    best: dict[str, tuple[float, int, int]] = {}
    answers: dict[str, list[tuple[int, ...]]] = {}
    for _ in range(3):
        for name, as_chat, keep in (
            ("as a new prompt", False, True),
            ("as a conversation", True, True),
            ("as a conversation without the prefix cache", True, False),
        ):
            await generator.empty_cache()
            generations = await gather(*(generator.generate(first, spec) for first in firsts))
            if not keep:
                await generator.empty_cache()
            generator.cached_tokens, begun = 0, time.perf_counter()
            pairs = zip(firsts, generations, strict=True)
            later = await gather(*(again(first, generation, as_chat) for first, generation in pairs))
            tokens = sum(len(generation.prompt_ids) for generation in later)
            row = (time.perf_counter() - begun, tokens, generator.cached_tokens)
            best[name] = min(best.get(name, row), row)
            answers[name] = [c.token_ids for generation in later for c in generation.completions]
    for name, (seconds, tokens, cached) in best.items():
        print(f"second turn {name}: {seconds:.2f} s ({tokens} prompt tokens, {cached} cached)")
    _, cached_answers, others = answers.values()
    equal = sum(first == second for first, second in zip(cached_answers, others, strict=True))
    print(f"{equal} of {len(others)} answers are the same with and without the prefix cache")


def measure_learning(path: str, groups: Sequence[Group]) -> bool:
    """Print the time of a gradient with a row per turn and with a row per conversation. Return whether they agree."""
    import torch

    from marl_ray.learning.gradient_accumulator import GradientAccumulator
    from marl_ray.learning.micro_batches import MicroBatcher, trainable_rows
    from marl_ray.learning.policy_model import LogprobModel, choose_layout, load_policy
    from marl_ray.learning.prompt_rows import PromptRow

    model = load_policy(path, False, torch.device("cpu"))
    layout, _ = choose_layout(model, torch.device("cpu"), MAX_LENGTH)
    policy = LogprobModel(model, layout, 1.0, torch.float32)
    rows = trainable_rows(groups)
    joins = PromptRow.extended_by
    best: dict[str, tuple[float, int]] = {}
    gradients: dict[str, Any] = {}
    for name in ("a row per turn", "a row per conversation") * 2:
        PromptRow.extended_by = joins if name.endswith("conversation") else lambda *_: None  # type: ignore[method-assign]
        batcher = MicroBatcher(MICROBATCH, layout)
        tokens = sum(batch.input_ids.numel() for batch in (*batcher.add(rows), *batcher.flush()))
        accumulator = GradientAccumulator(policy, OptimizerConfig(importance="none", microbatch_tokens=MICROBATCH))
        begun = time.perf_counter()
        accumulator.add(rows, len(rows))
        accumulator.close(1)
        best[name] = min(best.get(name, (float("inf"), 0)), (time.perf_counter() - begun, tokens))
        gradients[name] = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
    PromptRow.extended_by = joins  # type: ignore[method-assign]
    for name, (seconds, tokens) in best.items():
        print(f"gradient with {name}: {seconds:.2f} s for {tokens} tokens")
    first, second = gradients.values()
    cosine = float(first @ second / (first.norm() * second.norm()))
    distance = float((first - second).norm() / first.norm())
    print(f"cosine of both gradients: {cosine:.8f}, relative difference {distance:.1e}")
    return cosine > MIN_COSINE


async def measure(arguments: argparse.Namespace) -> bool:
    config, path = make_config(arguments), resolve_model(arguments.model)
    spec = EngineSpec(path, "float32", MAX_LENGTH, False, False, 1, 0.5, arguments.kv_cache_mb, None, "store")
    generator = LocalGenerator(ActorId("generator", PolicyId((0,))), spec, config.model)
    await generator.start()
    passed = True
    if "drift" in arguments.parts:
        passed = await measure_drift(arguments, config, generator)
    if "turn" in arguments.parts:
        await measure_turn(arguments, generator)
    if "learning" in arguments.parts:
        grouped = replace(config, training=replace(config.training, num_generations=4))
        episodes = await roll_out(grouped, generator, LEARNED, 4)
        passed = measure_learning(path, groups_of(episodes, grouped)) and passed
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled:smollm2-135m")
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--kv-cache-mb", type=int, default=1024)
    arguments = parser.parse_args()
    os.environ |= engine_environment(2, on_gpu=False, local_model=True, verbose=False)
    passed = asyncio.run(measure(arguments))
    sys.stdout.flush()
    os._exit(0 if passed else 1)  # the engine's thread never ends


if __name__ == "__main__":
    main()
