"""Train two tiny policies by self-play in Kuhn poker and tic-tac-toe, and measure them exactly.

    python -m benchmarks.games [--games kuhn,tic-tac-toe] [--seeds 1,2,3] [--only-table]
    python -m benchmarks.games --games kuhn --run RUN

A run is a training with configs/toy_kuhn_poker.yaml or configs/toy_tic_tac_toe.yaml through the gateway, in one process
(`benchmarks.in_process`), followed by measurements without sampling:

- Kuhn poker: exploitability, the mean over both seats of the gain of a best response (nash_conv / 2, in units of the
  ante). A Nash equilibrium has 0, uniformly random play 0.458.
- Tic-tac-toe: probabilities to win, draw and lose against uniformly random moves, per seat, for sampled and for most
  likely moves. Uniformly random play wins 0.585 as first and 0.288 as second player.

Results are added to docs/results/games/games.jsonl as one line per run. Runs with a line are skipped; lines with
another config, program or base policy are ignored, and their runs are repeated. At the end the command prints the
tables of docs/results/games.md and draws docs/results/games/games.png; --results selects another folder. --run only
measures a finished run, for instance one of `marl-ray train`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import yaml

from benchmarks.games.exact import KINDS, MovePolicy, kuhn_measures, tic_tac_toe_measures
from benchmarks.learning.measures import read_lines
from benchmarks.markdown import markdown
from docs.examples import kuhn_poker, tic_tac_toe
from marl_ray.plugins.games import KUHN_BASE_PATH, TIC_TAC_TOE_BASE_PATH

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "games"
Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Game:
    """A game: its config, its program and its measurements."""

    config: Path
    program: Path
    base: Path
    measure: Callable[[MovePolicy, MovePolicy], dict[str, float]]

    def digest(self) -> str:
        """Return a digest of everything that determines the results, except the seed and the package's code."""
        settings = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        digest = hashlib.sha256(json.dumps(settings).encode())
        for file in (ROOT / settings["dataset"]["name"], self.program, self.base / "model.safetensors"):
            digest.update(file.read_bytes())
        return digest.hexdigest()[:8]

    def measure_run(self, run: Path) -> dict[str, float]:
        """Return the measurements of both agents' models after a run, or of a folder with models/."""
        first, second = (MovePolicy(run / "models" / f"agent_{number}") for number in (0, 1))
        return self.measure(first, second)


CONFIGS = ROOT / "configs"
GAMES = {
    "kuhn": Game(CONFIGS / "toy_kuhn_poker.yaml", Path(kuhn_poker.__file__), KUHN_BASE_PATH, kuhn_measures),
    "tic-tac-toe": Game(
        CONFIGS / "toy_tic_tac_toe.yaml", Path(tic_tac_toe.__file__), TIC_TAC_TOE_BASE_PATH, tic_tac_toe_measures
    ),
}
EXPLOITABILITY_TARGET = 0.05
WIN_TARGET = 0.95
UNIFORM_EXPLOITABILITY = 11 / 24
TACTICS = {"X": 0.896, "O": 0.700}
"""Wins of perfect tactics: complete a line, else block one, else any cell."""
ENDS = ("win", "draw", "loss", "illegal")


@cache  # the tables and the figure read it
def base_measures(name: str) -> dict[str, float]:
    """Return the measurements of a game's base policy, which has both seats."""
    base = MovePolicy(GAMES[name].base)
    return GAMES[name].measure(base, base)


def train(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return the line of a new run."""
    game = GAMES[name]
    digest = game.digest()
    run = folder / f"{name}_{seed}_{digest}"
    overrides = [f"seed={seed}", f"output.base_dir={folder}", f"output.run_name={run.name}"]
    command = [sys.executable, "-m", "benchmarks.in_process", "--config", str(game.config), "--override", *overrides]
    started = time.monotonic()
    with run.with_suffix(".log").open("w", encoding="utf-8") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, env=environment)
    if done.returncode:
        sys.exit(f"{name}, seed {seed} failed, see {log.name}")
    measured = {key: round(value, 4) for key, value in game.measure_run(run).items()}
    seconds = round(time.monotonic() - started)
    return {"game": name, "seed": seed, "digest": digest, "seconds": seconds, "measured": measured}


def current(name: str, results: Path) -> list[dict[str, Any]]:
    """Return the lines of a game whose config, program and base policy are current, by seed."""
    lines = read_lines(results / "games.jsonl")
    digest = GAMES[name].digest()
    own = [line for line in lines if line["game"] == name and line["digest"] == digest]
    return sorted(own, key=lambda line: int(line["seed"]))


def spread(values: Sequence[float]) -> str:
    """Return the mean, and the least and the largest value if there are several."""
    text = f"{fmean(values):.3f}"
    return text if len(values) == 1 else f"{text} ({min(values):.3f} to {max(values):.3f})"


def kuhn_table(lines: Sequence[Line]) -> str:
    """Return the table of exploitability: means over seeds, with their range."""
    head = ["policy", "runs", "exploitability", "at most 0.05 in", "gain of the first player", "illegal, at most"]
    rows = [head]
    groups = {"base policy": [base_measures("kuhn")], "trained": [line["measured"] for line in lines]}
    for title, group in groups.items():
        if not group:
            continue
        exploitabilities = [measured["exploitability"] for measured in group]
        reached = sum(value <= EXPLOITABILITY_TARGET for value in exploitabilities)
        gains = [measured["gain"] for measured in group]
        illegal = max(measured["illegal"] for measured in group)
        runs = "" if title == "base policy" else str(len(group))
        share = "" if title == "base policy" else f"{reached} of {len(group)}"
        rows.append([title, runs, spread(exploitabilities), share, spread(gains), f"{illegal:.3f}"])
    return markdown(rows)


def tic_tac_toe_table(lines: Sequence[Line]) -> str:
    """Return the table of ends of games against random moves: means over seeds, with their range."""
    head = ["seat", "moves", "policy", "runs", *ENDS]
    rows = [head]
    base = base_measures("tic-tac-toe")
    for seat in tic_tac_toe.SEATS:
        for kind in KINDS:
            key = f"{seat} {kind}"
            rows.append([seat, kind, "base", "", *(f"{base[f'{key} {end}']:.3f}" for end in ENDS)])
            if lines:
                cells = [spread([line["measured"][f"{key} {end}"] for line in lines]) for end in ENDS]
                rows.append([seat, kind, "trained", str(len(lines)), *cells])
    return markdown(rows)


TABLES = {"kuhn": kuhn_table, "tic-tac-toe": tic_tac_toe_table}


def draw(kuhn: Sequence[Line], board_lines: Sequence[Line], path: Path) -> None:
    """Draw a mark per run: exploitability in Kuhn poker, and games won in tic-tac-toe with most likely moves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.4, 4.4), layout="constrained")
    poker, boards = figure.subplots(1, 2)
    base = base_measures("kuhn")["exploitability"]
    for value, label, colour in (
        (UNIFORM_EXPLOITABILITY, "random moves", "grey"),
        (base, "base policy", "black"),
        (EXPLOITABILITY_TARGET, "target: at most", "C2"),
    ):
        poker.axhline(value, color=colour, linestyle=":")
        poker.text(8.7, value, f"{label} {value:.2f}", va="center", color=colour)
    poker.plot([line["seed"] for line in kuhn], [line["measured"]["exploitability"] for line in kuhn], "o", ms=8)
    poker.set_title("Kuhn poker: exploitability", loc="left", fontsize=11)
    poker.set_ylim(0, 0.5)
    tic_tac_toe_base = base_measures("tic-tac-toe")
    for number, seat in enumerate(tic_tac_toe.SEATS):
        colour = f"C{number}"
        wins = [line["measured"][f"{seat} most likely win"] for line in board_lines]
        places = [line["seed"] + (number - 0.5) * 0.3 for line in board_lines]
        boards.plot(places, wins, "o", ms=8, color=colour, label=f"{seat}, trained")
        boards.axhline(TACTICS[seat], color=colour, linestyle="--", label=f"{seat}, perfect tactics")
        boards.axhline(tic_tac_toe_base[f"{seat} most likely win"], color=colour, linestyle=":", label=f"{seat}, base")
    boards.axhline(WIN_TARGET, color="C2", linewidth=1, label="target")
    boards.set_title("Tic-tac-toe: games won, most likely moves", loc="left", fontsize=11)
    boards.set_ylim(0.5, 1.0)
    boards.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for axis in (poker, boards):
        axis.set_xlabel("seed")
        axis.set_xticks(range(1, 9))
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", default=",".join(GAMES), help="games to play, separated by commas (default: all)")
    parser.add_argument("--seeds", default="1,2,3,4,5,6,7,8")
    parser.add_argument("--run", type=Path, help="only measure this finished run")
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of games.jsonl and games.png")
    parser.add_argument("--only-table", action="store_true", help="print the tables without running anything")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)  # the models are tiny, and threads wait for each other on a busy machine
    names = arguments.games.split(",")
    if unknown := set(names) - set(GAMES):
        parser.error(f"unknown games: {', '.join(sorted(unknown))}; known: {', '.join(GAMES)}")
    if arguments.run is not None:
        if len(names) != 1:
            parser.error("--run needs the game of the run: --games kuhn or --games tic-tac-toe")
        for key, value in GAMES[names[0]].measure_run(arguments.run).items():
            print(f"{key}: {value:.4f}")
        return
    results = arguments.results.absolute()
    if not arguments.only_table:
        folder = arguments.folder.absolute()
        for directory in (results, folder):
            directory.mkdir(parents=True, exist_ok=True)
        for name in names:
            run_missing(name, list(map(int, arguments.seeds.split(","))), folder, results)
    for name in names:
        print(TABLES[name](current(name, results)), end="\n\n")
    kuhn, boards = (current(name, results) for name in GAMES)
    if kuhn and boards:
        draw(kuhn, boards, results / "games.png")


def run_missing(name: str, seeds: Sequence[int], folder: Path, results: Path) -> None:
    """Run the seeds without a line, and add their lines."""
    done = {line["seed"] for line in current(name, results)}
    for seed in seeds:
        if seed in done:
            continue
        line = train(name, seed, folder)
        with (results / "games.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{name}, seed {seed}: {line['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
