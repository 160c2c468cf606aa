"""Train a bundled base policy: `python -m tools.toy.make_base` for the quickstart's `marl_ray/toy/base/`, and with
`--set toy-hard` for the hard set's `marl_ray/toy/hard_base/`.

The policy is a Qwen2 of 0.85 M parameters with a byte-level BPE. It is trained from scratch on noisy demonstrations of
both roles of a pair and of a single agent, for both turns, with the exact prompts of the environment and the external
modes. The hard set's policy continues from the quickstart's, with its tokenizer. As in a run, the input is
`tokenizer(prompt)`, directly followed by the completion and EOS.

Several demonstrations of one prompt are packed behind it, and each attends to the prompt and to itself: the prompt is
most of the cost, and several answers to a prompt teach a distribution.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import shutil
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, GenerationConfig, Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

from marl_ray.config import ExternalConfig
from marl_ray.core.chat import Prompt, as_text
from marl_ray.core.text import pluralize
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.external.transition import Transition
from marl_ray.sandbox import ExecutionReport, Program, Sandbox
from tools.toy.scenes import Run, Scene, as_task, copy_scenes, first_scenes, second_scenes
from tools.toy.sets import SETS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EOS, PAD = "<|endoftext|>", "<|pad|>"
VOCAB_SIZE = 512
MAX_POSITIONS = 1024


@dataclass(frozen=True, slots=True)
class TokenScene:
    """A scene as token ids; each response ends with EOS."""

    prompt: list[int]
    responses: list[list[int]]

    def __len__(self) -> int:
        return len(self.prompt) + sum(map(len, self.responses))


def make_tokenizer(texts: Iterable[str], folder: Path, vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerBase:
    """Train the BPE, save it in `folder`, and return it as loaded by `AutoTokenizer`.

    A folder with a Qwen2 model is loaded with Qwen2's tokenizer class, which silently replaces the saved normalizer and
    pre-tokenizer by its own. The merges are therefore learned with Qwen2's.
    """
    texts = list(texts)
    template = Qwen2Tokenizer()
    raw = Tokenizer(models.BPE())
    raw.normalizer = template.backend_tokenizer.normalizer
    raw.pre_tokenizer = template.backend_tokenizer.pre_tokenizer
    raw.decoder = decoders.ByteLevel()
    special: list[str | AddedToken] = [AddedToken(EOS, special=True), AddedToken(PAD, special=True)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    fast = Qwen2Tokenizer(
        tokenizer_object=raw, eos_token=EOS, pad_token=PAD, unk_token=EOS, model_max_length=MAX_POSITIONS
    )
    fast.save_pretrained(folder)
    Qwen2Config(vocab_size=vocab_size).save_pretrained(folder)  # AutoTokenizer picks its class by the model's type
    loaded = AutoTokenizer.from_pretrained(folder)
    if not isinstance(loaded, Qwen2Tokenizer):
        raise RuntimeError(f"AutoTokenizer loads {type(loaded).__name__}, not the class this BPE was trained under")
    for text in texts[:2000]:
        ids = raw.encode(text).ids
        if loaded(text).input_ids != ids or loaded.decode(ids) != text:
            raise RuntimeError(f"tokenizer round trip failed on {text!r}")
    if loaded.eos_token_id is None or loaded.pad_token_id in (None, loaded.eos_token_id):
        raise RuntimeError("the loaded tokenizer lacks its EOS or padding token")
    return loaded


def make_model(tokenizer: PreTrainedTokenizerBase, vocab_size: int = VOCAB_SIZE) -> Qwen2ForCausalLM:
    """Return a new model with 0.85 M parameters, 3.4 MB in fp32."""
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        use_cache=False,
        dtype="float32",
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    return model


def tokenise(tokenizer: PreTrainedTokenizerBase, scenes: Sequence[Scene]) -> list[TokenScene]:
    """Tokenise prompts and responses separately, as in a run, where sampled ids follow the prompt's ids."""
    return [
        TokenScene(
            tokenizer(scene.prompt).input_ids,
            [[*tokenizer(response).input_ids, tokenizer.eos_token_id] for response in scene.responses],
        )
        for scene in scenes
    ]


def pack(scenes: Sequence[TokenScene], pad: int) -> dict[str, torch.Tensor]:
    """Return token ids [B, L], positions [B, L], an additive mask [B, 1, L, L], and flat `predictors` and `targets`.

    Segment 0 is the prompt, segment k the k-th response; a token sees its past in segment 0 and in its own.
    """
    length = max(map(len, scenes))
    ids = torch.full((len(scenes), length), pad)
    positions = torch.zeros(len(scenes), length, dtype=torch.long)
    segments = torch.full((len(scenes), length), -1)
    predictors: list[int] = []
    targets: list[int] = []
    for row, scene in enumerate(scenes):
        end = len(scene.prompt)
        ids[row, :end] = torch.tensor(scene.prompt)
        positions[row, :end] = torch.arange(end)
        segments[row, :end] = 0
        start = end
        for number, response in enumerate(scene.responses, 1):
            stop = start + len(response)
            ids[row, start:stop] = torch.tensor(response)
            positions[row, start:stop] = torch.arange(end, end + len(response))
            segments[row, start:stop] = number
            predictors += [row * length + at for at in (end - 1, *range(start, stop - 1))]
            targets += response
            start = stop
    same = segments[:, :, None] == segments[:, None, :]
    visible = (same | (segments[:, None, :] == 0)) & torch.ones(length, length, dtype=torch.bool).tril()
    mask = torch.zeros(visible.shape).masked_fill_(~visible, torch.finfo(torch.float32).min)[:, None]
    return {
        "ids": ids,
        "positions": positions,
        "mask": mask,
        "predictors": torch.tensor(predictors),
        "targets": torch.tensor(targets),
    }


def response_loss(model: Qwen2ForCausalLM, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean cross-entropy over the responses' tokens, including EOS."""
    hidden = model.model(
        input_ids=batch["ids"], position_ids=batch["positions"], attention_mask=batch["mask"]
    ).last_hidden_state
    logits = model.lm_head(hidden.flatten(0, 1)[batch["predictors"]])
    return torch.nn.functional.cross_entropy(logits.float(), batch["targets"])


def batches(scenes: Sequence[TokenScene], size: int, rng: random.Random) -> Iterable[list[TokenScene]]:
    """Yield batches of scenes of similar length (padding costs as much as text), epoch after epoch, without end."""
    while True:
        order = sorted(scenes, key=lambda scene: len(scene) + 8 * rng.random())
        chunks = [order[at : at + size] for at in range(0, len(order) - size + 1, size)]
        rng.shuffle(chunks)
        yield from chunks


def train(
    model: Qwen2ForCausalLM,
    scenes: Sequence[TokenScene],
    *,
    pad: int,
    steps: int,
    batch_size: int,
    peak_lr: float,
    seed: int,
    report: Callable[[int, float], Any],
) -> None:
    """Train with AdamW, a short warm-up and a cosine decay to a tenth of the peak learning rate."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, betas=(0.9, 0.98), weight_decay=0.01)

    def factor(step: int) -> float:
        return min(1.0, (step + 1) / 100) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / steps)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    model.train()
    for step, chunk in enumerate(batches(scenes, batch_size, random.Random(seed)), 1):
        loss = response_loss(model, pack(chunk, pad))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        report(step, loss.item())
        if step == steps:
            break
    model.eval()


@torch.no_grad()
def sample(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], max_new_tokens: int = 48
) -> list[str]:
    """Sample one response per prompt at temperature 1 without truncation."""
    tokens = tokenizer(list(prompts), padding=True, padding_side="left", return_tensors="pt")
    ids = model.generate(  # type: ignore[misc]
        **tokens, max_new_tokens=max_new_tokens, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, use_cache=True
    )
    return tokenizer.batch_decode(ids[:, tokens.input_ids.shape[1] :], skip_special_tokens=True)


def play(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Any],
    run: Run,
    *,
    agents: int = 2,
    turns: int = 2,
    external: ExternalConfig | None = None,
) -> list[list[float]]:
    """Roll out one episode per problem with the same policy in every role. Return the rewards, [turns][problems]."""
    environment = CodeGeneration(agents)
    transition = Transition(external or ExternalConfig(), environment)
    tasks = [as_task(problem) for problem in problems]
    firsts = [environment.first_prompts(task) for task in tasks]
    prompts: Sequence[Sequence[Prompt]] = firsts
    rewards: list[list[float]] = []
    for _ in range(turns):
        texts = sample(model, tokenizer, [as_text(prompt) for row in prompts for prompt in row])
        answers = [texts[at : at + agents] for at in range(0, len(texts), agents)]
        attempts = [environment.attempt(task, answer, last=True) for task, answer in zip(tasks, answers, strict=True)]
        reports = run([attempt.program for attempt in attempts])
        outcomes = [environment.outcome(attempt, report) for attempt, report in zip(attempts, reports, strict=True)]
        rewards.append([outcome.reward for outcome in outcomes])
        prompts = [
            asyncio.run(transition.next_prompts(task, first, attempt, outcome)).prompts
            for task, first, attempt, outcome in zip(tasks, firsts, attempts, outcomes, strict=True)
        ]
    return rewards


def summary(rewards: Sequence[float]) -> str:
    """Return the mean reward and the share of each level, rounded down to halves."""
    counts = Counter(math.floor(2 * reward) / 2 for reward in rewards)
    levels = " ".join(f"{level:g}:{counts[level] / len(rewards):.0%}" for level in sorted(counts))
    return f"mean {sum(rewards) / len(rewards):.2f}  {levels}"


def begin(texts: Sequence[str], start: Path | None, folder: Path) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerBase]:
    """Return the model to train, new or from the folder `start`, and its tokenizer, which is saved in `folder`."""
    if start is None:
        tokenizer = make_tokenizer(texts, folder)
        return make_model(tokenizer), tokenizer
    for file in start.glob("tokenizer*"):
        shutil.copyfile(file, folder / file.name)
    return Qwen2ForCausalLM.from_pretrained(start), AutoTokenizer.from_pretrained(start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=SETS, default="toy")
    parser.add_argument("--out", type=Path, help="default: the folder in the package")
    parser.add_argument("--start", type=Path, help="model to continue; default, as for the next five: the set's value")
    parser.add_argument("--copy-steps", type=int, help="steps of a first stage that only copies")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--first", type=int, help="first-turn scenes")
    parser.add_argument("--second", type=int, help="second-turn scenes")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--demonstrations", type=int, default=4, help="demonstrations per prompt")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    chosen = SETS[args.set]
    out, steps, lr = args.out or chosen.base_path, args.steps or chosen.steps, args.lr or chosen.peak_lr
    copy_steps = chosen.copy_steps if args.copy_steps is None else args.copy_steps
    firsts, seconds = args.first or chosen.first, args.second or chosen.second
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - start:6.1f} s] {text}", flush=True)

    splits = chosen.split_problems()
    known = [problem for split in chosen.known for problem in splits[split]]
    with Sandbox() as sandbox, tempfile.TemporaryDirectory() as staging:
        folder = Path(staging)  # copied when complete, so that an interruption does not break the bundled policy

        def run(programs: list[Program]) -> list[ExecutionReport]:
            return sandbox.run_batch(programs)

        say(f"making {firsts + seconds} scenes of {len(known)} problems")
        scenes = first_scenes(chosen, known, firsts, args.demonstrations, rng)
        scenes += second_scenes(chosen, known, seconds, args.demonstrations, rng, run)
        texts = [text for scene in scenes for text in (scene.prompt, *scene.responses)]
        model, tokenizer = begin(texts, args.start or chosen.start, folder)
        tokens = tokenise(tokenizer, scenes)
        prompts = sorted(len(scene.prompt) for scene in tokens)
        responses = sorted(len(response) for scene in tokens for response in scene.responses)
        say(
            f"prompts: {prompts[len(prompts) // 2]} tokens (at most {prompts[-1]}), "
            f"responses: {responses[len(responses) // 2]} (at most {responses[-1]})"
        )
        say(f"training {sum(p.numel() for p in model.parameters()):,} parameters for {copy_steps + steps} steps")
        recent: deque[float] = deque(maxlen=100)

        def report(step: int, loss: float) -> None:
            recent.append(loss)
            if step % 50 == 0:
                say(f"step {step:5d}  loss {sum(recent) / len(recent):.4f}")

        stages = [(tokens, steps, chosen.batch_size)]
        if copy_steps:
            copies = tokenise(tokenizer, copy_scenes(chosen, known, chosen.copies, rng))
            stages.insert(0, (copies, copy_steps, 2 * chosen.batch_size))
        for stage, stage_steps, batch_size in stages:
            train(
                model,
                stage,
                pad=tokenizer.pad_token_id,
                steps=stage_steps,
                batch_size=batch_size,
                peak_lr=lr,
                seed=args.seed,
                report=report,
            )
        model.config.use_cache = True
        model.save_pretrained(folder)
        out.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            shutil.copyfile(file, out / file.name)
        external = chosen.modes[0][1]
        for split in chosen.tasks[1:]:
            for agents in (2, 1):
                played = play(model, tokenizer, splits[split] * 4, run, agents=agents, external=external)
                for turn, rewards in enumerate(played, 1):
                    say(f"{pluralize(agents, 'agent')}, turn {turn}, {split} tasks: {summary(rewards)}")
    say(f"saved in {out}")


if __name__ == "__main__":
    main()
