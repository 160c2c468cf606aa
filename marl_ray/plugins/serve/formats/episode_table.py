"""Episodes as a Parquet table: one row per agent, joint action and turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home
from marl_ray.data.loading import read_jsonl
from marl_ray.telemetry.episode_records import recorded_prompt

ROWS_PER_GROUP = 10_000


def write_episode_table(source: Path, target: Path) -> int:
    """Write the episodes.jsonl of a run or evaluation as Parquet and return the number of rows. Raises UserError."""
    import pyarrow
    import pyarrow.parquet

    source = expand_home(source)
    file = source / "episodes.jsonl" if source.is_dir() else source
    schema = pyarrow.schema(
        [
            ("model", pyarrow.string()),
            ("step", pyarrow.int64()),
            ("kind", pyarrow.string()),
            ("task", pyarrow.string()),
            ("episode", pyarrow.int64()),
            ("turn", pyarrow.int64()),
            ("path", pyarrow.list_(pyarrow.int64())),
            ("joint_action", pyarrow.int64()),
            ("agent", pyarrow.int64()),
            ("prompt", pyarrow.string()),
            ("response", pyarrow.string()),
            ("reward", pyarrow.float64()),
            ("agent_reward", pyarrow.float64()),
            ("levels", pyarrow.string()),
            ("report", pyarrow.string()),
        ]
    )
    count = 0
    batch: list[dict[str, Any]] = []
    try:
        with pyarrow.parquet.ParquetWriter(target, schema) as writer:
            for row in _rows(file):
                batch.append(row)
                count += 1
                if len(batch) == ROWS_PER_GROUP:
                    writer.write_table(pyarrow.Table.from_pylist(batch, schema))
                    batch.clear()
            writer.write_table(pyarrow.Table.from_pylist(batch, schema))
    except OSError as error:
        raise UserError(f"{file} cannot be written to {target} ({error.strerror or error})") from None
    return count


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    for number, (_, episode) in enumerate(read_jsonl(file, "episodes file")):
        for node in episode["nodes"]:
            for index, action in enumerate(node["joint_actions"]):
                report = None
                if "report" in action:
                    report = json.dumps(action["report"])
                for agent, place in enumerate(action["indices"]):
                    prompt = recorded_prompt(node, agent, place)
                    if not isinstance(prompt, str):
                        prompt = json.dumps(prompt, ensure_ascii=False)
                    reward = action["reward"]
                    if "rewards" in action:
                        reward = action["rewards"][agent]
                    yield {
                        "model": episode.get("model"),
                        "step": episode.get("step"),
                        "kind": episode.get("kind"),
                        "task": episode["task"],
                        "episode": number,
                        "turn": node["turn"],
                        "path": node["path"],
                        "joint_action": index,
                        "agent": agent,
                        "prompt": prompt,
                        "response": node["responses"][agent][place],
                        "reward": action["reward"],
                        "agent_reward": reward,
                        "levels": json.dumps(action["levels"]),
                        "report": report,
                    }
