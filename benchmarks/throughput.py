"""Joint samples per second of the training loop by phase: marl_ray compared with CoMLRL and with its own parts.

    python -m benchmarks.throughput                     # all sides, some minutes
    python -m benchmarks.throughput --without comlrl --steps 10 --json result.json
    python -m benchmarks.throughput --model bundled:smollm2-135m --dataset mbpp.jsonl --generations 4 \\
        --new-tokens 128 --tasks-per-step 2 --without bare --warmup 0 --steps 1 --repeats 1 --comlrl-threads 1

marl_ray and CoMLRL train two agents with a tiny, randomly initialised Qwen2 or `--model`, on the same prompts, with the
same reward, for the same number of steps. Bare vLLM and the bare learners repeat the work of marl_ray's engines and
learners without the loop (`throughput_bare.py`). The processes of each side start once. The sides alternate blocks of
steps, and only one side runs at a time. benchmarks/README.md describes the measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.throughput_bare import KINDS, BareSide
from benchmarks.throughput_comlrl import COMLRL, PHASES, Block, Workload, comlrl_python

HERE = Path(__file__).resolve().parent
HUMANEVAL = HERE.parent.parent / "shared" / "data" / "humaneval.jsonl"
OURS, THEIRS = SIDES = ("marl_ray", "comlrl")


class Side:
    """A running process of marl_ray or CoMLRL that executes blocks of steps on request."""

    def __init__(self, name: str, python: str, workload: Workload, folder: Path) -> None:
        self.name = name
        self.threads = 0
        self.log = folder / f"{name}.log"
        command_read, command_write = os.pipe()
        reply_read, reply_write = os.pipe()
        script = (
            ["-m", "benchmarks.throughput_marl_ray"] if name == "marl_ray" else [str(HERE / "throughput_comlrl.py")]
        )
        arguments = ["--worker", json.dumps(asdict(workload)), str(command_read), str(reply_write), str(folder)]
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [python, *script, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(command_read, reply_write),
                env=os.environ | {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
            )
        os.close(command_read)
        os.close(reply_write)
        self._commands = os.fdopen(command_write, "w", encoding="utf-8")
        self._replies = os.fdopen(reply_read, "r", encoding="utf-8")
        started = time.monotonic()
        self._reply()
        self.start_s = time.monotonic() - started

    def run(self, steps: int) -> Block:
        """Run a block of steps and return its measurements."""
        self._commands.write(f"{steps} {self.threads}\n")
        self._commands.flush()
        return self._reply()

    def close(self) -> None:
        """End the process."""
        self._commands.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _reply(self) -> Block:
        line = self._replies.readline()
        if not line:
            tail = "\n".join(self.log.read_text(errors="replace", encoding="utf-8").splitlines()[-25:])
            sys.exit(f"{self.name} ended with exit code {self.process.wait()}:\n{tail}")
        return Block(**json.loads(line))


def make_workload(arguments: argparse.Namespace, folder: Path) -> Workload:
    """Write model, tokenizer and prompts to `folder` and return the workload."""
    from marl_ray.data.loading import load_tasks
    from marl_ray.environments.code_generation import CodeGeneration
    from marl_ray.models.names import resolve_model
    from marl_ray.toy import BASE_PATH

    default = str(HUMANEVAL) if HUMANEVAL.exists() and not arguments.real_reward else "bundled:toy"
    dataset = arguments.dataset or default
    tasks = load_tasks(dataset, "train")
    tasks = tasks[: len(tasks) - len(tasks) % arguments.tasks_per_step]
    prompts = [CodeGeneration(2).first_prompts(task) for task in tasks]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts), encoding="utf-8")
    if arguments.real_reward:
        if not (BASE_PATH / "config.json").exists():
            sys.exit(f"--real-reward needs the bundled base policy, and {BASE_PATH} does not exist")
        model = BASE_PATH
    elif arguments.model:
        model = Path(resolve_model(arguments.model))
    else:
        model = folder / "model"
        make_model([text for row in prompts for text in row], model)
    return Workload(
        model=str(model),
        dataset=dataset,
        tasks=len(tasks),
        prompts=str(folder / "prompts.jsonl"),
        real_reward=arguments.real_reward,
        tasks_per_step=arguments.tasks_per_step,
        max_steps=arguments.warmup + arguments.steps * arguments.repeats + 3,
        num_generations=arguments.generations,
        max_new_tokens=arguments.new_tokens,
    )


def make_model(texts: list[str], folder: Path) -> None:
    """Write a model of 0.36 M random parameters and a BPE tokenizer trained on these texts."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from benchmarks.throughput_marl_ray import MAX_LENGTH
    from tools.toy.make_base import make_tokenizer

    disable_progress_bar()
    tokenizer = make_tokenizer(texts, folder, vocab_size=490)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=490,
        hidden_size=96,
        intermediate_size=272,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def choose_threads(side: Side) -> None:
    """Run one step with 1 thread and one with torch's default, which is slow on a busy machine, and keep the faster."""
    rates = {}
    for side.threads in (1, 0):
        rates[side.threads] = side.run(1).rate
    side.threads = max(rates, key=lambda threads: rates[threads])
    print(f"{side.name}: 1 thread {rates[1]:.1f}, all threads {rates[0]:.1f} joint samples/s; using the faster")


def report(blocks: dict[str, list[Block]], agents: int) -> dict[str, Any]:
    """Print and return medians, shares and the ratio."""
    result: dict[str, Any] = {}
    print(f"\n{'':10} joint samples/s       tokens/s  tokens per   share of the time")
    print(f"{'':10} median   (range)               completion   " + "  ".join(f"{p:>7}" for p in PHASES))
    sides = [name for name in SIDES if name in blocks]
    for side in sides:
        own = blocks[side]
        rates = [block.rate for block in own]
        shares = {phase: statistics.median(block.share(phase) for block in own) for phase in PHASES}
        tokens_per_s = statistics.median(block.tokens / block.seconds for block in own)
        length = sum(b.tokens for b in own) / (sum(b.joint_samples for b in own) * agents)
        result[side] = {
            "joint_samples_per_s": statistics.median(rates),
            "tokens_per_s": tokens_per_s,
            "completion_tokens": length,
            "shares": shares,
            "blocks": [asdict(block) for block in own],
        }
        spread = f"({min(rates):.3g}-{max(rates):.3g})"
        print(
            f"{side:10} {statistics.median(rates):6.3g}   {spread:14} {tokens_per_s:9.0f}  {length:9.1f}    "
            + "  ".join(f"{shares[p]:7.1%}" for p in PHASES)
        )
    if len(sides) == len(SIDES):
        pairs = [ours.rate / theirs.rate for ours, theirs in zip(blocks[OURS], blocks[THEIRS], strict=True)]
        ratio = result[OURS]["joint_samples_per_s"] / result[THEIRS]["joint_samples_per_s"]
        result["ratio"], result["ratio_by_pair"] = ratio, pairs
        print(f"\nmarl_ray / comlrl: {ratio:.1f} (pairs {min(pairs):.1f} to {max(pairs):.1f})")
    if OURS in blocks and "vllm" in blocks:
        result["bare"] = report_bare(blocks[OURS], blocks["vllm"], blocks["learner"])
    return result


def report_bare(ours: list[Block], vllm: list[Block], learner: list[Block]) -> dict[str, Any]:
    """Print and return the ratios between the loop and its bare parts, per block and as medians."""
    triples = list(zip(ours, vllm, learner, strict=True))
    rollout = statistics.median(our.tokens / our.rollout for our in ours)
    bare = statistics.median(engine.tokens / engine.seconds for engine in vllm)
    print(f"\nrollout {rollout:.0f} tokens/s, bare vLLM {bare:.0f}")
    steps = sum(our.steps for our in ours)
    learn, alone = (sum(seconds) / steps for seconds in ([our.learn for our in ours], [one.seconds for one in learner]))
    print(f"learning {learn:.3f} s per step, bare learner {alone:.3f}")
    ratios = {
        "rollout tokens/s / bare vLLM": [o.tokens / o.rollout / (e.tokens / e.seconds) for o, e, _ in triples],
        "learn seconds / bare learner": [o.learn / b.seconds for o, _, b in triples],
        "(bare vLLM + bare learner) / step": [
            (o.tokens * e.seconds / e.tokens + b.seconds) / o.seconds for o, e, b in triples
        ],
    }
    for name, values in ratios.items():
        print(f"{name}: {statistics.median(values):.0%} (blocks {min(values):.0%} to {max(values):.0%})")
    return {"ratios": ratios, "vllm": [asdict(one) for one in vllm], "learner": [asdict(one) for one in learner]}


def main() -> None:
    """Measure and print."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "marl-ray" / COMLRL.replace("==", "-")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3, help="steps per block (default 3)")
    parser.add_argument("--repeats", type=int, default=5, help="blocks per side (default 5)")
    parser.add_argument("--warmup", type=int, default=1, help="steps before the first block, not counted (default 1)")
    parser.add_argument("--tasks-per-step", type=int, default=16, help="tasks per step (default 16)")
    parser.add_argument(
        "--generations", type=int, default=8, metavar="G", help="completions per agent and task (default 8)"
    )
    parser.add_argument("--new-tokens", type=int, default=64, help="maximum tokens per completion (default 64)")
    parser.add_argument("--model", help="bundled model or folder (default: a random model)")
    parser.add_argument(
        "--dataset", metavar="FILE", help="HumanEval or MBPP rows (default: HumanEval if found, else toy tasks)"
    )
    parser.add_argument("--without", choices=("comlrl", "bare"), nargs="+", default=[], help="sides to leave out")
    parser.add_argument(
        "--real-reward", action="store_true", help="bundled base policy on the toy tasks with their reward"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    parser.add_argument("--comlrl-env", type=Path, default=cache, help=f"CoMLRL's environment (default {cache})")
    parser.add_argument(
        "--comlrl-threads", type=int, default=0, help="CoMLRL's torch threads (default: the faster of 1 and all)"
    )
    arguments = parser.parse_args()
    if arguments.real_reward and (arguments.model or arguments.dataset):
        parser.error("--real-reward determines model and tasks: leave out --model and --dataset")
    names = [OURS, *([] if "bare" in arguments.without else KINDS), *([] if THEIRS in arguments.without else [THEIRS])]
    pythons = {OURS: sys.executable}
    if THEIRS in names:
        pythons[THEIRS] = comlrl_python(arguments.comlrl_env)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before the start",
        flush=True,
    )
    sides: list[Side | BareSide] = []
    blocks: dict[str, list[Block]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="marl-ray-benchmark-") as temporary:
        folder = Path(temporary)
        workload = make_workload(arguments, folder)
        try:
            for name in names:
                side: Side | BareSide
                if name in SIDES:
                    side = Side(name, pythons[name], workload, folder)
                else:
                    side = BareSide(name, workload, folder)
                sides.append(side)
                print(f"{name}: started in {side.start_s:.0f} s, not counted", flush=True)
                side.threads = arguments.comlrl_threads or 1
                if arguments.warmup:
                    side.run(arguments.warmup)
                if isinstance(side, Side) and name == THEIRS and not arguments.comlrl_threads:
                    choose_threads(side)
            for block in range(arguments.repeats):
                for side in sides:
                    blocks[side.name].append(side.run(arguments.steps))
                rates = ", ".join(f"{name} {blocks[name][-1].rate:.3g}" for name in SIDES if name in names)
                print(f"block {block + 1} of {arguments.repeats}: {rates} joint samples/s", flush=True)
        finally:
            for side in sides:
                side.close()
    result = report(blocks, workload.agents)
    if arguments.json:
        settings = asdict(workload) | {"steps": arguments.steps, "repeats": arguments.repeats}
        arguments.json.write_text(json.dumps({"workload": settings} | result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
