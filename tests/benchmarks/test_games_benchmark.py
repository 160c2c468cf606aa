"""The measurements of benchmarks/games/exact.py, from known strategies and from the bundled base policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.games.__main__ import RESULTS, TABLES, current
from benchmarks.games.exact import (
    MovePolicy,
    against_random,
    board_moves,
    boards_of,
    exploitability,
    kuhn_value,
    strategy_of,
)
from docs.examples import kuhn_poker, tic_tac_toe
from marl_ray.plugins.games import KUHN_BASE_PATH, TIC_TAC_TOE_BASE_PATH

PLACES = [(card, history) for card in kuhn_poker.CARDS for history in kuhn_poker.HISTORIES]


class RandomPolicy:
    """Uniformly random legal moves."""

    def probabilities(self, prompts, moves):  # type: ignore[no-untyped-def]
        import torch

        cells = [prompt.partition("Board:")[2].partition(". You")[0].replace("/", " ").split() for prompt in prompts]
        free = torch.tensor([[float(cell == "-") for cell in board] for board in cells], dtype=torch.float64)
        return free / free.sum(-1, keepdim=True)


def test_an_equilibrium_of_kuhn_poker_cannot_be_exploited() -> None:
    """Kuhn (1950) gives a family of equilibria. The first player bluffs with probability 0.2 here."""
    bluff = 0.2
    bets = {
        ("J", ()): bluff,
        ("Q", ()): 0.0,
        ("K", ()): 3 * bluff,
        ("J", ("pass", "bet")): 0.0,
        ("Q", ("pass", "bet")): bluff + 1 / 3,
        ("K", ("pass", "bet")): 1.0,
        ("J", ("pass",)): 1 / 3,
        ("Q", ("pass",)): 0.0,
        ("K", ("pass",)): 1.0,
        ("J", ("bet",)): 0.0,
        ("Q", ("bet",)): 1 / 3,
        ("K", ("bet",)): 1.0,
    }
    assert exploitability(bets, bets) == pytest.approx(0, abs=1e-12)
    assert kuhn_value(bets, bets) == pytest.approx(-1 / 18)
    even = dict.fromkeys(PLACES, 0.5)
    assert exploitability(even, even) == pytest.approx(0.4583, abs=1e-4)


def test_random_play_of_tic_tac_toe_has_the_known_chances() -> None:
    assert [len(boards_of(seat)) for seat in tic_tac_toe.SEATS] == [2423, 2097]
    moves = {seat: board_moves(RandomPolicy(), seat) for seat in tic_tac_toe.SEATS}  # type: ignore[arg-type]
    found = against_random(moves["X"], "X")
    assert found["win"] == pytest.approx(0.5849, abs=1e-4)
    assert found["draw"] == pytest.approx(0.1270, abs=1e-4)
    assert against_random(moves["O"], "O")["win"] == pytest.approx(found["loss"])


@pytest.mark.parametrize("game", TABLES)
def test_the_page_has_the_tables_of_the_rows(game: str) -> None:
    lines = current(game, RESULTS)
    assert [line["seed"] for line in lines] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert TABLES[game](lines) in (RESULTS.parent / "games.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("path", [KUHN_BASE_PATH, TIC_TAC_TOE_BASE_PATH], ids=["kuhn", "tic-tac-toe"])
def test_the_base_policies_know_the_rules_and_play_badly(path: Path) -> None:
    base = MovePolicy(path)
    first, illegal = strategy_of(base, "first")
    assert illegal < 0.02
    assert all(0.1 < bet < 0.9 for bet in first.values())
    assert exploitability(first, strategy_of(base, "second")[0]) > 0.2
    assert against_random(board_moves(base, "X"), "X")["win"] < 0.7
