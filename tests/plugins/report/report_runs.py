"""Run folders for tests of reports."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from marl_ray.core.episode import Completion, Node, sibling_calls
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.episode_records import episode_record
from tests.factories import Verdict, make_episode, make_node

HOSTILE = (
    "</pre></script><script>document.title='owned'</script><img src=x onerror=alert(1)>\" onmouseover='x' "
    "&lt;b&gt; \x00\x1b[31m \u202e \ud800 <!-- ]]> <svg/onload=alert(1)>"
)

CONFIG = "magrpo: {num_turns: 2}\nmodel: {name: bundled:toy-base}\ndataset: {name: bundled:toy}\n"


def hostile(node: Node, agent: int) -> Node:
    """Return the node with a hostile prompt and hostile completions of one agent."""
    completions = [Completion((1,), HOSTILE, (0.0,), "stop", ((0, 1),)) for _ in node.calls[agent]]
    node.calls[agent] = list(sibling_calls((1, 2), completions, agent, HOSTILE))
    return node


def write_run(folder: Path, text: str = "fine", seed: int = 1) -> Path:
    """Write a run of two steps and an evaluation, whose verdicts are `text`."""
    folder.mkdir()
    rows: list[dict[str, Any]] = [
        {"step": 0, "env_steps": 0, "eval/turn_1/reward_mean": 1.0, "eval/turn_1/reward_std": 0.5, "eval/episodes": 25},
        {"step": 1, "env_steps": 8, "turn_1/reward_mean": 1.5, "turn_1/level/main": 0.6, "agent_0/loss": 0.25},
        {"step": 2, "env_steps": 16, "turn_1/reward_mean": 2.0, "turn_1/level/main": 0.4, "agent_0/loss": 0.5},
    ]
    rows[2] |= {"rollout/episodes": 2, "rollout/truncated_rate": 0.75, "agent_0/optimizer_steps": 1}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    below = hostile(make_node(1, [3.0], evidence=Verdict(text)), 0)
    root = hostile(make_node(0, [1.0, 2.0], {1: below}, evidence=Verdict(text), levels={HOSTILE: 1.0}), 1)
    hurt = replace(make_episode(root, ((1,), "infra_error")), task=replace(make_episode(root).task, id=HOSTILE))
    records = [episode_record(hurt), episode_record(make_episode(make_node(0, [0.5])))]
    lines = [json.dumps({"step": step, "kind": "train"} | record) for step, record in enumerate(records, 1)]
    (folder / "episodes.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "config.yaml").write_text(f"magrpo: {{}}\nseed: {seed}\nmodel: {{name: '<b>&'}}\n")
    (folder / "machine.json").write_text(json.dumps({"versions": {"ray": "2.<b>"}}))
    return folder


def page_data(page: str) -> Any:
    """Return the data that a page holds."""
    found = re.search(r'<script type="application/json" id="run">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def add_step(run: RunFolder, step: int, **metrics: float) -> None:
    row = {"step": step, "env_steps": 8 * step, "turn_1/reward_mean": 0.5} | metrics
    with run.metrics.open("a") as file:
        file.write(json.dumps(row) + "\n")
