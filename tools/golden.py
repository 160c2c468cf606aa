"""Check that two versions of the code compute bit-identical numbers, for changes that should not change any.

    cd OLD && python NEW/tools/golden.py record /tmp/old --data FOLDER
    cd NEW && python NEW/tools/golden.py record /tmp/new --data FOLDER
    python tools/golden.py compare /tmp/old /tmp/new

`record` runs the package in the current folder: short training runs with fixed seeds on CPU, and the sandbox on every
program of the data sets (FOLDER contains humaneval.jsonl, mbpp.jsonl, quixbugs.jsonl and classeval.jsonl). It records
all metrics except times, all written episodes, and the hashes of the trained weights. `compare` prints the first
difference of each case, and exits with status 1 if there is one. Recording takes about 15 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIMES = ("time/", "per_s", "cpu_s", "wall_s", "pending_max", "in_flight_max", "waiting_max")
MODES = ("level_feedback", "level_passed", "passed", "plain", "expert_edits")
QUICK = ("seed=7", "output.episodes_per_step=1000", "magrpo.max_steps=3", "magrpo.eval_num_samples=6")
MAGRPO = ("train_magrpo", "--config", "configs/quickstart.yaml")


def cases(data: Path, port: int) -> dict[str, list[tuple[str, ...]]]:
    """Return the commands of each case, which run in order in one run folder. `{run}` is replaced by the folder."""
    humaneval = (
        f"dataset.name={data / 'humaneval.jsonl'}",
        "dataset.type=humaneval",
        "dataset.train_split=test[:2]",
        "dataset.eval_split=test[:2]",
        "magrpo.max_steps=2",
        "magrpo.num_generations=4",
        "magrpo.max_new_tokens=64",
        f"external.expert_base_url=http://127.0.0.1:{port}/v1",
        "external.expert_model=golden",
    )
    grpo = (
        "train_grpo",
        "--config",
        "{grpo}",
        "--override",
        "seed=7",
        "output.episodes_per_step=1000",
        "grpo.max_steps=3",
        "grpo.eval_num_samples=6",
    )
    runs: dict[str, list[tuple[str, ...]]] = {
        "quickstart": [(*MAGRPO, "--override", "output.episodes_per_step=1000")],
        "three_agents": [(*MAGRPO, "--override", *QUICK, "magrpo.num_agents=3", "resources.generator.cpus=0.25")],
        "one_agent": [grpo],
        "resumed": [
            (*MAGRPO, "--override", *QUICK, "magrpo.save_steps=1", "magrpo.max_steps=2"),
            ("train_magrpo", "--resume", "{run}", "--override", "magrpo.max_steps=4"),
        ],
        "best_early": [
            (
                *MAGRPO,
                "--override",
                *QUICK,
                "magrpo.handoff=best",
                "magrpo.early_termination_threshold=2.0",
                "magrpo.train_batch_size=5",
                "magrpo.turn_gradient_weights=[1.2,0.8]",
                "output.probe_helpers=always",
                "external.sandbox_slice=-2",
                "external.original_prompt=true",
                "reward_processor.scale_factor=0.5",
                "reward_processor.shift=-4",
                "model.top_p=0.95",
            )
        ],
        "whole_tree": [(*MAGRPO, "--override", *QUICK, "magrpo.handoff=all", "magrpo.num_generations=4")],
        "whitened": [
            (*MAGRPO, "--override", *QUICK, "magrpo.normalize_advantages=true", "magrpo.loss_aggregation=token_mean")
        ],
        "no_baseline": [(*MAGRPO, "--override", *QUICK, "magrpo.estimator=mareinforce", "magrpo.num_generations=1")],
        "leave_one_out": [(*MAGRPO, "--override", *QUICK, "magrpo.estimator=marloo", "magrpo.num_turns=3")],
    }
    for mode in MODES:
        runs[f"humaneval_{mode}"] = [(*MAGRPO, "--override", *QUICK, *humaneval, f"external.mode={mode}")]
    return runs


def record(folder: Path, data: Path, only: list[str]) -> None:
    """Run every case and write its results to `folder`, one JSON file per case."""
    folder.mkdir(parents=True, exist_ok=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Expert)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    grpo = folder / "grpo.yaml"
    grpo.write_text(
        Path("configs/quickstart.yaml")
        .read_text(encoding="utf-8")
        .replace("\nmagrpo:", "\ngrpo:")
        .replace("num_agents: 2", "num_agents: 1"),
        encoding="utf-8",
    )
    runs = cases(data, server.server_address[1])
    for name in only or [*runs, "sandbox"]:
        print(name, flush=True)
        found = sandbox(data) if name == "sandbox" else train(runs[name], grpo)
        (folder / f"{name}.json").write_text(json.dumps(found, indent=1, sort_keys=True), encoding="utf-8")


def train(commands: list[tuple[str, ...]], grpo: Path) -> dict[str, Any]:
    """Return the results of a training run. If the run fails, print the end of its standard error and exit."""
    base = Path(tempfile.mkdtemp(prefix="golden"))
    run = base / "run"
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "OPENAI_API_KEY": "golden"}
    try:
        for module, *arguments in commands:
            arguments = [a.format(run=run, grpo=grpo) if a in ("{run}", "{grpo}") else a for a in arguments]
            if "--resume" not in arguments:
                arguments += [f"output.base_dir={base}", "output.run_name=run"]
            command = [sys.executable, "-m", f"marl_ray.{module}", *arguments]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=1800, encoding="utf-8"
            )
            if done.returncode:
                sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
        weights = {
            str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(run.glob("models/*/*.safetensors"))
        }
        assert weights, "no weights were written"
        return {
            "metrics": [timeless(row) for row in lines(run / "metrics.jsonl")],
            "episodes": [as_tree(timeless(row)) for row in lines(run / "episodes.jsonl")],
            "weights": weights,
        }
    finally:
        shutil.rmtree(base)


def sandbox(data: Path) -> dict[str, Any]:
    """Return the report on every program of the data sets: correct, buggy and broken programs."""
    sys.path.insert(0, os.getcwd())
    from marl_ray.sandbox import Limits, Sandbox, SandboxSettings

    settings = SandboxSettings(limits=Limits(test_cpu_s=5.0))
    programs = list(dataset_programs(data))
    with Sandbox(settings) as box:
        reports = box.run_batch([program for _, program in programs])
    return {name: timeless(report.to_dict()) for (name, _), report in zip(programs, reports, strict=True)}


def dataset_programs(data: Path) -> Iterator[tuple[str, Any]]:
    """Yield the name and the program of every case of the sandbox."""
    from marl_ray.sandbox import Program

    for row in lines(data / "humaneval.jsonl"):
        whole = row["prompt"] + row["canonical_solution"]
        wrong = row["prompt"] + "    return None\n"
        for kind, source in (("right", whole), ("wrong", wrong), ("broken", whole + "\n    )")):
            program = Program(source, row["test"], row["entry_point"], prompt=row["prompt"], visible=1)
            yield f"{row['task_id']} {kind}", program
    for row in lines(data / "quixbugs.jsonl"):
        for kind in ("canonical_solution", "buggy_solution"):
            yield f"{row['task_id']} {kind}", Program(row[kind], row["test"], row["entry_point"], form="check")
    for row in lines(data / "mbpp.jsonl"):
        code = row["code"].replace("\r\n", "\n")
        setup = row["test_setup_code"].replace("\r\n", "\n")
        defined = {node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        called = [node.id for node in ast.walk(ast.parse(row["test_list"][0])) if isinstance(node, ast.Name)]
        entry_point = next(name for name in called if name in defined)
        yield f"mbpp {row['task_id']}", Program(f"{code}\n{setup}", tuple(row["test_list"]), entry_point)
    for row in lines(data / "classeval.jsonl"):
        yield row["task_id"], Program(row["solution_code"], row["test"], row["class_name"], form="unittest")


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def timeless(value: Any) -> Any:
    """Return the value without its keys that contain one of TIMES."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if not any(part in str(k) for part in TIMES)}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def as_tree(row: dict[str, Any]) -> dict[str, Any]:
    """Return an episode in the current format, nodes with their path from the root. Version 0.1 wrote a list of
    turns."""
    if "turns" not in row:
        return row
    path: list[int] = []
    nodes = []
    for turn in row.pop("turns"):
        expanded = turn.pop("expanded")
        nodes.append(turn | {"path": list(path), "expanded": [] if expanded is None else [expanded]})
        path += nodes[-1]["expanded"]
    stopped = row.pop("stopped")
    return row | {"nodes": nodes, "stops": [{"path": path, "reason": stopped}] if stopped else []}


class Expert(http.server.BaseHTTPRequestHandler):
    """A substitute for an expert model: an OpenAI-compatible endpoint whose reply depends only on the question."""

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][0]["content"]
        number = int.from_bytes(hashlib.sha256(question.encode()).digest()[:2], "big")
        edits = {"aux": f"return {number}"} | ({"has_close_elements": "call aux"} if number % 2 else {})
        text = json.dumps(edits) if number % 5 else "no idea"
        reply = {
            "id": "golden",
            "object": "chat.completion",
            "created": 0,
            "model": "golden",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        }
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def compare(old: Path, new: Path) -> int:
    """Print the first difference of each case. Return the exit status: 1 if there is a difference, else 0."""
    different = 0
    for name in sorted({path.name for folder in (old, new) for path in folder.glob("*.json")}):
        then, now = (
            json.loads(p.read_text(encoding="utf-8")) if (p := folder / name).exists() else None
            for folder in (old, new)
        )
        found = difference(then, now, name)
        different += found is not None
        print(found or f"{name}: the same")
    return int(different > 0)


def difference(old: Any, new: Any, where: str) -> str | None:
    """Return the path and values of the first difference between two values, None if they are equal."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() != new.keys():
        return f"{where}: only old {sorted(old.keys() - new.keys())}, only new {sorted(new.keys() - old.keys())}"
    if isinstance(old, list) and isinstance(new, list) and len(old) != len(new):
        return f"{where}: {len(old)} items, now {len(new)}"
    if type(old) is type(new) and isinstance(old, dict | list):
        keys = old if isinstance(old, dict) else range(len(old))
        return next((found for key in keys if (found := difference(old[key], new[key], f"{where}/{key}"))), None)
    return None if old == new else f"{where}: {str(old)[:200]!r}, now {str(new)[:200]!r}"


def main() -> int:
    """Run the command line of the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("folder", type=Path)
    recorder.add_argument("--data", type=Path, required=True)
    recorder.add_argument("--only", nargs="+", default=[], metavar="CASE")
    comparer = commands.add_parser("compare")
    comparer.add_argument("old", type=Path)
    comparer.add_argument("new", type=Path)
    options = parser.parse_args()
    if options.command == "compare":
        return compare(options.old, options.new)
    record(options.folder.absolute(), options.data.absolute(), options.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
