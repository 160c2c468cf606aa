"""The exact optimum of small Hanabi with one card per player, and the rewards of cheaper pairs of policies:
`python -m benchmarks.hanabi`.

No pair of policies has a larger expected score, whatever the players agreed on before the game. The program solves
the public-belief game (Nayyar, Mahajan and Teneketzis, 2013, "Decentralized stochastic control with partial history
sharing"). A player's only private knowledge is the partner's card, since every card becomes public when it is put down.
A player therefore chooses a prescription, a move for each card that the partner may hold. The public belief is a
distribution over both cards, and follows from prescription and move.

A prescription divides the partner's possible cards between the moves. The value of a division is the sum over the moves
of a value that depends only on the cards of that move, so the best division is found set by set, not one by one.

Cheaper pairs are the best one that never gives a hint, which is the optimum of a game with no hints, and the best pair
of constant answers, which reads nothing.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import gcd

from docs.examples import hanabi

NO_CARD = -1
"""The card of a player who could not draw."""
Weights = Mapping[tuple[int, int], int]
"""Weight of each pair of cards: of the player whose turn it is, and of the partner."""
Belief = tuple[tuple[tuple[int, int], int], ...]


@dataclass(frozen=True, slots=True)
class PublicState:
    """Everything that both players know. A card is a number: colour x ranks + rank."""

    played: tuple[int, int]
    hints: int
    unseen: tuple[int, ...]
    """Number of each card in hands and deck."""
    belief: Belief
    moves_left: int | None = None


class OneCardHanabi:
    """Values of a game with two colours, one copy of each card, and one life."""

    def __init__(self, ranks: int, hints: int) -> None:
        self.ranks = ranks
        self.hints = hints
        self.value = lru_cache(maxsize=None)(self._value)

    def optimum(self) -> Fraction:
        """Return the largest expected score of all pairs of policies."""
        cards = range(2 * self.ranks)
        pairs = {(own, other): 1 for own in cards for other in cards if own != other}
        return self._symmetric_value(PublicState((0, 0), self.hints, (1,) * len(cards), _belief(pairs)))

    def _symmetric_value(self, state: PublicState) -> Fraction:
        """Return the value of a state, or of the state with exchanged colours, which is the same."""
        if state.moves_left == 0:
            return Fraction(0)
        needed = []
        for colour, count in enumerate(state.played):
            if count < self.ranks:
                needed.append(state.unseen[colour * self.ranks + count])
        if not any(needed):  # no card can be played any more
            return Fraction(0)
        exchanged: dict[tuple[int, int], int] = {}
        for (own, other), weight in state.belief:
            exchanged[self._exchange(own), self._exchange(other)] = weight
        unseen = state.unseen[self.ranks :] + state.unseen[: self.ranks]
        twin = replace(state, played=state.played[::-1], unseen=unseen, belief=_belief(exchanged))
        return self.value(min(state, twin, key=lambda one: (one.played, one.unseen, one.belief)))

    def _exchange(self, card: int) -> int:
        if card == NO_CARD:
            return NO_CARD
        return (card + self.ranks) % (2 * self.ranks)

    def _value(self, state: PublicState) -> Fraction:
        """Return the largest expected number of further cards."""
        partners = sorted({other for (_, other), _ in state.belief})
        moves = [self._put_down_value, self._discard_value]
        if state.hints:
            moves += [self._colour_value, self._rank_value]
        subsets = range(1 << len(partners))
        best = [Fraction(0)] + [Fraction(-1)] * (len(subsets) - 1)  # with no move yet, only for no card
        for move_value in moves:
            values = []
            for subset in subsets:
                cards = {card for number, card in enumerate(partners) if subset >> number & 1}
                values.append(move_value(state, {pair: w for pair, w in state.belief if pair[1] in cards}))
            extended = list(best)
            for subset in subsets:
                part = subset
                while part:  # all subsets of a subset, by a trick of binary numbers
                    if best[subset ^ part] >= 0:
                        extended[subset] = max(extended[subset], values[part] + best[subset ^ part])
                    part = (part - 1) & subset
            best = extended
        return best[-1] / sum(weight for _, weight in state.belief)

    def _colour_value(self, state: PublicState, pairs: Weights) -> Fraction:
        return self._hint_value(state, pairs, lambda card: card // self.ranks)

    def _rank_value(self, state: PublicState, pairs: Weights) -> Fraction:
        return self._hint_value(state, pairs, lambda card: card % self.ranks)

    def _hint_value(self, state: PublicState, pairs: Weights, told: Callable[[int], int]) -> Fraction:
        """Return the weighted value of a hint for these pairs, by the part of the partner's card that is told."""
        by_part: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
        for (own, other), weight in pairs.items():
            by_part[told(other)][other, own] = weight
        value = Fraction(0)
        for after in by_part.values():
            following = replace(state, hints=state.hints - 1, belief=_belief(after), moves_left=_less(state))
            value += sum(after.values()) * self._symmetric_value(following)
        return value

    def _put_down_value(self, state: PublicState, pairs: Weights) -> Fraction:
        return self._own_card_value(state, pairs, is_play=True)

    def _discard_value(self, state: PublicState, pairs: Weights) -> Fraction:
        return self._own_card_value(state, pairs, is_play=False)

    def _own_card_value(self, state: PublicState, pairs: Weights, is_play: bool) -> Fraction:
        """Return the weighted value of putting down the own card for these pairs, by the card that it is."""
        by_card: dict[int, dict[int, int]] = defaultdict(dict)
        for (own, other), weight in pairs.items():
            by_card[own][other] = weight
        value = Fraction(0)
        for card, partners in by_card.items():
            gain = 0
            following = replace(state, hints=min(self.hints, state.hints + 1))  # of a discard
            if is_play:
                colour, rank = divmod(card, self.ranks)
                if state.played[colour] != rank:
                    continue  # the game ends
                gain = 1
                first, second = state.played
                following = replace(state, played=(first + (colour == 0), second + (colour == 1)))
            unseen = list(state.unseen)
            unseen[card] -= 1
            following = self._drawn(replace(following, unseen=tuple(unseen)), partners)
            value += sum(partners.values()) * (gain + self._symmetric_value(following))
        return value

    def _drawn(self, state: PublicState, partners: Mapping[int, int]) -> PublicState:
        """Return the state after a draw. `partners` are the weights of the partner's cards, who moves next."""
        deck = sum(state.unseen) - 1  # all but the partner's card
        if state.moves_left is not None or deck == 0:
            pairs = {(other, NO_CARD): weight for other, weight in partners.items()}
            return replace(state, belief=_belief(pairs), moves_left=_less(state))
        pairs = {}
        for other, weight in partners.items():
            for card, count in enumerate(state.unseen):
                if card != other and count:
                    pairs[other, card] = weight
        return replace(state, belief=_belief(pairs), moves_left=2 if deck == 1 else None)


def _less(state: PublicState) -> int | None:
    if state.moves_left is None:
        return None
    return state.moves_left - 1


def _belief(pairs: Weights) -> Belief:
    """Return a belief with the smallest whole weights, so that equal beliefs are equal."""
    divisor = gcd(*pairs.values())
    return tuple(sorted((pair, weight // divisor) for pair, weight in pairs.items()))


def constants_reward(first: str, second: str) -> Fraction:
    """Return the mean reward over all decks of `docs/examples/hanabi.py` of two players that always give one answer."""
    total = Fraction(0)
    decks = 0
    for deck in itertools.permutations(hanabi.CARDS):
        decks += 1
        game = hanabi.Hanabi(" ".join(deck))
        while not game.ended:
            move = (first, second)[game.mover]
            if move not in game.legal_moves():
                total += Fraction(hanabi.ILLEGAL)
                break
            game.move(move)
        total += game.score
    return total / decks


def best_constants() -> tuple[Fraction, str, str]:
    """Return the largest reward of two constant answers, and these answers."""
    found = []
    for first, second in itertools.product(hanabi.MOVES, repeat=2):
        found.append((constants_reward(first, second), first, second))
    return max(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=len(hanabi.RANKS))
    parser.add_argument("--hints", type=int, default=hanabi.HINTS)
    arguments = parser.parse_args()
    maximum = 2 * arguments.ranks
    optimum = OneCardHanabi(arguments.ranks, arguments.hints).optimum()
    print(f"{arguments.ranks} ranks, {arguments.hints} hints: {optimum} = {float(optimum):.4f} of {maximum}")
    if arguments.hints:
        silent = OneCardHanabi(arguments.ranks, 0).optimum()
        print(f"the best pair that never gives a hint: {silent} = {float(silent):.4f} of {maximum}")
    if (arguments.ranks, arguments.hints) == (len(hanabi.RANKS), hanabi.HINTS):
        reward, first, second = best_constants()
        print(f"the best constants, {first} and {second}: {reward} = {float(reward):.4f} of {maximum}")


if __name__ == "__main__":
    main()
