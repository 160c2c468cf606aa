"""Two writers that revise once, as a program behind the gateway.

    python -m benchmarks.learning.revising_service EPISODES

The program has the prompts, the visible test and the feedback of the environment with `external.stop: visible`, but its
episodes are trajectories: both answers of an agent are credited with the reward of the last joint answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from openai import OpenAI

from marl_ray.actors.sandbox_settings import sandbox_settings
from marl_ray.config import load
from marl_ray.core.episode import Task
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.external.transition import Transition
from marl_ray.sandbox import Sandbox

CONFIG = load(Path("configs/toy_hard.yaml"), "magrpo")
ENVIRONMENT = CodeGeneration.from_config(CONFIG)
TRANSITION = Transition(CONFIG.external, ENVIRONMENT)
SANDBOX = Sandbox(sandbox_settings(CONFIG.sandbox))
GATEWAY, TOKEN = os.environ["OPENAI_BASE_URL"], os.environ["MARL_RAY_SERVICE_TOKEN"]
CLIENT = OpenAI(api_key="of each episode")  # one pool of connections for all episodes


def call(path: str, token: str, body: Any = None) -> Any:
    """Return the content of a reply; None if there is none."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(GATEWAY + path, data, headers), timeout=600) as reply:
        return json.loads(reply.read() or b"null")


def play(episode: dict[str, Any]) -> None:
    """Ask both writers, ask them again if the visible test fails, and post their last answers."""
    client = CLIENT.with_options(api_key=episode["token"])
    given = episode["task"]
    names = list(given["prompts"])
    task = Task(given["id"], given["prompt"], {name: given[name] for name in ("entry_point", "tests")})

    def ask(prompts: list[Any]) -> list[str]:
        answers = []
        for name, prompt in zip(names, prompts, strict=True):
            reply = client.chat.completions.create(model=name, messages=[{"role": "user", "content": prompt}])
            answers.append(reply.choices[0].message.content or "")
        return answers

    prompts = list(given["prompts"].values())
    answers = ask(prompts)
    attempt = ENVIRONMENT.attempt(task, answers, last=False)
    outcome = ENVIRONMENT.outcome(attempt, SANDBOX.run(attempt.program))
    if not ENVIRONMENT.solved(attempt, outcome, "visible"):
        observations = asyncio.run(TRANSITION.next_prompts(task, prompts, attempt, outcome))
        answers = ask(observations.prompts)
    call("/episode/reward", episode["token"], {"answers": dict(zip(names, answers, strict=True))})


def work(_: int) -> None:
    """Play one episode after another."""
    while True:
        episode = call("/tasks/next", TOKEN)
        if episode is not None:
            try:
                play(episode)
            except Exception as error:  # the next episode may succeed
                call("/episode/reward", episode["token"], {"failed": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    workers = int(sys.argv[1])
    with SANDBOX, ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
