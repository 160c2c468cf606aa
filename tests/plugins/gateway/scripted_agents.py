"""Agents with fixed answers in place of engines, and the runner of a gateway for them. Tokenizer, server, programs and
rows are real."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marl_ray.config import Config
from marl_ray.core.chat import TokenPrompt
from marl_ray.core.episode import Completion, Episode, Generation, Node, SamplingSpec, Task
from marl_ray.environments import ENVIRONMENTS
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.toy import BASE_PATH
from tests.factories import make_config
from tests.rollout.helpers import NoExecutor

CHATML = (
    "{% if tools %}<|im_start|>tools {{ tools | length }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ASK = """
import json, os, sys, urllib.request

def call(path, body):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(), {
        "Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    return json.load(urllib.request.urlopen(request))

def ask(model, text):
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    return call("/chat/completions", body)["choices"][0]["message"]["content"]
"""
"""Functions of a script that calls the agents with the standard library."""
CONTEXT = 1024
TASK = Task("task/1", "Count.", {"limit": 3})


def chat_model(folder: Path, template: str = CHATML) -> str:
    """Return the folder of the toy model with a chat template whose tokens are in the vocabulary."""
    shutil.copytree(BASE_PATH, folder / "model")
    tokenizer: Any = load_tokenizer(str(BASE_PATH), make_config().model)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.eos_token, tokenizer.chat_template = "<|im_end|>", template
    tokenizer.save_pretrained(folder / "model")
    return str(folder / "model")


@dataclass
class ScriptedAgent:
    """A generator that answers with `answer(prompt text, seed)`, letter by letter: the tokenizer would give the text
    other ids, so that a text that is encoded again is noticed."""

    model: str
    answer: Callable[[str, int], str]
    requests: list[tuple[TokenPrompt, SamplingSpec]] = field(default_factory=list)
    sampled: list[tuple[int, ...]] = field(default_factory=list)
    proceed: asyncio.Event = field(default_factory=asyncio.Event)
    """Streams continue after their first part as soon as it is set; set by default."""

    def __post_init__(self) -> None:
        self.tokenizer: Any = load_tokenizer(self.model, make_config().model)
        self.proceed.set()

    async def generate(self, prompt: TokenPrompt, sampling: SamplingSpec, priority: int = 0) -> Generation:
        self.requests.append((prompt, sampling))
        if len(prompt.token_ids) + sampling.max_new_tokens > CONTEXT:
            return Generation(prompt.token_ids, ())
        text = self.tokenizer.decode(prompt.token_ids)
        found = []
        for choice in range(sampling.num_generations):
            own = self.answer(text, sampling.seed + choice)
            ids = tuple(i for letter in own for i in self.tokenizer(letter, add_special_tokens=False).input_ids)
            ids = (*ids, self.tokenizer.eos_token_id)[: sampling.max_new_tokens]
            self.sampled.append(ids)
            reason = "stop" if ids[-1] == self.tokenizer.eos_token_id else "length"
            logprobs = tuple(-1.0 - 0.001 * place for place in range(len(ids)))
            shown = self.tokenizer.decode(ids, skip_special_tokens=True)
            found.append(Completion(ids, shown, logprobs, reason, ((0, len(ids)),)))
        await asyncio.sleep(0)
        return Generation(prompt.token_ids, tuple(found))

    async def stream(self, prompt: TokenPrompt, sampling: SamplingSpec, on_text: Callable[[str], None]) -> Generation:
        """Give the parts of the answer, two letters each, and wait for `proceed` after the first."""
        generation = await self.generate(prompt, sampling)
        for completion in generation.completions:
            for start in range(0, len(completion.text), 2):
                on_text(completion.text[start : start + 2])
                await self.proceed.wait()
        return generation


def gateway_config(model: str = str(BASE_PATH), sections: dict[str, Any] | None = None, **gateway: Any) -> Config:
    """Return the config of a coder and a tester, in groups of two; `gateway` are settings of the section."""
    defaults: dict[str, Any] = {
        "environment": "gateway",
        "model": {"name": model, "max_length": 1024},
        "gateway": {"roles": ["coder", "tester"], "timeout_s": 60} | gateway,
    }
    return make_config(sections=defaults | (sections or {}), num_generations=2, max_new_tokens=96)


def command(script: Path, *arguments: str) -> str:
    """Return the command that runs a script with this Python."""
    return " ".join([sys.executable, str(script), *arguments])


async def play(config: Config, agents: Sequence[ScriptedAgent], *tasks: Task, executor: Any = None) -> list[Episode]:
    """Return the training episodes of these tasks, by default of `TASK`."""
    environment = ENVIRONMENTS.get("gateway").from_config(config)
    runner = environment.player(config, agents, executor or NoExecutor())
    try:
        episodes = (runner.run_episode(task, config.training.group_sizes, "train", 0) for task in tasks or (TASK,))
        return list(await asyncio.gather(*episodes))
    finally:
        await environment.close()


def root(episode: Episode) -> Node:
    assert episode.root is not None, episode.stops
    return episode.root
