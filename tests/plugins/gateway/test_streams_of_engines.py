"""Streamed calls of real engines: the ids of an answer do not depend on how the program reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.factories import ROOT
from tests.plugins.gateway.scripted_agents import command

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
PROGRAM = """
import json, sys
from openai import OpenAI
task, how = json.load(open(sys.argv[1])), sys.argv[2]
client, parts = OpenAI(max_retries=0, timeout=600), 0
for name, prompt in task["prompts"].items():
    messages = [{"role": "user", "content": prompt}]
    for _ in range(2):
        if how == "whole":
            answer = client.chat.completions.create(model=name, messages=messages).choices[0].message.content
        else:
            answer, usage = "", None
            options = {"stream": True, "stream_options": {"include_usage": True}}
            for part in client.chat.completions.create(model=name, messages=messages, **options):
                answer += part.choices[0].delta.content or "" if part.choices else ""
                parts, usage = parts + 1, part.usage or usage
                if how == "left" and parts == 3:
                    break
            assert how == "left" or usage.completion_tokens > 0
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Again."}]
        if how == "left":
            break
print(json.dumps({"metrics": {"parts": parts}}))
"""


def played(folder: Path, how: str) -> list[dict[str, Any]]:
    """Return the nodes of two tasks."""
    script, output = folder / "program.py", folder / f"{how}.jsonl"
    script.write_text(PROGRAM)
    run = [sys.executable, "-m", "marl_ray", "rollout", "--config", str(ROOT / "configs" / "toy_gateway.yaml")]
    run += ["--tasks", "2", "--output", str(output), "--override", "magrpo.num_generations=2"]
    run += [f"gateway.command={command(script, '{task_file}', how)}"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line)["nodes"][0] for line in output.read_text().splitlines()]


def test_a_stream_has_the_ids_of_the_answer(tmp_path: Path) -> None:
    whole, streamed, left = (played(tmp_path, how) for how in ("whole", "stream", "left"))
    assert [node["responses"] for node in streamed] == [node["responses"] for node in whole]
    assert [node["callers"] for node in streamed] == [node["callers"] for node in whole]
    # A program that reads the first parts only has sampled the same first answers, which are kept as a whole.
    for own, other in zip(left, whole, strict=True):
        assert own["responses"][0] == other["responses"][0][::2]
