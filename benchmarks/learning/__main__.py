"""Compare ways to train a pair of agents, with one run per arm and seed.

    python -m benchmarks.learning [--study toy-hard] [--arms joint,only_main] [--seeds 1,2,3] [--list] [--only-table]

Studies: toy-hard (33 ways to train the bundled pair on the harder bundled tasks), toy-primary (who learns, measured on
more held-out tasks), toy-estimators (estimators, each at three learning rates), toy-revising (messages between turns,
for a base policy that was shown how to revise), toy-gateway (the environment against a program behind the gateway),
toy-second-turn (groups by turn and by trajectory, and a second turn against a second first answer), grid (letter grids
with feedback and without), grid-private (letter grids of which each agent knows one half), grid-telling (the same, with
base policies that were not shown to tell), grid-falls (why a pair falls from its peak), plan-path (planner and checker
against one agent), plan-path-credit (credit where a checker reads the planner's answer), hanabi (self-play of small
Hanabi), toy-math (solver and verifier on generated arithmetic), relay and loud-relay (branch replays against credit by
runs, for programs in which agents talk), mbpp (two SmolLM2-135M on MBPP).

Each run is a `marl-ray train` with the study's config and the arm's overrides, in a folder below --folder. Studies of
the smallest policies that execute no programs train in one process (`benchmarks.in_process`). The results of a run are
added to docs/results/learning/STUDY.jsonl as one line. Runs with a line are skipped and interrupted runs are resumed
(or repeated, in one process), so the command can be repeated until all runs are done. Lines with other settings, tasks
or base policies than the current ones are ignored, and their runs are repeated.

Prints a table of all lines and draws docs/results/learning/STUDY.png; --results selects another folder. Use --override
only for settings that do not affect the results, such as the path of a data set.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.learning.catalogue import FAMILIES, STUDIES
from benchmarks.learning.expert import serving
from benchmarks.learning.measures import measure, read_lines
from benchmarks.learning.primary import primary_table
from benchmarks.learning.report import draw, table
from benchmarks.learning.studies import TOY_HARD, TOY_PRIMARY
from benchmarks.learning.study import Study

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "docs" / "results" / "learning"


def train(study: Study, arm: str, seed: int, folder: Path, more_overrides: Sequence[str]) -> Path:
    """Run or resume an arm and return its run folder. Exits if the run fails."""
    run = folder / f"{arm}_{seed}_{study.digest(arm)}"
    settings: dict[str, Any] = {
        **study.common,
        **study.arms[arm].overrides,
        "seed": seed,
        "output.base_dir": folder,
        "output.run_name": run.name,
        "output.resume": "auto",
    }
    base = settings.get("model.name", "")
    if base in study.models:
        settings["model.name"] = made_base(study, base)
    trainer = ["benchmarks.in_process"] if study.in_process else ["marl_ray", "train", "magrpo"]
    command = [sys.executable, "-m", *trainer, "--config", str(study.config), "--override"]
    environment = dict(os.environ)
    with ExitStack() as stack:
        if settings.get("external.mode") == "expert_edits":
            settings["external.expert_base_url"] = stack.enter_context(serving(read_lines(study.files[0])))
            environment |= {"OPENAI_API_KEY": "unused", "NO_PROXY": "127.0.0.1"}
        overrides = [f"{key}={value}" for key, value in settings.items()]
        log = stack.enter_context(run.with_suffix(".log").open("a", encoding="utf-8"))
        child = subprocess.Popen(
            [*command, *overrides, *more_overrides], stdout=log, stderr=log, cwd=ROOT, env=environment
        )
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())  # then wait for the run to stop
        code = child.wait()
    if code:
        sys.exit(f"{arm}, seed {seed} failed, see {log.name}; the same command resumes it")
    return run


def made_base(study: Study, name: str) -> Path:
    """Return the folder of a base policy that the study makes, after making it if it is missing."""
    folder = ROOT / name
    if not folder.exists():
        print(f"making the base policy {name}", flush=True)
        study.models[name](folder)
    return folder


def current(study: Study, results: Path) -> list[dict[str, Any]]:
    """Return the lines of a study whose settings, tasks and base policy are current."""
    lines = read_lines(results / f"{study.name}.jsonl")
    return [line for line in lines if line["arm"] in study.arms and line["digest"] == study.digest(line["arm"])]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", choices=list(STUDIES), default=TOY_HARD.name)
    parser.add_argument("--arms", help="arms to run, see --list (default: all)")
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--folder", type=Path, default=Path("learning"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of STUDY.jsonl and STUDY.png")
    parser.add_argument("--override", nargs="+", default=[], metavar="KEY=VALUE", help="settings of all runs")
    parser.add_argument("--list", action="store_true", help="list the arms, their finished seeds and their settings")
    parser.add_argument("--only-table", action="store_true", help="print the table without running anything")
    parser.add_argument("--primary", action="store_true", help="print only the primary comparisons of a study")
    arguments = parser.parse_args(argv)
    study, results = STUDIES[arguments.study], arguments.results.absolute()
    arms = arguments.arms.split(",") if arguments.arms else list(study.arms)
    if unknown := set(arms) - set(study.arms):
        parser.error(f"unknown arms: {', '.join(sorted(unknown))}; see --list")
    done = {(line["arm"], line["seed"]) for line in current(study, results)}
    if arguments.primary:
        family = arguments.study if arguments.study in FAMILIES else TOY_PRIMARY.name
        print(primary_table(current(STUDIES[family], results), FAMILIES[family]))
        return
    if arguments.list:
        for name, arm in study.arms.items():
            print(f"{name:12} seeds {sorted(seed for other, seed in done if other == name)}  {dict(arm.overrides)}")
        return
    if not arguments.only_table:
        folder = arguments.folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        results.mkdir(parents=True, exist_ok=True)
        for seed in map(int, arguments.seeds.split(",")):
            for name in arms:
                if (name, seed) in done:
                    continue
                run = train(study, name, seed, folder, arguments.override)
                line: dict[str, Any] = {"arm": name, "seed": seed, "digest": study.digest(name)}
                line |= measure(run, study.drawn[0], study.extra_metrics)
                with (results / f"{study.name}.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                before, after = line["before"]["reward"], line["after"]["reward"]
                print(f"{name}, seed {seed}: reward {before:.2f} -> {after:.2f}; {line['seconds']} s", flush=True)
    lines = current(study, results)
    print(table(lines, study))
    draw(lines, study, results / f"{study.name}.png")


if __name__ == "__main__":
    main()
