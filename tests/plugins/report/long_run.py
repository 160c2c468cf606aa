"""A run folder as large as a long training: `python -m tests.plugins.report.long_run FOLDER` writes one."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

STEPS = 1000
EPISODES_PER_STEP = 3
EVALUATION_INTERVAL = 50
TURNS = 2
AGENTS = 2
START = 1_700_000_000.0
STEP_S = 20.0
TURN_METRICS = (
    "reward_mean",
    "reward_std",
    "reward_max_mean",
    "group_std_mean",
    "expected_return",
    "main_defined",
    "aux_defined",
    "syntax_ok",
    "tests_passed_rate",
    "all_passed",
    "aux_called",
    "thin_wrapper",
    "aux_misused",
    "keep_rate",
    "fix_rate",
    "level/main",
    "level/syntax",
    "level/tests",
    "level/aux",
    "level/aux_called",
    "level/not_thin",
    "level/misused",
)
AGENT_METRICS = (
    "loss",
    "grad_norm",
    "learning_rate",
    "optimizer_steps",
    "skipped_steps",
    "weight_version",
    "entropy",
    "logprob_gap",
    "ratio_mean",
    "ratio_max",
    "ratio_cut",
    "effective_sample_size",
    "staleness_mean",
    "staleness_max",
    "sent_bytes",
    "turn_1/credit_variance",
    "turn_2/credit_variance",
    "turn_1/influence",
)
RUN_METRICS = (
    "rollout/episodes",
    "rollout/joint_samples",
    "rollout/tokens",
    "rollout/tokens_per_s",
    "rollout/completion_tokens_mean",
    "rollout/truncated_rate",
    "rollout/too_long_prompts",
    "sandbox/executions",
    "sandbox/executions_per_s",
    "sandbox/timeouts",
    "cooperation/agreement",
    "cooperation/partner_shuffle",
    "tokens/all",
    "tokens/critical_path",
    "reward_per_token/all",
    "reward_per_token/critical_path",
    "time/step",
    "time/rollout",
    "time/learn",
    "time/sync",
    "time/idle",
    "time/agent_0/wait",
    "time/agent_1/wait",
    "time/agent_0/learn",
    "time/agent_1/learn",
    "time/agent_0/sync",
    "time/agent_1/sync",
)
CONFIG = """magrpo: {num_turns: 2, num_agents: 2, max_steps: 1000, max_new_tokens: 256}
model: {name: 'bundled:toy-base'}
dataset: {name: 'bundled:toy'}
"""


def write_long_run(folder: Path, steps: int = STEPS) -> None:
    """Write a run of `steps` steps with over a hundred metrics each, three episodes per step, and a timeline."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    stream = random.Random(1)
    rows = [_evaluation(stream, 0)]
    episodes = []
    timeline = []
    for step in range(1, steps + 1):
        rows.append(_training_row(stream, step))
        timeline.append({"step": step, "spans": _spans(step)})
        for number in range(EPISODES_PER_STEP):
            episodes.append(_episode(stream, step, "train", f"toy/{(3 * step + number) % 192:03d}"))
        if step % EVALUATION_INTERVAL == 0:
            rows.append(_evaluation(stream, step))
            for number in range(EPISODES_PER_STEP):
                episodes.append(_episode(stream, step, "eval", f"toy/{200 + number}"))
    _write(folder / "metrics.jsonl", rows)
    _write(folder / "episodes.jsonl", episodes)
    _write(folder / "timeline.jsonl", timeline)


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _training_row(stream: random.Random, step: int) -> dict[str, Any]:
    row: dict[str, Any] = {"step": step, "env_steps": 128 * step}
    row |= _turns(stream, "", step)
    for agent in range(AGENTS):
        for name in AGENT_METRICS:
            row[f"agent_{agent}/{name}"] = stream.random()
        row[f"agent_{agent}/optimizer_steps"] = 1
        row[f"agent_{agent}/effective_sample_size"] = 1 - 0.01 * stream.random()
        row[f"agent_{agent}/logprob_gap"] = 0.01 * stream.random()
    for name in RUN_METRICS:
        row[name] = stream.random()
    row["time/step"] = STEP_S
    row["rollout/tokens"] = round(stream.gauss(4000, 200))
    row["rollout/truncated_rate"] = 0.1 * stream.random()
    return row


def _turns(stream: random.Random, prefix: str, step: int) -> dict[str, float]:
    metrics = {}
    for turn in range(1, TURNS + 1):
        for name in TURN_METRICS:
            metrics[f"{prefix}turn_{turn}/{name}"] = stream.random()
        metrics[f"{prefix}turn_{turn}/reward_mean"] = 4 - 3 / (1 + step / 200) + stream.gauss(0, 0.1)
    return metrics


def _evaluation(stream: random.Random, step: int) -> dict[str, Any]:
    row: dict[str, Any] = {"step": step, "env_steps": 128 * step, "eval/episodes": 48, "time/eval": STEP_S}
    return row | _turns(stream, "eval/", step)


def _spans(step: int) -> list[list[Any]]:
    begin = START + STEP_S * (step - 1)
    spans: list[list[Any]] = [["steps", "step", step, begin, begin + STEP_S]]
    spans.append(["rollouts", "rollout", step, begin, begin + 12])
    for agent in range(AGENTS):
        parts = [("wait", 0, 8), ("learn", 8, 9), ("wait", 9, 12), ("learn", 12, 18), ("sync", 18, 20)]
        for name, start, end in parts:
            spans.append([f"agent_{agent}", name, step, begin + start, begin + end])
    return spans


def _episode(stream: random.Random, step: int, kind: str, task: str) -> dict[str, Any]:
    nodes = []
    for turn in range(1, TURNS + 1):
        responses = []
        for agent in range(AGENTS):
            responses.append([_program(stream, f"f{agent}") for _ in range(8)])
        actions = []
        for index in range(8):
            reward = round(4 * stream.random(), 2)
            levels = {"main": 0.6, "tests": reward - 0.6}
            actions.append({"indices": [index] * AGENTS, "reward": reward, "levels": levels})
        prompt = f"def stretch(x: int) -> int:\n    '''Return {step} times x.'''\nWrite the function only."
        nodes.append(
            {
                "turn": turn,
                "path": [0] * (turn - 1),
                "prompts": [prompt] * AGENTS,
                "responses": responses,
                "weight_versions": [[step - 1] * 8] * AGENTS,
                "joint_actions": actions,
                "expanded": [0] if turn < TURNS else [],
            }
        )
    return {"step": step, "kind": kind, "task": task, "stops": [], "nodes": nodes}


def _program(stream: random.Random, name: str) -> str:
    number = stream.randrange(10_000)
    return f"def {name}(x):\n    y = {number} * x\n    if y > {number % 7}:\n        return y\n    return -y\n"


if __name__ == "__main__":
    write_long_run(Path(sys.argv[1]))
