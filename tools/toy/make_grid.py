"""Write `bundled:grid` and train its base policy, `bundled:toy-grid-base`: `python -m tools.toy.make_grid`.

The grids are deterministic: 2 rows of 3 letters from a, b and c, uniformly random. The policy is a Qwen2 of 0.2 M
parameters with a byte-level BPE, trained from scratch on noisy demonstrations of both environments, with the exact
prompts of a run. The demonstrations make every useful behaviour likely and none certain:

- `grid`: the first answer is random. A later answer keeps right letters in two of three cases and replaces others in
  two of three. Without feedback it repeats the own answer or is random.
- `grid_private`: the first answer is random, or the rows that the agent knows (with --tell 0 never). A later answer
  repeats the own answer, or copies the other agent's row, or is random.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from marl_ray.config import ExternalConfig
from marl_ray.core.chat import as_text
from marl_ray.core.episode import Task
from marl_ray.external.transition import Transition
from marl_ray.plugins.grid import GRID_BASE_PATH, GRIDS_PATH
from marl_ray.plugins.grid.attempt import FilledGrid
from marl_ray.plugins.grid.environment import LetterGrid, PrivateGrid
from marl_ray.plugins.grid.prompts import spaced
from marl_ray.plugins.grid.rows import GRID
from tools.toy.make_base import make_tokenizer, tokenise, train
from tools.toy.scenes import Scene

ROWS, WIDTH, LETTERS = 2, 3, "abc"
SPLITS = {"train": 192, "eval": 96}
VOCAB_SIZE = 320
STEPS, NOISY_STEPS = 2000, 600
SCENES = 6000
MODES = ("level_feedback",) * 5 + ("level_passed", "passed", "plain")


@dataclass(frozen=True, slots=True)
class GridSkill:
    """Probabilities of a useful demonstration: to keep a right letter, to replace another one, to write known rows, and
    to copy the other agent's row. `openings` is the share of first answers to a secret grid, which are random."""

    keep: float
    replace: float
    tell: float
    copy: float
    openings: float


CLEAN, NOISY = GridSkill(1.0, 1.0, 1.0, 1.0, 0.2), GridSkill(0.66, 0.66, 0.5, 0.33, 1.0)
"""Without clean demonstrations first, a model of this size does not learn to look letters up."""


def grid_rows(seed: int = 0) -> list[dict[str, object]]:
    """Return the rows of the bundled data set, all with different targets."""
    every = list(map("".join, itertools.product(LETTERS, repeat=ROWS * WIDTH)))
    targets = iter(random.Random(seed).sample(every, sum(SPLITS.values())))
    return [
        {
            "task_id": f"grid/{split}-{number}",
            "target": list(map("".join, zip(*[iter(next(targets))] * WIDTH, strict=True))),
            "letters": LETTERS,
            "split": split,
        }
        for split, count in SPLITS.items()
        for number in range(count)
    ]


def scenes(count: int, demonstrations: int, skill: GridSkill, rng: random.Random) -> list[Scene]:
    """Return at least `count` scenes of both environments, of pairs and of single agents."""
    found: list[Scene] = []
    while len(found) < count:
        target = _random_rows(ROWS, rng)
        task = GRID.task({"target": target, "letters": LETTERS}, 0)
        agents = rng.choice((1, 2, 2, 2))
        private = rng.random() < 0.4
        found += (_private_scenes if private else _marked_scenes)(task, agents, demonstrations, skill, rng)
    return found


def _marked_scenes(task: Task, agents: int, demonstrations: int, skill: GridSkill, rng: random.Random) -> list[Scene]:
    """Return the scenes of a first and a later turn with a secret target."""
    environment, target = LetterGrid(agents), task.fields["target"]
    firsts = environment.first_prompts(task)
    size = ROWS // agents
    openings = [
        Scene(prompt, _answers(partial(_random_rows, size, rng), demonstrations))
        for prompt in firsts
        if rng.random() < skill.openings
    ]
    share = rng.choice((1 / 3, 1 / 3, 0.6, 0.85))  # right letters so far: few after the first turn, then more
    rows = ["".join(right if rng.random() < share else rng.choice(LETTERS) for right in row) for row in target]
    config = ExternalConfig(mode=rng.choice(MODES))
    prompts, attempt = _next_prompts(environment, task, firsts, rows, agents, config)

    def revised(numbers: range) -> list[str]:
        if config.mode != "level_feedback":
            return [rows[number] for number in numbers] if rng.random() < 0.4 else _random_rows(size, rng)
        pairs = (zip(rows[number], attempt.marks[number], strict=True) for number in numbers)
        return ["".join(_revised(letter, mark, skill, rng) for letter, mark in row) for row in pairs]

    for agent, prompt in enumerate(prompts):
        own = range(agent * size, (agent + 1) * size)
        openings.append(Scene(prompt, _answers(partial(revised, own), demonstrations)))
    return openings


def _revised(letter: str, mark: str, skill: GridSkill, rng: random.Random) -> str:
    """Return the next letter of a cell."""
    useful = rng.random() < (skill.keep if mark == "right" else skill.replace)
    if mark == "right":
        return letter if useful else rng.choice(LETTERS)
    return rng.choice([other for other in LETTERS if other != letter] if useful else LETTERS)


def _private_scenes(task: Task, agents: int, demonstrations: int, skill: GridSkill, rng: random.Random) -> list[Scene]:
    """Return the scenes of a first and a second turn in which each agent knows the other's rows."""
    environment, target = PrivateGrid(agents), list(task.fields["target"])
    firsts = environment.first_prompts(task)
    size = ROWS // agents
    known = [target[1:], target[:1]] if agents == 2 else [[target[0], ""]]

    def opening(agent: int) -> list[str]:
        own = _random_rows(size, rng)
        return [row or own[-1] for row in known[agent]] if rng.random() < skill.tell else own

    rows = [row for agent in range(agents) for row in opening(agent)]
    prompts, _ = _next_prompts(environment, task, firsts, rows, agents, ExternalConfig())

    def later(agent: int) -> list[str]:
        own, other = rows[agent * size : (agent + 1) * size], rows[(agent + 1) % ROWS]
        if rng.random() < skill.copy:
            return [other] * size
        return rng.choice((own, _random_rows(size, rng)))

    found = []
    for agent in range(agents):
        found.append(Scene(firsts[agent], _answers(partial(opening, agent), demonstrations)))
        found.append(Scene(prompts[agent], _answers(partial(later, agent), demonstrations)))
    return found


def _next_prompts(
    environment: LetterGrid,
    task: Task,
    firsts: Sequence[str],
    rows: Sequence[str],
    agents: int,
    config: ExternalConfig,
) -> tuple[list[str], FilledGrid]:
    size = ROWS // agents
    texts = ["\n".join(map(spaced, rows[at : at + size])) for at in range(0, ROWS, size)]
    attempt = environment.attempt(task, texts, last=False)
    transition = Transition(config, environment)
    observations = asyncio.run(transition.next_prompts(task, firsts, attempt, environment.outcome(attempt, None)))
    return list(map(as_text, observations.prompts)), attempt


def _answers(draw: Callable[[], Sequence[str]], count: int) -> tuple[str, ...]:
    return tuple("\n".join(map(spaced, draw())) for _ in range(count))


def _random_rows(count: int, rng: random.Random) -> list[str]:
    return ["".join(rng.choices(LETTERS, k=WIDTH)) for _ in range(count)]


def make_small_model(tokenizer: PreTrainedTokenizerBase, width: int, layers: int, vocab_size: int) -> Qwen2ForCausalLM:
    """Return a new model, with 0.2 M parameters for a width of 64 and four layers."""
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,  # engines on CPUs have no kernels for heads narrower than 32
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.08,  # with the default of 0.02, training stays at the entropy of random letters
        use_cache=False,
        dtype="float32",
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    return model


def parse_and_seed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the arguments of a script that makes a policy, among them --threads and --seed, after setting both."""
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    return args


def make_policy(
    stages: Sequence[tuple[Sequence[Scene], int, float]],
    out: Path,
    seed: int,
    vocab_size: int = VOCAB_SIZE,
    width: int = 64,
    layers: int = 4,
) -> None:
    """Train a small model in stages (scenes, steps, peak learning rate), and write it with its tokenizer."""
    found = [scene for scenes_of_stage, _, _ in stages for scene in scenes_of_stage]
    with tempfile.TemporaryDirectory() as staging:
        folder = Path(staging)
        tokenizer = make_tokenizer([text for one in found for text in (one.prompt, *one.responses)], folder, vocab_size)
        model = make_small_model(tokenizer, width, layers, vocab_size)
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
        recent: list[float] = []

        def report(step: int, loss: float) -> None:
            recent.append(loss)
            if step % 100 == 0:
                print(f"step {step:5d}  loss {sum(recent[-100:]) / 100:.4f}", flush=True)

        pad = tokenizer.pad_token_id
        for scenes_of_stage, steps, peak_lr in stages:
            tokens = tokenise(tokenizer, scenes_of_stage)
            train(model, tokens, pad=pad, steps=steps, batch_size=32, peak_lr=peak_lr, seed=seed, report=report)
        model.config.use_cache = True
        model.save_pretrained(folder)
        out.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            shutil.copyfile(file, out / file.name)


def make_grid_base(
    out: Path,
    tell: float,
    steps: int = STEPS,
    noisy_steps: int = NOISY_STEPS,
    count: int = SCENES,
    threads: int = 1,
    seed: int = 0,
    clean_tell: float = 1.0,
) -> None:
    """Train a base policy on `count` clean scenes and as many noisy ones, and write it to the folder `out`.

    A first answer of `grid_private` tells the known rows in the share `clean_tell` of the clean demonstrations and in
    the share `tell` of the noisy ones. With 0 in both, no first answer depends on the known rows.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    stages = [
        (scenes(count, 4, replace(CLEAN, tell=clean_tell), random.Random(seed)), steps, 1e-3),
        (scenes(count, 4, replace(NOISY, tell=tell), random.Random(seed)), noisy_steps, 5e-4),
    ]
    make_policy(stages, out, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=GRID_BASE_PATH)
    parser.add_argument("--tell", type=float, default=NOISY.tell, help="share of first answers that tell known rows")
    parser.add_argument("--clean-tell", type=float, default=1.0, help="the same share of the clean demonstrations")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps on clean demonstrations")
    parser.add_argument("--noisy-steps", type=int, default=NOISY_STEPS)
    parser.add_argument("--scenes", type=int, default=SCENES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    GRIDS_PATH.write_text("".join(json.dumps(row) + "\n" for row in grid_rows()), encoding="utf-8")
    make_grid_base(
        args.out, args.tell, args.steps, args.noisy_steps, args.scenes, args.threads, args.seed, args.clean_tell
    )


if __name__ == "__main__":
    main()
