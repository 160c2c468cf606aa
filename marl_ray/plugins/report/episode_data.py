"""The episodes of a run's page: the choice that fits into a number of bytes, and the tasks that the page compares."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from marl_ray.plugins.report.episode_choice import chosen_order, evaluated_twice
from marl_ray.plugins.report.episode_file import EpisodeFile, ListedEpisode
from marl_ray.plugins.report.episode_tables import EpisodeTables, page_size
from marl_ray.plugins.report.episode_tokens import TokenLog
from marl_ray.storage.run_folder import RunFolder

TOKEN_SHARE = 0.2
"""Share of the bytes that tokens may take."""
MISFITS = 5
"""Number of episodes without room after which the search for smaller ones ends."""


def episode_data(folder: RunFolder, limit_bytes: int, with_tokens: bool = True) -> dict[str, Any]:
    """Return the episodes of a run for its page, at most `limit_bytes` of them in JSON.

    Episodes are in the order of the file. Reading tokens takes seconds where the batch log is large, so a served page
    asks for the tokens of one episode at a time. Raises UserError for damaged files.
    """
    file = EpisodeFile(folder.episodes)
    file.update()
    log = TokenLog(folder, file)
    tables = EpisodeTables()
    kept: dict[str, dict[str, Any]] = {}
    # A fortieth is for the tables' braces, the note and the pairs.
    room = limit_bytes - limit_bytes // 40
    token_room = TOKEN_SHARE * limit_bytes
    used = 0
    misfits = 0
    for listed in chosen_order(file.episodes):
        mark = tables.mark()
        data = tables.add(listed, file.record(listed))
        size = page_size(data)
        if used + size + tables.size > room:
            tables.cut(mark)
            misfits += 1
            if misfits == MISFITS:
                break
            continue
        used += size + 1
        if with_tokens:
            token_bytes = _add_tokens(data, log.nodes(listed), min(token_room, room - used - tables.size))
            token_room -= token_bytes
            used += token_bytes
        kept[listed.id] = data
    return {
        **tables.tables,
        "total": len(file.episodes),
        "note": describe_choice(len(kept), len(file.episodes)),
        "episodes": [kept[listed.id] for listed in file.episodes if listed.id in kept],
        "rewards": reward_range(file.episodes),
        "changed": changed_tasks(file.episodes, kept.keys()),
        "tokens_note": log.problem,
    }


def one_episode(file: EpisodeFile, log: TokenLog, listed: ListedEpisode) -> dict[str, Any]:
    """Return a listed episode with all its texts, and tables of its own."""
    tables = EpisodeTables(longest=None)
    data = tables.add(listed, file.record(listed))
    _add_tokens(data, log.nodes(listed), float("inf"))
    return {**tables.tables, "episode": data}


def describe_choice(kept: int, total: int) -> str:
    """Return a sentence that says how many of a run's recorded episodes a page has."""
    if total == 0:
        return "The run has recorded no episode yet (output.episodes_per_step)."
    if kept == total:
        return f"all {total:,} recorded episodes"
    return f"{kept:,} of {total:,} recorded episodes, evenly over steps"


def reward_range(episodes: Sequence[ListedEpisode]) -> list[float]:
    """Return the least and the greatest reward of all episodes, at least the range from 0 to 1."""
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    return [min([0.0, *rewards]), max([1.0, *rewards])]


def changed_tasks(episodes: Sequence[ListedEpisode], kept: Collection[str]) -> dict[str, Any] | None:
    """Return the held-out tasks of the first and of the last evaluation, by improvement, and the one to show first.

    The first one is the median of the tasks that have improved, which is no flattering choice; without an
    improved task, it is the median of all. None without two evaluations of a kept task.
    """
    pairs = []
    for before, after in evaluated_twice(episodes):
        if before.id in kept and after.id in kept and before.reward is not None and after.reward is not None:
            pairs.append((after.reward - before.reward, before, after))
    if not pairs:
        return None
    pairs.sort(key=lambda pair: (pair[0], pair[1].task))
    improved = [place for place, pair in enumerate(pairs) if pair[0] > 0]
    candidates = improved or list(range(len(pairs)))
    return {
        "before": pairs[0][1].step,
        "after": pairs[0][2].step,
        "pairs": [[before.id, after.id, gain] for gain, before, after in pairs],
        "improved": len(improved),
        "start": candidates[(len(candidates) - 1) // 2],
    }


def _add_tokens(data: dict[str, Any], nodes: Sequence[dict[str, Any]], room: float) -> int:
    """Add tokens and loss weights to the nodes of an episode if there is room, and return their bytes."""
    size = page_size(nodes)
    if not any(nodes) or size > room:
        return 0
    for node, found in zip(data["nodes"], nodes, strict=True):
        node |= found
    return size
