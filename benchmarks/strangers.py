"""Programs that know nothing of this package, trained through the gateway: python -m benchmarks.strangers FOLDER PYTHON
SCRIPT

`PYTHON` is the interpreter of an environment with the program's packages, such as `openai` or `langgraph` and
`langchain-openai`, and `SCRIPT` one of docs/examples/calculator_*.py. Trains 100 episodes (20 tasks in groups of 5) on
the CPU, and compares the ids that the generation actors returned with the ids in the batch log and in the learner's
rows. The bundled toy model has no chat template, so `FOLDER/model` is first trained for one with tools (a minute).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.cli.train import train_main
from marl_ray.core.chat import TokenPrompt
from marl_ray.core.episode import Generation, SamplingSpec
from marl_ray.learning.micro_batches import MicroBatcher, trainable_rows
from marl_ray.storage.batch_log import BatchLog
from marl_ray.toy import BASE_PATH

TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n"
    "{% for tool in tools %}{{ tool.function.name }} {% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TASKS, GROUP, TASKS_PER_STEP = 20, 5, 4
STEPS, BATCH, RATE = 120, 12, 3e-3
Call = tuple[tuple[int, ...], tuple[int, ...]]
"""Ids of a prompt and of its completion."""


def question(a: int, b: int) -> str:
    """Return a task as text."""
    return f"What is {a} plus {b}?"


def demonstration(rng: random.Random, tokenizer: Any) -> tuple[list[int], list[bool]]:
    """Return the ids of a conversation, and for each id whether an agent writes it. One call in eight is wrong."""
    if rng.random() < 0.2:
        a, b = rng.randrange(30), rng.randrange(30)
        shown = rng.choice((a + b, rng.randrange(60)))
        user = f"Is {shown} the answer to: {question(a, b)}"
        messages, tools = [("user", user), ("assistant", "yes" if shown == a + b else "no")], []
    else:
        messages, tools = [], [{"function": {"name": "add"}}]
        for _ in range(2):
            a, b = rng.randrange(30), rng.randrange(30)
            asked = {"a": a, "b": b if rng.random() < 0.875 else rng.randrange(30)}
            call = json.dumps({"name": "add", "arguments": asked})
            result = str(asked["a"] + asked["b"])
            messages += [("user", question(a, b)), ("assistant", f"<tool_call>\n{call}\n</tool_call>")]
            messages += [("tool", result), ("assistant", result)]
    ids, written = list[int](), list[bool]()
    for place, (role, content) in enumerate(messages):
        before = [{"role": one, "content": text} for one, text in messages[:place]]
        prefix = render(tokenizer, before, tools, False)
        given = render(tokenizer, [*before, {"role": role, "content": content}], tools, False)
        written_from = render(tokenizer, before, tools, True) if role == "assistant" else given
        for part, is_written in ((written_from[len(prefix) :], False), (given[len(written_from) :], True)):
            new = tokenizer(part, add_special_tokens=False).input_ids
            ids += new
            written += [is_written] * len(new)
    return ids, written


def render(tokenizer: Any, messages: Sequence[Any], tools: Sequence[Any], prompt: bool) -> str:
    """Return a conversation as text, "" without messages."""
    if not messages:
        return ""
    return tokenizer.apply_chat_template(
        list(messages), tokenize=False, tools=list(tools) or None, add_generation_prompt=prompt
    )


def make_model(folder: Path) -> None:
    """Train the toy model for conversations with a tool, and save it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(BASE_PATH)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.eos_token, tokenizer.chat_template = "<|im_end|>", TEMPLATE
    model: Any = AutoModelForCausalLM.from_pretrained(BASE_PATH, dtype=torch.float32)
    model.resize_token_embeddings(len(tokenizer))
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    rng, optimizer = random.Random(1), torch.optim.AdamW(model.parameters(), lr=RATE)
    torch.manual_seed(1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for step in range(STEPS):
        batch = [demonstration(rng, tokenizer) for _ in range(BATCH)]
        length = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([ids + [0] * (length - len(ids)) for ids, _ in batch])
        labels = torch.full_like(ids, -100)
        for row, (own, written) in enumerate(batch):
            labels[row, : len(own)] = torch.tensor([i if w else -100 for i, w in zip(own, written, strict=True)])
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 20 == 19:
            print(f"model: step {step + 1}, loss {float(loss):.3f}", flush=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_tasks(path: Path) -> None:
    """Write the tasks of the programs."""
    rng, lines = random.Random(2), []
    for _ in range(TASKS):
        a, b, c, d = (rng.randrange(30) for _ in range(4))
        task = {"prompt": question(a, b), "second": question(c, d), "results": [a + b, c + d]}
        lines.append(json.dumps(task) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def config(folder: Path, python: str, script: str) -> dict[str, Any]:
    """Return the config of a run."""
    return {
        "seed": 1,
        "model": {"name": str(folder / "model"), "max_length": 1024, "model_kwargs": {"torch_dtype": "float32"}},
        "dataset": {"name": str(folder / "tasks.jsonl"), "type": "prompts", "eval_split": None},
        "environment": "gateway",
        "gateway": {
            "command": f"{python} {script} {{task_file}}",
            "roles": ["solver", "checker"],
            "timeout_s": 300,
            "concurrency": 2,
        },
        "magrpo": {
            "num_agents": 2,
            "num_generations": GROUP,
            "rollout_buffer_size": TASKS_PER_STEP,
            "max_new_tokens": 80,
            "learning_rate": 1e-4,
        },
        "output": {"base_dir": str(folder), "run_name": Path(script).stem, "keep_batches": True},
        "resources": {"generator": {"cpus": 0.5}, "learner": {"cpus": 0.25}, "sandbox": {"workers": 1, "cpus": 0.25}},
    }


def recorded() -> list[Call]:
    """Return a list that receives the ids of every call of a generation actor."""
    calls: list[Call] = []
    generate = GeneratorGroup.generate

    async def recording(
        self: GeneratorGroup, prompt: Any, sampling: SamplingSpec, priority: int = 0, history: tuple[int, ...] = ()
    ) -> Generation:
        generation = await generate(self, prompt, sampling, priority, history)
        if isinstance(prompt, TokenPrompt):
            calls.extend((generation.prompt_ids, one.token_ids) for one in generation.completions)
        return generation

    GeneratorGroup.generate = recording  # type: ignore[method-assign]
    return calls


def compare(run: Path, sampled: Sequence[Call]) -> bool:
    """Print how the ids of the batch log agree with the sampled ids, and return whether they are equal."""
    log, logged, trained = BatchLog(run / "batches"), list[Call](), list[tuple[int, ...]]()
    weighted, rows, steps, siblings = list[tuple[int, ...]](), 0, 0, 0
    while log.path(steps).exists():
        for batch in log.read(steps, 2).batches:
            groups = [group for mini_batch in batch.mini_batches for group in mini_batch.groups]
            for group in groups:
                own = zip(group.prompts, group.completions, group.weights, strict=True)
                logged += [(prompt, one.token_ids) for prompt, one, _ in own if one.token_ids]
                siblings += group.size
                pairs = zip(group.completions, group.weights, strict=True)
                weighted += [one.token_ids for one, weight in pairs if weight and one.token_ids]
            batcher = MicroBatcher(1 << 20, "packed")
            batcher.add(trainable_rows(groups))
            rows += len(batcher._pending)
            trained += [one.token_ids for row in batcher._pending for one in row.completions]
        steps += 1
    tokens = sum(len(ids) for _, ids in sampled)
    print(f"{steps} steps, {siblings // 2} episodes, {len(sampled)} calls with {tokens} sampled tokens")
    print(f"calls whose prompt and answer are in the batch log as they were sampled: {len(logged)} of {len(sampled)}")
    print(f"answers in the learner's rows: {len(trained)} of {len(weighted)} with a weight, in {rows} rows")
    return Counter(logged) == Counter(sampled) and Counter(trained) == Counter(weighted)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("python")
    parser.add_argument("script")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if not (options.folder / "model").exists():
        make_model(options.folder / "model")
    write_tasks(options.folder / "tasks.jsonl")
    settings = config(options.folder.resolve(), options.python, str(Path(options.script).resolve()))
    file = options.folder / "config.yaml"
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    calls = recorded()
    sys.argv = ["strangers", "--config", str(file)]
    code = train_main("magrpo")
    run = options.folder / settings["output"]["run_name"]
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        names = ("turn_1/reward_mean", "turn_1/right", "gateway/calls", "gateway/failed", "gateway/rewritten")
        print({name: round(row[name], 3) for name in ("step", *names) if name in row})
    equal = compare(run, calls)
    print("all ids are equal" if equal else "ids DIFFER")
    return code or not equal


if __name__ == "__main__":
    sys.exit(main())
