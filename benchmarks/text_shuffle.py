"""Rewards of writing tasks when the second agent's part belongs to another text.

    marl-ray eval --config configs/magrpo_tldr_config.yaml --model base --samples 4 --episodes --output evaluated \\
        --override model.name=bundled:smollm2-135m dataset.name=bundled:posts dataset.eval_split=train+eval
    python -m benchmarks.text_shuffle evaluated/episodes.jsonl --environment writing_tldr

Prints the mean reward and levels of three kinds of pairs: as sampled; both parts of the same text from different
samples; and parts of different texts. A reward that measures whether the parts belong together falls for the last kind.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.learning.measures import read_lines
from marl_ray.core.episode import Outcome, Task
from marl_ray.environments import ENVIRONMENTS

TASK = Task("any", "Any text.", {})
"""A stand-in for the texts, which the rewards of writing tasks do not read."""
Pair = tuple[str, str]


def sampled_pairs(episodes: Path) -> dict[str, list[Pair]]:
    """Return the pairs of the first turn by task."""
    pairs: dict[str, list[Pair]] = {}
    for episode in read_lines(episodes):
        first, second = episode["nodes"][0]["responses"]
        pairs.setdefault(episode["task"], []).extend(zip(first, second, strict=True))
    return pairs


def kinds_of_pairs(pairs: dict[str, list[Pair]]) -> dict[str, list[Pair]]:
    """Return the pairs as sampled, recombined within each text, and recombined over all pairs of different texts.

    Example:
        >>> kinds_of_pairs({"x": [("a", "b"), ("c", "d")], "y": [("e", "f")]})["different texts"]
        [('a', 'f'), ('c', 'f'), ('e', 'b'), ('e', 'd')]
    """
    return {
        "as sampled": [pair for own in pairs.values() for pair in own],
        "same text, other sample": [pair for own in pairs.values() for pair in _recombined(own, own, same=True)],
        "different texts": [
            pair
            for task, own in pairs.items()
            for other, theirs in pairs.items()
            if task != other
            for pair in _recombined(own, theirs, same=False)
        ],
    }


def _recombined(firsts: Sequence[Pair], seconds: Sequence[Pair], same: bool) -> Iterator[Pair]:
    for i, (first, _) in enumerate(firsts):
        for j, (_, second) in enumerate(seconds):
            if not (same and i == j):
                yield first, second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("episodes", type=Path)
    parser.add_argument("--environment", choices=["writing_tldr", "writing_arxiv"], required=True)
    arguments = parser.parse_args()
    environment = ENVIRONMENTS.get(arguments.environment)(2)

    def outcome(pair: Pair) -> Outcome:
        found: Outcome = environment.outcome(environment.attempt(TASK, pair, last=True), None)
        return found

    rows = []
    for kind, pairs in kinds_of_pairs(sampled_pairs(arguments.episodes)).items():
        outcomes = [outcome(pair) for pair in pairs]
        if outcomes:
            means = [fmean(one.levels[level] for one in outcomes) for level in outcomes[0].levels]
            rows.append([kind, str(len(pairs)), f"{fmean(one.reward for one in outcomes):.2f}"])
            rows[-1] += [f"{mean:.2f}" for mean in means]
            head = ["pairs", "number", "reward", *outcomes[0].levels]
    for row in [head, ["---"] * len(head), *rows]:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
