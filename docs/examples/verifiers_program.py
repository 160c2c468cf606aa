"""One episode of an environment of the package verifiers (0.4), as the command of `environment: gateway`.

Every agent of the environment asks the model of its own name, and gets the reward of its own traces. The script runs in
a Python environment with verifiers, and knows nothing of marl_ray:

gateway:
  command: /path/to/python docs/examples/verifiers_program.py --task {task_file} --taskset agreeing
  roles: [left, right]
"""

import argparse
import asyncio
import json
from pathlib import Path
from statistics import fmean
from typing import Any

from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.utils.loaders import env_config_type, load_environment, resolve_env_config


async def play(taskset: str, number: int, harness: str | None) -> dict[str, Any]:
    """Return the reward of each agent in one episode of task `number`."""
    import os

    client = EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    roles = agent_config_fields(env_config_type(taskset)(taskset={"id": taskset}))
    own: dict[str, Any] = {"runtime": {"type": "subprocess"}} | ({"harness": {"id": harness}} if harness else {})
    config = resolve_env_config({"taskset": {"id": taskset}} | {role: own | {"model": role} for role in roles})
    env = load_environment(config)
    tasks = list(env.taskset)
    context = ModelContext(model=next(iter(roles)), client=client)
    async with env.serving():
        episode = await env.run_episode(tasks[number % len(tasks)], context)
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        raise SystemExit(f"the episode failed: {errors[0].message if errors else 'without an error'}")
    rewards = {role: [trace.reward for trace in episode.traces if trace.agent.name == role] for role in roles}
    return {"rewards": {role: fmean(values or [0.0]) for role, values in rewards.items()}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", type=Path, required=True, help="its prompt is the number of the taskset's task")
    parser.add_argument("--taskset", required=True, help="name of an installed taskset, or of a module on PYTHONPATH")
    parser.add_argument("--harness", help="default: the taskset's own")
    options = parser.parse_args()
    number = int(json.loads(options.task.read_text(encoding="utf-8"))["prompt"])
    print(json.dumps(asyncio.run(play(options.taskset, number, options.harness))))


if __name__ == "__main__":
    main()
