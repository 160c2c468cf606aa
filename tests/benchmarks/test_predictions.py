"""Predictions stand in the history before their rows.

A prediction is words of a page in a commit. Its rows first exist in a later commit, of which that one is an ancestor.
A new study adds a line; `git log --reverse -S'WORDS' -- docs` finds the first commit of words.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = "docs/results"


@dataclass(frozen=True, slots=True)
class Prediction:
    """Words of a prediction and the commit that has them; the text of rows in a file, and the commit with the first
    ones."""

    words: str
    commit: str
    file: str
    row: str
    row_commit: str


PREDICTIONS = (
    Prediction(
        "are best at the smallest rate and pass at least 5 points less",
        "ae78bd0cfa",
        "learning/toy-estimators.jsonl",
        '"magrpo_0.00017"',
        "4a467f88ee",
    ),
    Prediction(
        "differ by less than 0.15 and 6 points", "ea1b52305d", "learning/toy-gateway.jsonl", '"service"', "1852de819f"
    ),
    Prediction("as fast as with both learning", "476ff987f3", "tags/tags.jsonl", '"arm": "shared"', "8db2c108c8"),
    Prediction(
        "at least 0.15 more than pairs",
        "1ac95d1fce",
        "evaluations.jsonl",
        "frozen partners with two turns",
        "d6853ff8d2",
    ),
    Prediction(
        "at least 8 points more pass at the end",
        "3fb9bd88c3",
        "learning/toy-hard.jsonl",
        '"stop_visible"',
        "c809eff4d7",
    ),
    Prediction(
        "madpo passes between 12 points", "5cb9e290f8", "learning/toy-hard.jsonl", '"one_turn_madpo"', "2936b0529f"
    ),
    Prediction(
        "learning in turns 2 to 10", "a10c20ca8a", "learning/toy-hard.jsonl", '"one_turn_in_turns"', "17297254ac"
    ),
    Prediction("learning in turns 2 to 10", "a10c20ca8a", "learning/toy-hard.jsonl", '"one_turn_maac"', "17297254ac"),
    Prediction("learning in turns 2 to 10", "a10c20ca8a", "learning/toy-hard.jsonl", '"one_turn_stale"', "e7eecd637f"),
    Prediction(
        "at least 0.60 of the cells right in turn 3", "7a835f386f", "learning/grid.jsonl", '"joint"', "8eb2399d49"
    ),
    Prediction(
        "above 1.6 in turn 2 with every seed", "7a835f386f", "learning/grid-private.jsonl", '"joint"', "8eb2399d49"
    ),
    Prediction(
        "negative with at least six of eight seeds",
        "b254d94a",
        "learning/toy-second-turn.jsonl",
        '"arm": "joint", "seed": 8',
        "410bf6f77e",
    ),
    Prediction(
        "-0.04, negative with at least six seeds",
        "b254d94a",
        "learning/toy-second-turn.jsonl",
        '"arm": "program", "seed": 8',
        "d5c72bb1",
    ),
    Prediction(
        "+1.0 words, positive with every seed",
        "f08905d31e",
        "tags/tags-clock.jsonl",
        '"arm": "joint", "seed": 8',
        "410bf6f77e",
    ),
    Prediction("5.2 words", "f08905d3", "tags/tags-clock.jsonl", '"arm": "shared"', "b032079e"),
    Prediction("4.2 | 6.3 | 7.2 | 7.5", "f08905d3", "tags/tags-clock.jsonl", '"arm": "joint_28"', "4c3592cb"),
    Prediction(
        "the planner's removal is noise",
        "b7decf14",
        "learning/plan-path-credit.jsonl",
        '"arm": "joint"',
        "63d313fb",
    ),
    Prediction(
        "the reward is between 0.28 and 0.38", "a856e4d9", "learning/grid-telling.jsonl", '"tenth_plain"', "9f76dc48"
    ),
    Prediction(
        "at least 6 of 8 seeds learn with each", "a856e4d9", "learning/grid-telling.jsonl", '"tenth_open"', "7328f7d5"
    ),
    Prediction(
        "at most 0.05 with at least six of eight seeds", "385a4463", "games/games.jsonl", '"game": "kuhn"', "362479a7"
    ),
    Prediction(
        "the corrected p is below 0.05 if none does",
        "c21abca9",
        "learning/grid-falls.jsonl",
        '"whitened"',
        "163743a9",
    ),
    Prediction(
        "At least 6 of 8 pairs learn, and those end above",
        "c21abca9",
        "learning/grid-telling.jsonl",
        '"throughout_pair"',
        "e1aca1bd",
    ),
    Prediction(
        "-0.12 to +0.03, negative with at least six seeds",
        "eb1e0b3d",
        "learning/plan-path-boxes.jsonl",
        '"arm": "joint"',
        "358da0b8",
    ),
    Prediction("the agent has both cores", "16fdcf40", "tags/critical_path.jsonl", '"way": "pair"', "73c5eced"),
    Prediction(
        "eight it needs 1.7 to 2.7 times as many",
        "d611edaa",
        "roll_call/roll-call.jsonl",
        '"difference_8@0.0008", "seed": 18',
        "93066ff0",
    ),
    Prediction(
        "needs 1.1 to 1.7 times as many joint samples",
        "69eac72d",
        "roll_call/roll-call.jsonl",
        '"difference_2@0.0008", "seed": 18',
        "c7a3fdd7ac",
    ),
    Prediction(
        "at least 0.15 above the majority",
        "57821a8e",
        "learning/toy-math.jsonl",
        '"arm": "only_verifier", "seed": 8',
        "f852ed7efe",
    ),
    Prediction("all eight end above 1.6", "d28cf8ace1", "learning/grid-private.jsonl", '"slow"', "c05d24e93e"),
    Prediction(
        "all eight end above 1.6", "d28cf8ace1", "learning/grid-private.jsonl", '"joint", "seed": 4', "c05d24e93e"
    ),
    Prediction("within 8 points (85 %", "64692a1ad8", "learning/toy-revising.jsonl", '"113b9492"', "1ac95d1fce"),
    Prediction("different words rise from about 1.5", "476ff987f3", "tags/tags.jsonl", '"joint"', "2fa8dae529"),
    Prediction("to between 2.0 and 2.8", "476ff987f3", "tags/tags.jsonl", '"only_first"', "2857301dbe"),
    Prediction("the most different words of all arms", "476ff987f3", "tags/tags.jsonl", '"single_total"', "e297f3c6f3"),
    Prediction("between 3.0 and 4.0", "476ff987f3", "tags/tags.jsonl", '"single_path"', "28f26163a8"),
    Prediction("All further runs have 20 steps", "31ca3a2c5d", "tags/tags.jsonl", '"joint", "seed": 2', "093e6def2d"),
    Prediction("at least 1.2 nats per token", "65c5a15ba3", "tags/tags.jsonl", '"entropy"', "fa3d90bbca"),
    Prediction("negative in at least 7 of 8", "c386fbef", "learning/relay.jsonl", '"calls"', "25e2d8b2"),
    Prediction("positive in at least 7 of 8", "c386fbef", "learning/loud-relay.jsonl", '"second_calls"', "25e2d8b2"),
    Prediction("2.5 to 5, above 1 with every seed", "cad76ae6", "roll_call/roll-call.jsonl", '"shared_8@', "d6939687"),
    Prediction("between 2 and 6 of 8 pairs learn", "c412f8e5", "learning/grid-telling.jsonl", '"joint"', "7ac5b073"),
    Prediction(
        "all pairs learn, with separate policies", "c412f8e5", "learning/grid-telling.jsonl", '"tenth_pair"', "7ac5b073"
    ),
    Prediction("1 to 5 of the 32 fall", "4ef4ffbe", "learning/grid-falls.jsonl", '"seed": 9', "42ab3c34"),
    Prediction("2 to 4 of 8 fall", "c412f8e5", "learning/grid-falls.jsonl", '"joint"', "8c3b6910"),
    Prediction(
        "every seed of two policies scores at least 2.6", "5a0c7568", "learning/hanabi.jsonl", '"joint"', "97ab4450"
    ),
    Prediction("solves 0.35 to 0.65 of the rooms", "613b770e", "learning/plan-path.jsonl", '"joint"', "27f449e3"),
    Prediction("the one with a tenth", "6b41484d4d", "tags/tags.jsonl", '"entropy_small"', "bace2324bf"),
)
LATE = {
    "who_learns.md": "committed with its first three of forty runs",
    "games.md": "committed with the first results",
    "../reference/gateway.md": "committed with the measurement",
}
"""Pages with a prediction that no commit has before the results, and the words that say so."""


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in the repository and return the ended process."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def has_history() -> bool:
    """Return whether this is a repository with all its commits."""
    try:
        return git("rev-parse", "--is-shallow-repository").stdout.strip() == "false"
    except FileNotFoundError:  # no git
        return False


@pytest.mark.skipif(not has_history(), reason="a copy of the files without their history")
@pytest.mark.parametrize("one", PREDICTIONS, ids=lambda one: f"{one.file}: {one.row}")
def test_a_prediction_is_committed_before_its_rows(one: Prediction) -> None:
    pages = git("grep", "-q", "--fixed-strings", "-e", one.words, one.commit, "--", "docs")
    assert pages.returncode == 0, "the commit has these words"
    assert has_row(one.row_commit, one), "the later commit has rows"
    assert not has_row(one.commit, one), "the earlier one has none"
    assert one.commit != one.row_commit
    assert git("merge-base", "--is-ancestor", one.commit, one.row_commit).returncode == 0
    for parent in git("rev-parse", f"{one.row_commit}^@").stdout.split():
        assert not has_row(parent, one), "the rows are the first ones"


def has_row(commit: str, one: Prediction) -> bool:
    """Return whether the file of a commit has the rows of a prediction."""
    return git("grep", "-q", "--fixed-strings", one.row, commit, "--", f"{ROWS}/{one.file}").returncode == 0


@pytest.mark.parametrize("page", LATE)
def test_a_page_says_that_a_prediction_came_with_its_results(page: str) -> None:
    text = (ROOT / ROWS / page).read_text(encoding="utf-8")
    assert LATE[page] in " ".join(text.split())
