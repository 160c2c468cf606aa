"""Train readers of the environment `tags`, with controls, one run per arm and seed.

    python -m benchmarks.tags [--study tags] [--arms joint,shared] [--seeds 1,2,3] [--list] [--only-table]

Study tags, three words each (40 steps, seeds 1 to 3): both agents learn (joint), with an entropy bonus too, only the
first, one policy for both, and one agent with the tokens of one or of both agents of the pair. On two idle cores 40
steps take 10 to 13 minutes and 20 steps 7.

Study tags-clock, five words each (20 steps, seeds 1 to 8): a pair, one policy for both, and one agent, with 14 or 28
tokens per answer. It prints comparisons and the words by tokens too. On two idle cores the 40 runs take about four
hours; --arms and --seeds select a part.

Each run is a `marl-ray train` with configs/magrpo_tags_smollm2.yaml and the arm's overrides, in a folder below
--folder. Its results are added to docs/results/tags/STUDY.jsonl as one line. Runs with a line are skipped and
interrupted runs are resumed, so the command can be repeated until all runs are done. Lines with other settings or texts
than the current ones are ignored, and their runs are repeated.

The learning rate is constant, so a run of 20 steps (--steps 20) equals the first 20 steps of a longer one. The table
compares arms after the last evaluated step that all runs reached.

Prints a table of all lines and draws docs/results/tags/STUDY.png; --results selects another folder. `--show runs/NAME`
prints the table of one run folder of a pair, and draws NAME/tags.png (`make demo`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.learning.__main__ import ROOT, current, train
from benchmarks.learning.study import JOINT
from benchmarks.tags import clock
from benchmarks.tags.arms import TAGS
from benchmarks.tags.measures import measure
from benchmarks.tags.report import draw, table

RESULTS = ROOT / "docs" / "results" / "tags"
STUDIES = {study.name: study for study in (TAGS, clock.CLOCK)}
SEEDS = {TAGS.name: "1,2,3", clock.CLOCK.name: "1,2,3,4,5,6,7,8"}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", choices=list(STUDIES), default=TAGS.name)
    parser.add_argument("--arms", help="arms to run, see --list (default: all)")
    parser.add_argument("--seeds", help="seeds to run (default: all of the study)")
    parser.add_argument("--folder", type=Path, default=Path("learning"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of STUDY.jsonl and STUDY.png")
    parser.add_argument("--list", action="store_true", help="list the arms, their finished seeds and their settings")
    parser.add_argument("--steps", type=int, help="training steps of each run (default: the study's)")
    parser.add_argument("--show", type=Path, metavar="RUN", help="show one run folder and exit")
    parser.add_argument("--only-table", action="store_true", help="print table and figure without running anything")
    arguments = parser.parse_args(argv)
    if arguments.show:
        shown = [{"arm": JOINT, "seed": _seed(arguments.show), **measure(arguments.show)}]
        print(table(shown))
        draw(shown, arguments.show / "tags.png")
        print(f"figure: {arguments.show / 'tags.png'}")
        return
    study = STUDIES[arguments.study]
    results = arguments.results.absolute()
    arms = arguments.arms.split(",") if arguments.arms else list(study.arms)
    if unknown := set(arms) - set(study.arms):
        parser.error(f"unknown arms: {', '.join(sorted(unknown))}; see --list")
    done = {(line["arm"], line["seed"]) for line in current(study, results)}
    if arguments.list:
        for name, arm in study.arms.items():
            print(f"{name:12} seeds {sorted(seed for other, seed in done if other == name)}  {dict(arm.overrides)}")
        return
    if not arguments.only_table:
        folder = arguments.folder.absolute()
        steps = [f"magrpo.max_steps={arguments.steps}"] if arguments.steps else []
        for new in (folder, results):
            new.mkdir(parents=True, exist_ok=True)
        for seed in map(int, (arguments.seeds or SEEDS[study.name]).split(",")):
            for name in arms:
                if (name, seed) not in done:
                    run = train(study, name, seed, folder, steps)
                    line: dict[str, Any] = {"arm": name, "seed": seed, "digest": study.digest(name), **measure(run)}
                    final = line["evaluations"][-1]
                    final |= study.extra_metrics(run, final["step"], 1)
                    with (results / f"{study.name}.jsonl").open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
                    first, last = line["evaluations"][0], line["evaluations"][-1]
                    words = f"{first['partners']:.2f} -> {last['partners']:.2f}"
                    print(f"{name}, seed {seed}: different words {words}; {line['seconds']} s", flush=True)
    lines = current(study, results)
    print(table(lines, study))
    if study is clock.CLOCK:
        print()
        print(clock.report(lines, results / f"{study.name}.png"))
    else:
        draw(lines, results / f"{study.name}.png")


def _seed(run: Path) -> int:
    return int(yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["seed"])


if __name__ == "__main__":
    main()
