"""What is joint training worth, and which way of it? Arms of the hard toy set, one run an arm and seed.

    python -m benchmarks.learning [--arms joint,only_main] [--seeds 1,2,3] [--list] [--only-table]

Each run is a `marl-ray train` of its own with configs/toy_hard.yaml and the arm's overrides, below --folder. Its
numbers become a line of docs/learning/results.jsonl, and what has a line there is not run again. A run that was stopped
goes on when it is asked for again, so this can be done in pieces. Lines of other settings, tasks or base policy than
today's are left out, and their arms run anew.

Prints a table of all lines and draws docs/learning/curves.png; --results names another folder.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import random
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.learning_report import draw, table
from marl_ray.data.loading import load_tasks
from marl_ray.toy import HARD_BASE_PATH, HARD_TASKS_PATH
from tools.toy.demonstrations import PERFECT
from tools.toy.hard_demonstrations import attempt
from tools.toy.hard_families import Problem, split_problems

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs" / "toy_hard.yaml"
RESULTS = ROOT / "docs" / "learning"


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to train: what it is called in the table, and the settings in which it differs from the joint arm."""

    title: str
    overrides: Mapping[str, Any]


FROZEN = "{learning_rate: 0}"
JOINT = "joint"
GROUPS: dict[str, dict[str, Arm]] = {
    "who learns": {
        JOINT: Arm("both agents", {}),
        "only_main": Arm("only main", {"agents": f"[{FROZEN}, {{}}]"}),
        "only_aux": Arm("only aux", {"agents": f"[{{}}, {FROZEN}]"}),
        "shared": Arm("both, with one policy", {"magrpo.policy": 0}),
        "single": Arm("one agent, twice the answers", {"magrpo.num_agents": 1, "magrpo.num_generations": 16}),
    },
    "turns": {
        "one_turn": Arm("one turn, twice the tasks", {"magrpo.num_turns": 1, "magrpo.rollout_buffer_size": 16}),
        "level_passed": Arm("told level_passed", {"external.mode": "level_passed"}),
        "passed": Arm("told passed", {"external.mode": "passed"}),
        "plain": Arm("told nothing", {"external.mode": "plain"}),
    },
    "handoff and joint mode": {
        "best": Arm("handoff best", {"magrpo.handoff": "best"}),
        "all": Arm(
            "handoff all, G = 4, 6 tasks",
            {"magrpo.handoff": "all", "magrpo.num_generations": 4, "magrpo.rollout_buffer_size": 6},
        ),
        "cross": Arm("cross", {"magrpo.joint_mode": "cross"}),
    },
    "estimator": {
        "marloo": Arm("marloo", {"magrpo.estimator": "marloo"}),
        "maremax": Arm("maremax", {"magrpo.estimator": "maremax"}),
        "mareinforce": Arm("mareinforce", {"magrpo.estimator": "mareinforce"}),
        "remax": Arm("remax", {"magrpo.estimator": "remax"}),
        "reinforce_pp": Arm("reinforce_pp", {"magrpo.estimator": "reinforce_pp"}),
        "difference": Arm("difference", {"magrpo.estimator": "difference"}),
        "whitened": Arm("magrpo, whitened", {"magrpo.normalize_advantages": True}),
        "dynamic": Arm("magrpo, dynamic sampling", {"magrpo.dynamic_sampling": True}),
        "iac": Arm(
            "critic iac, handoff all, G = 4, 6 tasks",
            {
                "magrpo.critic": "iac",
                "magrpo.critic_learning_rate": 1e-2,
                "magrpo.handoff": "all",
                "magrpo.num_generations": 4,
                "magrpo.rollout_buffer_size": 6,
            },
        ),
    },
}
"""Arms of one group are drawn together. All take the same number of steps, and of about the same number of tokens."""
ARMS = {name: arm for group in GROUPS.values() for name, arm in group.items()}
COMMON = {"magrpo.num_train_epochs": 100, "magrpo.max_steps": 60, "output.episodes_per_step": 64}
"""Steps are the same for all, however many tasks each has; all of an evaluation's episodes are written."""


@functools.cache
def material() -> str:
    """A digest of what all arms share: config, tasks and base policy."""
    settings = json.dumps(yaml.safe_load(CONFIG.read_text()), sort_keys=True).encode()
    weights = (HARD_BASE_PATH / "model.safetensors").read_bytes()
    return hashlib.sha256(settings + HARD_TASKS_PATH.read_bytes() + weights).hexdigest()


def digest(arm: str) -> str:
    """Of all that makes an arm's numbers but the seed and the code."""
    settings = json.dumps(COMMON | dict(ARMS[arm].overrides), sort_keys=True)
    return hashlib.sha256((material() + settings).encode()).hexdigest()[:8]


def train(arm: str, seed: int, folder: Path) -> Path:
    """Run an arm, or go on with it; returns the run's folder. Exits where the run does not end well."""
    run = folder / f"{arm}_{seed}_{digest(arm)}"
    settings = {
        **COMMON,
        **ARMS[arm].overrides,
        "seed": seed,
        "output.base_dir": folder,
        "output.run_name": run.name,
        "output.resume": "auto",
    }
    command = [sys.executable, "-m", "marl_ray", "train", "magrpo", "--config", str(CONFIG), "--override"]
    overrides = [f"{key}={value}" for key, value in settings.items()]
    with run.with_suffix(".log").open("a") as log:
        child = subprocess.Popen([*command, *overrides], stdout=log, stderr=log, cwd=ROOT)
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())  # who is stopped waits until the run has stopped
        code = child.wait()
    if code:
        sys.exit(f"{arm}, seed {seed} ended early, {log.name} says why; the same command goes on with it")
    return run


def measure(arm: str, seed: int, run: Path) -> dict[str, Any]:
    """A run's line: held-out numbers before and after, and the way between, a point a step."""
    rows = _lines(run / "metrics.jsonl")
    steps = [row for row in rows if "turn_1/reward_mean" in row]
    evaluations = [row for row in rows if "eval/turn_1/reward_mean" in row]
    last = max(int(key.split("_")[1].split("/")[0]) for key in steps[0] if key.startswith("turn_"))
    tokens, curve = 0, []
    for row in steps:
        tokens += row["rollout/tokens"]
        curve.append([tokens, round(row[f"turn_{last}/reward_mean"], 3), round(row[f"turn_{last}/all_passed"], 3)])
    return {
        "arm": arm,
        "seed": seed,
        "digest": digest(arm),
        "seconds": round(sum(row["time/step"] for row in steps)),
        "before": _held_out(evaluations[0], last) | _by_task(run, 0, last),
        "after": _held_out(evaluations[-1], last) | _by_task(run, evaluations[-1]["step"], last),
        "curve": curve,
    }


def _held_out(row: Mapping[str, Any], last: int) -> dict[str, float]:
    """Of an evaluation: mean reward and share that passes all tests in the last turn, and in the first; the share of
    the last turn's programs of which a test fails without the helper."""
    names = {
        "reward": f"turn_{last}/reward_mean",
        "passed": f"turn_{last}/all_passed",
        "first_reward": "turn_1/reward_mean",
        "first_passed": "turn_1/all_passed",
        "needs_aux": f"turn_{last}/helper_needed",
    }
    return {name: round(row[f"eval/{key}"], 4) for name, key in names.items() if f"eval/{key}" in row}


def _by_task(run: Path, step: int, last: int) -> dict[str, float]:
    """Of an evaluation's last turn: the share that passes all tests, of known families and of unseen ones; and of
    `pairs`, where the helper may take either of two steps and both answers are free of slips, the share in which
    helper and entry point go by the same one (`agree`), and that in which it is the first (`both_first`).
    """
    drawn = split_problems()
    by_prompt = {problem.prompt: (split, problem) for split in ("eval", "unseen") for problem in drawn[split]}
    of_task = {task.id: by_prompt[task.prompt] for task in load_tasks("bundled:toy-hard", "eval+unseen")}
    passed: dict[str, list[bool]] = {"eval": [], "unseen": []}
    ways: list[tuple[int, ...]] = []
    for episode in _lines(run / "episodes.jsonl"):
        if (episode["kind"], episode["step"]) != ("eval", step):
            continue
        split, problem = of_task[episode["task"]]
        for node in (node for node in episode["nodes"] if node["turn"] == last):
            for action in node["joint_actions"]:
                passed[split].append(action["levels"]["tests"] == 1.0)
                texts = [group[index] for group, index in zip(node["responses"], action["indices"], strict=True)]
                ways.append(_ways(problem, texts))
    found = {f"passed_{split}": statistics.fmean(these) for split, these in passed.items()}
    if pairs := [pair for pair in ways if len(pair) == 2]:
        found["pairs"] = len(pairs)
        found["agree"] = statistics.fmean(aux == main for aux, main in pairs)
        found["both_first"] = statistics.fmean(pair == (0, 0) for pair in pairs)
    return {name: round(value, 4) for name, value in found.items()}


def _ways(problem: Problem, texts: Sequence[str]) -> tuple[int, ...]:
    """Which step each of two agents leaves to the helper, of those who say so without a slip."""
    if len(texts) != 2 or len(problem.family.ways) < 2:
        return ()
    rng, roles = random.Random(0), ("aux", "main")
    return tuple(
        way
        for role, text in zip(roles, texts, strict=True)
        for way in problem.family.ways
        if text in {attempt(problem, role, PERFECT, rng, way).text for _ in range(8)}  # main has two wordings
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def current(results: Path) -> list[dict[str, Any]]:
    """The lines of arms as they are today."""
    return [line for line in _lines(results) if line["arm"] in ARMS and line["digest"] == digest(line["arm"])]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", default=",".join(ARMS), help="of those that --list names; all if not given")
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--folder", type=Path, default=Path("learning"), help="of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results.jsonl and curves.png are")
    parser.add_argument("--list", action="store_true", help="name arms, their settings and which seeds are done")
    parser.add_argument("--only-table", action="store_true", help="run nothing")
    arguments = parser.parse_args(argv)
    results = arguments.results.absolute() / "results.jsonl"
    arms = arguments.arms.split(",")
    if unknown := set(arms) - set(ARMS):
        parser.error(f"no arm is called {', '.join(sorted(unknown))}: --list names them")
    done = {(line["arm"], line["seed"]) for line in current(results)}
    if arguments.list:
        for name, arm in ARMS.items():
            print(f"{name:12} seeds {sorted(seed for of, seed in done if of == name)}  {dict(arm.overrides)}")
        return
    if not arguments.only_table:
        folder = arguments.folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        results.parent.mkdir(parents=True, exist_ok=True)
        for seed in map(int, arguments.seeds.split(",")):
            for arm in (name for name in arms if (name, seed) not in done):
                line = measure(arm, seed, train(arm, seed, folder))
                with results.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                before, after = line["before"]["passed"], line["after"]["passed"]
                print(f"{arm}, seed {seed}: passed {before:.2f}, then {after:.2f}; {line['seconds']} s", flush=True)
    lines = current(results)
    titles = {group: {name: arm.title for name, arm in of.items()} for group, of in GROUPS.items()}
    print(table(lines, titles, JOINT))
    draw(lines, titles, JOINT, results.with_name("curves.png"))


if __name__ == "__main__":
    main()
