"""Train readers of the environment `tags`, with controls, one run per arm and seed.

    python -m benchmarks.tags [--arms joint,shared] [--seeds 1,2,3] [--list] [--only-table]

Arms: both agents learn (joint), with an entropy bonus too, only the first, one policy for both, and one agent with the
tokens of one or of both agents of the pair. On two idle cores 40 steps take 10 to 13 minutes and 20 steps 7.

Each run is a `marl-ray train` with configs/magrpo_tags_smollm2.yaml and the arm's overrides, in a folder below
--folder. Its results are added to docs/results/tags/tags.jsonl as one line. Runs with a line are skipped and
interrupted runs are resumed, so the command can be repeated until all runs are done. Lines with other settings or texts
than the current ones are ignored, and their runs are repeated.

The learning rate is constant, so a run of 20 steps (--steps 20) equals the first 20 steps of a longer one. The table
compares arms after the last evaluated step that all runs reached.

Prints a table of all lines and draws docs/results/tags/tags.png; --results selects another folder. `--show runs/NAME`
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
from benchmarks.tags.arms import TAGS
from benchmarks.tags.measures import measure
from benchmarks.tags.report import draw, table

RESULTS = ROOT / "docs" / "results" / "tags"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", help="arms to run, see --list (default: all)")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--folder", type=Path, default=Path("learning"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of tags.jsonl and tags.png")
    parser.add_argument("--list", action="store_true", help="list the arms, their finished seeds and their settings")
    parser.add_argument("--steps", type=int, help="training steps of each run (default: 40, as in the config)")
    parser.add_argument("--show", type=Path, metavar="RUN", help="show one run folder and exit")
    parser.add_argument("--only-table", action="store_true", help="print table and figure without running anything")
    arguments = parser.parse_args(argv)
    if arguments.show:
        shown = [{"arm": JOINT, "seed": _seed(arguments.show), **measure(arguments.show)}]
        print(table(shown))
        draw(shown, arguments.show / "tags.png")
        print(f"figure: {arguments.show / 'tags.png'}")
        return
    results = arguments.results.absolute()
    arms = arguments.arms.split(",") if arguments.arms else list(TAGS.arms)
    if unknown := set(arms) - set(TAGS.arms):
        parser.error(f"unknown arms: {', '.join(sorted(unknown))}; see --list")
    done = {(line["arm"], line["seed"]) for line in current(TAGS, results)}
    if arguments.list:
        for name, arm in TAGS.arms.items():
            print(f"{name:12} seeds {sorted(seed for other, seed in done if other == name)}  {dict(arm.overrides)}")
        return
    if not arguments.only_table:
        folder = arguments.folder.absolute()
        steps = [f"magrpo.max_steps={arguments.steps}"] if arguments.steps else []
        for new in (folder, results):
            new.mkdir(parents=True, exist_ok=True)
        for seed in map(int, arguments.seeds.split(",")):
            for name in arms:
                if (name, seed) not in done:
                    run = train(TAGS, name, seed, folder, steps)
                    line: dict[str, Any] = {"arm": name, "seed": seed, "digest": TAGS.digest(name), **measure(run)}
                    with (results / "tags.jsonl").open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
                    first, last = line["evaluations"][0], line["evaluations"][-1]
                    words = f"{first['partners']:.2f} -> {last['partners']:.2f}"
                    print(f"{name}, seed {seed}: different words {words}; {line['seconds']} s", flush=True)
    lines = current(TAGS, results)
    print(table(lines))
    draw(lines, results / "tags.png")


def _seed(run: Path) -> int:
    return int(yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["seed"])


if __name__ == "__main__":
    main()
