"""What is joint training worth, and which way of it? One run an arm and seed.

    python -m benchmarks.learning [--study toy-hard] [--arms joint,only_main] [--seeds 1,2,3] [--list] [--only-table]

toy-hard: 24 ways to train the bundled pair on the harder bundled set. mbpp: two SmolLM2-135M on MBPP.

Each run is a `marl-ray train` of its own with the study's config and the arm's overrides, below --folder. Its numbers
become a line of docs/results/learning/STUDY.jsonl, and what has a line there is not run again. A run that was stopped goes on
when it is asked for again, so this can be done in pieces. Lines of other settings, tasks or base policy than today's
are left out, and their arms run anew.

Prints a table of all lines and draws docs/results/learning/STUDY.png; --results names another folder. --override takes settings
that make no difference to the numbers, such as where a copy of the data is.
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

from benchmarks.learning.expert import serving
from benchmarks.learning.measures import lines_of, measure
from benchmarks.learning.report import draw, table
from benchmarks.learning.studies import STUDIES, TOY_HARD, Study

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "docs" / "results" / "learning"


def train(study: Study, arm: str, seed: int, folder: Path, also: Sequence[str]) -> Path:
    """Run an arm, or go on with it; returns the run's folder. Exits where the run does not end well."""
    run = folder / f"{arm}_{seed}_{study.digest(arm)}"
    settings = {
        **study.common,
        **study.arms[arm].overrides,
        "seed": seed,
        "output.base_dir": folder,
        "output.run_name": run.name,
        "output.resume": "auto",
    }
    command = [sys.executable, "-m", "marl_ray", "train", "magrpo", "--config", str(study.config), "--override"]
    environment = dict(os.environ)
    with ExitStack() as stack:
        if settings.get("external.mode") == "expert_edits":
            settings["external.expert_base_url"] = stack.enter_context(serving(lines_of(study.files[0])))
            environment |= {"OPENAI_API_KEY": "any word", "NO_PROXY": "127.0.0.1"}
        overrides = [f"{key}={value}" for key, value in settings.items()]
        log = stack.enter_context(run.with_suffix(".log").open("a"))
        child = subprocess.Popen([*command, *overrides, *also], stdout=log, stderr=log, cwd=ROOT, env=environment)
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())  # who is stopped waits until the run has stopped
        code = child.wait()
    if code:
        sys.exit(f"{arm}, seed {seed} ended early, {log.name} says why; the same command goes on with it")
    return run


def current(study: Study, results: Path) -> list[dict[str, Any]]:
    """The lines of a study's arms as they are today."""
    lines = lines_of(results / f"{study.name}.jsonl")
    return [line for line in lines if line["arm"] in study.arms and line["digest"] == study.digest(line["arm"])]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", choices=list(STUDIES), default=TOY_HARD.name)
    parser.add_argument("--arms", help="of those that --list names; all if not given")
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--folder", type=Path, default=Path("learning"), help="of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where STUDY.jsonl and STUDY.png are")
    parser.add_argument("--override", nargs="+", default=[], metavar="KEY=VALUE", help="of all runs")
    parser.add_argument("--list", action="store_true", help="name arms, their settings and which seeds are done")
    parser.add_argument("--only-table", action="store_true", help="run nothing")
    arguments = parser.parse_args(argv)
    study, results = STUDIES[arguments.study], arguments.results.absolute()
    arms = arguments.arms.split(",") if arguments.arms else list(study.arms)
    if unknown := set(arms) - set(study.arms):
        parser.error(f"no arm is called {', '.join(sorted(unknown))}: --list names them")
    done = {(line["arm"], line["seed"]) for line in current(study, results)}
    if arguments.list:
        for name, arm in study.arms.items():
            print(f"{name:12} seeds {sorted(seed for of, seed in done if of == name)}  {dict(arm.overrides)}")
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
                line |= measure(run, study.drawn[0], study.also)
                with (results / f"{study.name}.jsonl").open("a") as file:
                    file.write(json.dumps(line) + "\n")
                before, after = line["before"]["reward"], line["after"]["reward"]
                print(f"{name}, seed {seed}: reward {before:.2f}, then {after:.2f}; {line['seconds']} s", flush=True)
    lines = current(study, results)
    print(table(lines, study))
    draw(lines, study, results / f"{study.name}.png")


if __name__ == "__main__":
    main()
