"""The choice of the episodes that a page with a bound on its size keeps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest

from marl_ray.plugins.report.episode_file import ListedEpisode


def spread_order(count: int) -> list[int]:
    """Return the numbers below `count` so that every beginning of the list is spread evenly.

    The numbers are in the order of their reversed bits (van der Corput's sequence), the last one first.

    Example:
        >>> spread_order(8)
        [7, 0, 4, 2, 6, 1, 5, 3]
    """
    if count == 0:
        return []
    bits = (count - 1).bit_length()
    order = [count - 1]
    for number in range(1 << bits):
        digits = f"{number:0{bits}b}" if bits else "0"
        place = int(digits[::-1], 2)
        if place < count - 1:
            order.append(place)
    return order


def chosen_order(episodes: Sequence[ListedEpisode]) -> list[ListedEpisode]:
    """Return episodes in the order in which a page with little room keeps them.

    Three kinds take turns: tasks of the first and of the last evaluation, which the page compares; training episodes;
    and all held-out ones. Each is spread evenly over its steps.
    """
    compared = list(chain.from_iterable(evaluated_twice(episodes)))
    training = [episode for episode in episodes if episode.kind == "train"]
    held_out = [episode for episode in episodes if episode.kind != "train"]
    queues = [compared]
    for group in (training, held_out):
        queues.append([group[place] for place in spread_order(len(group))])
    order: dict[str, ListedEpisode] = {}
    for candidates in zip_longest(*queues):
        for episode in candidates:
            if episode is not None:
                order.setdefault(episode.id, episode)
    return list(order.values())


def evaluated_twice(episodes: Sequence[ListedEpisode]) -> list[tuple[ListedEpisode, ListedEpisode]]:
    """Return the episodes of the first and of the last evaluation with equal tasks, tasks spread evenly."""
    steps = [episode.step for episode in episodes if episode.kind == "eval"]
    if not steps:
        return []
    first: dict[str, ListedEpisode] = {}
    last: dict[str, ListedEpisode] = {}
    for episode in episodes:
        if episode.kind == "eval" and episode.step == min(steps):
            first.setdefault(episode.task, episode)
        elif episode.kind == "eval" and episode.step == max(steps):
            last.setdefault(episode.task, episode)
    pairs = []
    for task, before in first.items():
        if task in last:
            pairs.append((before, last[task]))
    return [pairs[place] for place in spread_order(len(pairs))]
