"""Small Hanabi: the rules, the exact optimum by two programs, a player without conventions, and players that read
nothing."""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from fractions import Fraction

import pytest

from benchmarks.hanabi import OneCardHanabi, best_constants, constants_reward
from docs.examples import hanabi
from docs.examples.hanabi import CARDS, DECKS, Hanabi
from marl_ray.data.prompts import PROMPTS
from marl_ray.testing import check_dataset
from tools.toy.make_hanabi import careful_move


def played(deck: str, *moves: str) -> Hanabi:
    game = Hanabi(deck)
    for move in moves:
        assert move in game.legal_moves()
        assert not game.ended
        game.move(move)
    return game


def test_plays_discards_and_hints() -> None:
    game = played("a1 b2 a2 b1 b3 a3", "colour", "discard")
    assert (game.hints, game.discarded, game.known, game.cards) == (2, ["b2"], ["??", "??"], ["a1", "a2"])
    game = played("a1 b2 a2 b1 b3 a3", "rank", "colour", "play")
    assert (game.hints, game.known, game.cards, game.score) == (0, ["??", "?2"], ["a2", "b2"], 1)
    assert game.legal_moves() == ("play", "discard")
    assert "Partner: a2, told ??. You: told ?2. Last move: play." in game.show()
    game.move("play")
    assert (game.ended, game.lost, game.score) == (True, True, 1)


def test_a_game_ends_one_move_of_each_after_the_last_draw() -> None:
    game = played("a1 b1 a2 b2 a3 b3", *["play"] * 4)
    assert (game.deck, game.ended) == ([], False)
    game.move("play")
    game.move("play")
    assert (game.ended, game.score) == (True, 6)
    game = played("a1 b1 a2 b2 a3 b3", *["play"] * 4, "colour", "play")
    assert (game.ended, game.score) == (True, 5)


def test_all_decks_are_tasks() -> None:
    train, held_out = DECKS.splits["train"], DECKS.splits["eval"]
    assert (len(train), len(held_out)) == (617, 103)
    assert len({row["prompt"] for row in train + held_out}) == 720
    assert {row["prompt"][:2] for row in held_out} == set(CARDS)
    check_dataset(PROMPTS, train + held_out)


def best_total(games: list[Hanabi], known: dict[str, int]) -> int:
    """Return the largest sum of the scores of games that both players take for possible, of all prescriptions: a move
    for each card of the partner. It uses the rules of the game only."""
    if games[0].ended:
        return sum(game.score for game in games)
    key = repr(sorted(str(vars(game)) for game in games))
    if key in known:
        return known[key]
    mover = games[0].mover
    seen = sorted({game.cards[1 - mover] for game in games})
    totals = []
    for moves in itertools.product(games[0].legal_moves(), repeat=len(seen)):
        prescription = dict(zip(seen, moves, strict=True))
        public = defaultdict(list)
        for game in games:
            after = copy.deepcopy(game)
            move = prescription[game.cards[1 - mover]]
            after.move(move)
            put_down = game.cards[mover] if move in ("play", "discard") else ""
            public[move, put_down, tuple(after.known)].append(after)
        totals.append(sum(best_total(group, known) for group in public.values()))
    known[key] = max(totals)
    return known[key]


@pytest.mark.parametrize(("hints", "optimum"), [(0, Fraction(9, 4)), (1, Fraction(17, 6))])
def test_the_optimum_of_two_ranks_is_that_of_all_prescriptions_one_by_one(
    monkeypatch: pytest.MonkeyPatch, hints: int, optimum: Fraction
) -> None:
    cards = ("a1", "a2", "b1", "b2")
    monkeypatch.setattr(hanabi, "CARDS", cards)
    monkeypatch.setattr(hanabi, "HINTS", hints)
    games = [Hanabi(" ".join(deck)) for deck in itertools.permutations(cards)]
    assert Fraction(best_total(games, {}), len(games)) == OneCardHanabi(2, hints).optimum() == optimum


def test_a_player_without_conventions_is_below_the_optimum() -> None:
    scores = []
    for rows in DECKS.splits.values():
        for row in rows:
            game = Hanabi(row["prompt"])
            while not game.ended:
                game.move(careful_move(game))
            assert not game.lost
            scores.append(game.score)
    assert Fraction(sum(scores), len(scores)) == pytest.approx(3.1194, abs=1e-4)
    assert OneCardHanabi(1, 0).optimum() == 2


def best_fixed_total(games: list[Hanabi]) -> int:
    """Return the largest sum of the scores of games in which the same sequence of moves is made, of all sequences."""
    running = [game for game in games if not game.ended]
    total = sum(game.score for game in games if game.ended)
    if not running:
        return total
    totals = []
    for move in running[0].legal_moves():  # the same in all games: hints do not depend on the deck
        moved = copy.deepcopy(running)
        for game in moved:
            game.move(move)
        totals.append(best_fixed_total(moved))
    return total + max(totals)


def test_no_fixed_sequence_of_moves_earns_more_than_the_best_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = ("a1", "a2", "b1", "b2")
    monkeypatch.setattr(hanabi, "CARDS", cards)
    monkeypatch.setattr(hanabi, "HINTS", 1)
    games = [Hanabi(" ".join(deck)) for deck in itertools.permutations(cards)]
    assert best_constants() == (Fraction(best_fixed_total(games), len(games)), "play", "play")


def test_constants_earn_a_tenth_of_the_cards() -> None:
    reward, *answers = best_constants()
    assert answers == ["play", "play"]
    # The number of decks whose first k cards can be played in this order, for k from 1 to 6. Each gives one more card.
    decks = [2 * 120, 4 * 24, 8 * 6, 14 * 2, 20, 20]
    assert reward == Fraction(sum(decks), 720) == Fraction(113, 180)
    # Two hints, then an illegal one.
    assert constants_reward("colour", "rank") == hanabi.ILLEGAL


def test_the_best_pair_without_hints_earns_less_than_half_of_the_optimum() -> None:
    assert OneCardHanabi(3, 0).optimum() == Fraction(289, 180)
