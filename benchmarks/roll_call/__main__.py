"""Count the joint samples that credit needs as the number of agents grows, and write the page's tables and figure.

    python -m benchmarks.roll_call [--cells shared_8,difference_8] [--seeds 1,2] [--workers 2] [--list] [--only-table]
    python -m benchmarks.roll_call --again --cells shared_8,difference_8

Each cell is a way to give credit to 2, 4 or 8 agents. The command first chooses the learning rate of each cell from
three, on two seeds of their own, and then runs the seeds at the chosen rate. Runs are trainings in one process
(`benchmarks.in_process`), as many at a time as there are workers. All cells take about 1.7 hours on two idle
cores.

Results are added to docs/results/roll_call/roll-call.jsonl as one line per run. Runs with a line are skipped, so the
command can be repeated until all runs are done. Lines with other settings, tasks or base policies than the current ones
are ignored, and their runs are repeated. At the end the command writes the tables of
docs/results/credit_over_agents.md and draws docs/results/roll_call/roll-call.png; --results selects another folder and
leaves the page as it is.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from benchmarks.learning.__main__ import ROOT, current
from benchmarks.roll_call.arms import AGAIN, CELLS, FIRST, RATES, ROLL_CALL, Cell, Trial
from benchmarks.roll_call.one_run import run
from benchmarks.roll_call.report import best_rate, draw, tables, write_page

RESULTS = ROOT / "docs" / "results" / "roll_call"


def run_missing(wanted: Sequence[tuple[str, int]], results: Path, workers: int) -> None:
    """Run the arms and seeds without a line, and add their lines."""
    done = {(line["arm"], line["seed"]) for line in current(ROLL_CALL, results)}
    missing = [key for key in wanted if key not in done]
    started = time.monotonic()
    # A fork would copy the threads of torch.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = [pool.submit(run, arm, seed) for arm, seed in missing]
        for number, future in enumerate(as_completed(futures), 1):
            line = future.result()
            with (results / f"{ROLL_CALL.name}.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            minutes = (time.monotonic() - started) / 60
            print(
                f"{number} of {len(missing)}, {minutes:.1f} min: {line['arm']}, seed {line['seed']}: "
                f"{line['samples'] or 'more than all'} joint samples; {line['seconds']} s",
                flush=True,
            )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", help="cells to run, see --list (default: all)")
    parser.add_argument("--seeds", help="seeds to measure (default: all)")
    parser.add_argument("--again", action="store_true", help="choose the rate by four seeds, and measure eight others")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument(
        "--rate", type=float, choices=RATES, help="run the seeds at this rate instead of the chosen one"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of roll-call.jsonl and roll-call.png")
    parser.add_argument("--list", action="store_true", help="list the cells and their chosen rates")
    parser.add_argument("--only-table", action="store_true", help="write tables and figure without running anything")
    arguments = parser.parse_args(argv)
    results = arguments.results.absolute()
    trial = AGAIN if arguments.again else FIRST
    names = arguments.cells.split(",") if arguments.cells else list(CELLS)
    if unknown := set(names) - set(CELLS):
        parser.error(f"unknown cells: {', '.join(sorted(unknown))}; see --list")
    cells = [CELLS[name] for name in names]
    if not arguments.only_table and not arguments.list:
        results.mkdir(parents=True, exist_ok=True)
        seeds = list(map(int, arguments.seeds.split(","))) if arguments.seeds else trial.measured
        if arguments.rate is None:
            choices = [(cell.arm(rate), seed) for seed in trial.choice for cell in cells for rate in RATES]
            run_missing(choices, results, arguments.workers)
            wanted = _at_best_rate(cells, seeds, results, trial)
        else:
            wanted = [(cell.arm(arguments.rate), seed) for seed in seeds for cell in cells]
        run_missing(wanted, results, arguments.workers)
    lines = current(ROLL_CALL, results)
    if arguments.list:
        for cell in cells:
            print(f"{cell.name:24} rate {best_rate(lines, cell, trial) or 'not chosen'}")
        return
    print("\n\n".join(tables(lines).values()))
    draw(lines, results / f"{ROLL_CALL.name}.png")
    if results == RESULTS:
        write_page(lines)


def _at_best_rate(cells: Sequence[Cell], seeds: Sequence[int], results: Path, trial: Trial) -> list[tuple[str, int]]:
    lines = current(ROLL_CALL, results)
    wanted = []
    for seed in seeds:
        for cell in cells:
            rate = best_rate(lines, cell, trial)
            assert rate is not None, "the runs that choose a rate are done"
            wanted.append((cell.arm(rate), seed))
    return wanted


if __name__ == "__main__":
    main()
