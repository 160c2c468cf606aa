"""Compare the estimators' gradients with exact gradients of enumerable team games, and write docs/results/credit.md.

    python -m benchmarks.credit [--groups 100000] [--seed 0] [--only-print]

Exits with 1 if a variant that should be unbiased is further than three standard errors from its expectation. Needs no
model and no Ray; 100,000 groups per variant and game take about a minute on one core.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.credit.audit import CHUNK, GROUP, VARIANTS, Audit, audit
from benchmarks.credit.games import GAMES, MatrixGame
from benchmarks.credit.last_turn import audit_turns, turn_rows
from benchmarks.credit.over_agents import ROLL_CALLS, by_variant, draw, noise_rows
from benchmarks.credit.programs import METHODS, PROGRAMS, ProgramAudit, audit_program, program_rows
from benchmarks.markdown import markdown

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "results" / "credit.md"
FIGURE = PAGE.parent / "roll_call" / "noise.png"
BEGIN, END = "<!-- made by python -m benchmarks.credit -->", "<!-- end -->"
LIMIT = 3.0
"""Allowed distance from the expectation, in standard errors."""


def value_rows() -> Iterator[list[str]]:
    """Yield the exact values of the games: the expected reward, and per agent the marginal and the Shapley value."""
    yield ["game", "agents", "expected reward", "marginal of each agent", "Shapley value of each agent"]
    for game in GAMES:
        if isinstance(game, MatrixGame) and game.second is None:
            agents = range(game.agents)
            marginals = ", ".join(f"{game.marginal(agent):.2f}" for agent in agents)
            shares = ", ".join(f"{game.shapley(agent):.2f}" for agent in agents)
            yield [game.name, str(game.agents), f"{game.coalition_value(list(agents)):.2f}", marginals, shares]
        else:
            value = game.coalition_value([0, 1]) if isinstance(game, MatrixGame) else game.value()
            yield [game.name, "2", f"{value:.2f}", "", ""]


def audit_rows(audits: Sequence[Audit]) -> Iterator[list[str]]:
    """Yield the measures of one game's variants."""
    head = ["estimator", "scale", "distance in s.e.", "cosine", "noise", "noise x tokens", "noise x executions"]
    yield [*head, "fidelity", "second moment", "from partners"]
    for one in audits:
        yield [
            one.variant,
            "biased" if one.scale is None else f"{one.scale:g}",
            "" if one.scale is None else f"{one.standard_errors:.1f}",
            f"{one.cosine:.3f}",
            f"{one.noise:.1f}",
            f"{one.noise * one.tokens:.0f}",
            f"{one.noise * one.executions:.0f}",
            f"{one.fidelity:.2f}",
            f"{one.second_moment:.2f}",
            f"{one.partners:.2f}",
        ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=100_000, help="groups per variant and game")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-print", action="store_true", help="leave the page as it is")
    options = parser.parse_args(argv)
    parts, failed = ["### Games", "", markdown(value_rows())], []
    wrong: list[ProgramAudit] = []
    for game in GAMES:
        found = [audit(game, variant, options.groups, options.seed) for variant in VARIANTS if variant.applies_to(game)]
        failed += [one for one in found if one.scale is not None and one.standard_errors > LIMIT]
        parts += ["", f"### {game.name.capitalize()}", "", markdown(audit_rows(found))]
        print("\n".join(parts[-3:]), flush=True)
    turns = audit_turns(options.groups, options.seed)
    parts += ["", "### Two turns, each first answer with one continuation", "", markdown(turn_rows(turns))]
    print(parts[-1], flush=True)
    for program in PROGRAMS:
        tasks = max(options.groups // 2, 1)
        measured = [audit_program(program, method, tasks, options.seed) for method in METHODS]
        wrong += [one for one in measured if one.standard_errors > LIMIT]
        parts += ["", f"### {program.name.capitalize()}", "", markdown(program_rows(measured))]
        print("\n".join(parts[-3:]), flush=True)
    of_calls = []
    for call in ROLL_CALLS:
        of_calls.append([audit(call, v, options.groups, options.seed) for v in VARIANTS if v.applies_to(call)])
        failed += [one for one in of_calls[-1] if one.scale is not None and one.standard_errors > LIMIT]
    over_agents = by_variant(of_calls)
    parts += ["", "### Roll call, by the number of agents", "", markdown(noise_rows(over_agents))]
    print("\n".join(parts[-3:]), flush=True)
    groups = -(-options.groups // CHUNK) * CHUNK
    parts += [
        "",
        f"{groups:,} groups of {GROUP} per agent, estimator and game, and half as many tasks per program; "
        f"seed {options.seed}.",
    ]
    if not options.only_print:
        FIGURE.parent.mkdir(exist_ok=True)
        draw(over_agents, FIGURE)
        text = PAGE.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        table = "\n".join(parts)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
    for one in failed:
        print(f"{one.variant} on {one.game}: {one.standard_errors:.1f} standard errors from its expectation")
    failed_turns = [one for one in turns if one.scale is not None and one.standard_errors > LIMIT]
    for one_turn in failed_turns:
        print(f"{one_turn.variant} in turn {one_turn.turn}: {one_turn.standard_errors:.1f} standard errors")
    for program_audit in wrong:
        distance = f"{program_audit.standard_errors:.1f} standard errors"
        print(f"{program_audit.method.name} on {program_audit.program}: {distance} from its expectation")
    return 1 if failed or failed_turns or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
