"""Learner throughput, and its share of the machine's matrix multiplication throughput.

    python -m benchmarks.learner_throughput                            # all sides, some minutes
    python -m benchmarks.learner_throughput --sides packed trainer --rounds 5 --json result.json
    python -m benchmarks.learner_throughput --profile packed           # profile by torch.profiler

Each side runs in its own process, with the same model, prompts and completions:

    packed    this package's learner: each prompt is computed once per group of completions
    padded    the same learner with one right-padded row of prompt and completion per completion
    lora      packed, with adapters of rank 16
    trainer   a loop like transformers' Trainer: padded batches, labels, the model's own loss, AdamW

A round is one update with its optimizer step. `tokens/s` counts completion tokens. `share` is the throughput of the
update in FLOP/s over the throughput of the matrix products alone: the forward and backward products of all linear
layers, with the same shapes and threads, timed in the same process before and after the update.
`torch.utils.flop_counter` counts the FLOPs. `w. att.` also counts the products of attention: a backward pass as two
forward passes, a causal kernel as half.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SIDES = ("packed", "padded", "lora", "trainer")
SHAPES = Counter[tuple[int, int, int]]
"""Number of calls of linear layers by (rows, input features, output features)."""


def groups_of(workload: argparse.Namespace, step: int) -> list[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """Return prompts with their completions, whose lengths vary."""
    draw = random.Random(step)

    def text(length: int) -> tuple[int, ...]:
        return tuple(draw.randrange(100, 400) for _ in range(length))

    shortest = workload.completion // 2
    return [
        (
            text(workload.prompt),
            [text(draw.randint(shortest, workload.completion)) for _ in range(workload.completions)],
        )
        for _ in range(workload.groups)
    ]


def learner_side(side: str, workload: argparse.Namespace) -> tuple[Any, Callable[[int], None]]:
    """Return the model of this package's learner, and a function that learns the groups of a step."""
    from dataclasses import replace

    from marl_ray.config import AgentConfig, CreditConfig, LoraConfig, ModelConfig, OptimizerConfig
    from marl_ray.core.batch import Batch, Group, MiniBatch
    from marl_ray.core.episode import Completion, sibling_calls
    from marl_ray.learning.learner import Learner
    from marl_ray.models.names import resolve_model

    learner = Learner(
        resolve_model(workload.model),
        AgentConfig(name=workload.model, temperature=1.0, learning_rate=1e-6),
        ModelConfig(),
        CreditConfig(),
        OptimizerConfig(importance="none", microbatch_tokens=workload.microbatch_tokens),
        "float32",
        1000,
        workload.threads,
        LoraConfig(rank=16 if side == "lora" else 0),
    )
    if side == "padded":
        learner.logprob_model = replace(learner.logprob_model, layout="padded")
        learner.policy.set_attn_implementation("sdpa")

    def group(prompt: tuple[int, ...], completions: list[tuple[int, ...]]) -> Group:
        sampled = tuple(Completion(ids, "", (-1.0,) * len(ids), "length", ()) for ids in completions)
        weights = tuple((-1.0) ** number for number in range(len(sampled)))
        return Group(0, sibling_calls(prompt, sampled), weights, weights)

    def update(step: int) -> None:
        groups = tuple(group(*one) for one in groups_of(workload, step))
        learner.update(Batch(learner.step, (MiniBatch(groups, len(groups) * workload.completions),)))

    return learner.policy, update


def trainer_side(workload: argparse.Namespace) -> tuple[Any, Callable[[int], None]]:
    """Return a model, and a function that learns the groups of a step in a plain PyTorch loop."""
    import torch
    from transformers import AutoModelForCausalLM

    from marl_ray.models.names import resolve_model

    torch.set_num_threads(workload.threads)
    model: Any = AutoModelForCausalLM.from_pretrained(resolve_model(workload.model), dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)

    def update(step: int) -> None:
        rows = [(prompt, ids) for prompt, completions in groups_of(workload, step) for ids in completions]
        width = workload.prompt + workload.completion
        size = max(1, workload.microbatch_tokens // width)
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            width = max(len(prompt) + len(ids) for prompt, ids in part)
            input_ids = torch.zeros(len(part), width, dtype=torch.long)
            mask, labels = torch.zeros_like(input_ids), torch.full_like(input_ids, -100)
            for number, (prompt, ids) in enumerate(part):
                end = len(prompt) + len(ids)
                input_ids[number, :end] = torch.tensor(prompt + ids)
                mask[number, :end] = 1
                labels[number, len(prompt) : end] = torch.tensor(ids)
            loss = model(input_ids=input_ids, attention_mask=mask, labels=labels, use_cache=False).loss
            (loss * len(part) / len(rows)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return model, update


def shapes_of(model: Any, work: Callable[[], None]) -> tuple[SHAPES, int, int]:
    """Return the shapes of the linear layers, their FLOPs, and the FLOPs of attention in a call of `work`."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    found: SHAPES = Counter()

    def count_shape(layer: Any, inputs: tuple[Any, ...], output: Any) -> None:
        found[inputs[0].numel() // layer.in_features, layer.in_features, layer.out_features] += 1

    hooks = [m.register_forward_hook(count_shape) for m in model.modules() if isinstance(m, torch.nn.Linear)]
    kernels = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward_flops,
    }
    with FlopCounterMode(display=False, custom_mapping=kernels) as flops:
        work()
    for hook in hooks:
        hook.remove()
    attention = sum(flops.get_flop_counts()["Global"].get(kernel, 0) for kernel in kernels)
    return found, flops.get_total_flops() - attention, attention


def attention_flops(query: Any, key: Any, value: Any, dropout: float = 0.0, causal: bool = False, **_: Any) -> int:
    """Return the FLOPs of a forward pass, given the shapes of the tensors."""
    from torch.utils.flop_counter import sdpa_flop_count

    return int(sdpa_flop_count(query, key, value)) // (2 if causal else 1)


def attention_backward_flops(gradient: Any, query: Any, key: Any, value: Any, *others: Any, **_: Any) -> int:
    """Return the FLOPs of a backward pass without recomputation; `others`: output, normalizers, dropout, causal."""
    return 2 * attention_flops(query, key, value, causal=others[3])


def matmul_rate(shapes: SHAPES) -> float:
    """Return the FLOP/s of the matrix products of these layers' forward and backward passes, weighted by count."""
    import torch

    flops = seconds = 0.0
    for (rows, width, outputs), count in shapes.items():
        inputs, weight, gradient = torch.randn(rows, width), torch.randn(outputs, width), torch.randn(rows, outputs)
        product = torch.empty(rows, outputs), torch.empty(rows, width), torch.empty(outputs, width)
        for left, right, out in (
            (inputs, weight.t(), product[0]),
            (gradient, weight, product[1]),
            (gradient.t(), inputs, product[2]),
        ):
            torch.mm(left, right, out=out)
            started = time.perf_counter()
            torch.mm(left, right, out=out)
            seconds += count * (time.perf_counter() - started)
            flops += count * 2.0 * rows * width * outputs
    return flops / seconds


def serve(connection: Connection, side: str, workload: argparse.Namespace) -> None:
    """Run one round of a side per message, until the connection is closed."""
    os.environ["OMP_NUM_THREADS"] = str(workload.threads)
    model, update = trainer_side(workload) if side == "trainer" else learner_side(side, workload)
    shapes: dict[int, tuple[SHAPES, int, int]] = {}
    connection.send(None)
    try:
        while True:
            step = connection.recv()
            if step not in shapes:
                shapes[step] = shapes_of(model, lambda step=step: update(step))  # type: ignore[misc]
            linear_shapes, flops, attention = shapes[step]
            rate_before = matmul_rate(linear_shapes)
            started = time.perf_counter()
            update(step)
            seconds = time.perf_counter() - started
            connection.send((seconds, flops, attention, (rate_before + matmul_rate(linear_shapes)) / 2))
    except EOFError:
        pass


def measure(workload: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the medians over rounds, by side."""
    context = multiprocessing.get_context("spawn")
    connections: dict[str, Connection] = {}
    rounds: dict[str, list[tuple[float, float, float, float]]] = {side: [] for side in workload.sides}
    processes = []
    for side in workload.sides:
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, side, workload), daemon=True)
        process.start()
        processes.append(process)
        theirs.close()
        ours.recv()
        connections[side] = ours
    for number in range(workload.rounds + 1):
        for side, connection in connections.items():
            connection.send(0)
            if (found := connection.recv()) and number:
                rounds[side].append(found)
    for connection, process in zip(connections.values(), processes, strict=True):
        connection.close()
        process.join(30)
    tokens = sum(len(ids) for _, completions in groups_of(workload, 0) for ids in completions)
    return {
        side: {
            "tokens_per_s": tokens / statistics.median(seconds for seconds, *_ in found),
            "seconds": statistics.median(seconds for seconds, *_ in found),
            "tflop": found[0][1] / 1e12,
            "attention_tflop": found[0][2] / 1e12,
            "gflop_per_s": statistics.median(flops / seconds for seconds, flops, _, _ in found) / 1e9,
            "matmul_gflop_per_s": statistics.median(rate for *_, rate in found) / 1e9,
            "share": statistics.median(flops / seconds / rate for seconds, flops, _, rate in found),
            "share_with_attention": statistics.median(
                (flops + attention) / seconds / rate for seconds, flops, attention, rate in found
            ),
        }
        for side, found in rounds.items()
    }


def profile(side: str, workload: argparse.Namespace) -> None:
    """Print the operations of one update of a side by their CPU time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    _, update = trainer_side(workload) if side == "trainer" else learner_side(side, workload)
    update(0)
    with profiled(activities=[ProfilerActivity.CPU]) as found:
        update(0)
    print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=30, max_name_column_width=60))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled:smollm2-135m")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=128, help="tokens per prompt")
    parser.add_argument("--completions", type=int, default=4, help="completions per prompt")
    parser.add_argument(
        "--completion", type=int, default=128, help="maximum tokens per completion; the minimum is half of it"
    )
    parser.add_argument("--microbatch-tokens", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--profile", choices=SIDES)
    parser.add_argument("--json", type=Path)
    workload = parser.parse_args()
    if workload.profile:
        profile(workload.profile, workload)
        return
    found = measure(workload)
    print(f"{'side':<9}{'tokens/s':>10}{'seconds':>9}{'TFLOP':>7}{'GFLOP/s':>9}{'matmul GFLOP/s':>16}", end="")
    print(f"{'share':>7}{'w. att.':>9}")
    for side, row in found.items():
        print(
            f"{side:<9}{row['tokens_per_s']:>10.1f}{row['seconds']:>9.2f}{row['tflop']:>7.2f}"
            f"{row['gflop_per_s']:>9.0f}{row['matmul_gflop_per_s']:>16.0f}{row['share']:>7.0%}"
            f"{row['share_with_attention']:>9.0%}"
        )
    if workload.json:
        workload.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
