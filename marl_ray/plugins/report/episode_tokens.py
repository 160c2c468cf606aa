"""Tokens and loss weights of recorded episodes, from the batch log.

The batch log has token ids without texts. The tokenizer's file is read here without its library, which the light
installation lacks: byte-level vocabularies (GPT-2, Llama 3, Qwen, SmolLM2) are a table from characters to bytes. A
completion is shown only if its tokens are, byte for byte, the recorded answer, which also tells its group.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from marl_ray.core.errors import UserError
from marl_ray.plugins.report.episode_file import EpisodeFile, ListedEpisode
from marl_ray.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from marl_ray.core.batch import Group
    from marl_ray.core.episode import Completion

LEVELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
"""Log-probabilities in eighths of a nat, from 0 to -63/8, as one character each."""
LARGEST_FILE = 32 * 2**20
"""Bytes of a step's batches up to which the page reads them."""
LARGEST_LOG = 64 * 2**20
"""Bytes of all batches that a page reads."""

GroupsByText = dict[tuple[int, int, tuple[str, ...]], "deque[tuple[Group, list[list[bytes]]]]"]
"""Groups, with the bytes of each token, by agent, turn (from 0) and sorted texts."""


class TokenLog:
    """The tokens of a run's recorded training episodes. `problem` says why there are none."""

    def __init__(self, folder: RunFolder, file: EpisodeFile) -> None:
        self.problem = ""
        self._log = folder.log
        self._steps = set(folder.log.steps())
        self._vocabularies: dict[int, dict[int, bytes]] = {}
        self._folder = folder
        self._file = file
        self._bytes_read = 0
        self._found: dict[str, list[dict[str, Any]]] = {}
        """By the id of the episode, of all steps that have been read."""
        if not self._steps:
            self.problem = "the run keeps no batches"
        elif not any(folder.path.glob("**/tokenizer.json")):
            self.problem = "the run has no tokenizer.json yet: it comes with the first checkpoint"

    def nodes(self, listed: ListedEpisode) -> list[dict[str, Any]]:
        """Return for each node of an episode `tokens`, per agent and response, and its `credit`; {} without them, and
        nothing for an episode whose step is not in the log."""
        step = listed.step - 1  # rows count complete steps, the log counts from 0
        if listed.id not in self._found and listed.kind == "train" and step in self._steps and not self.problem:
            self._read(step)
        return self._found.get(listed.id, [])

    def _read(self, step: int) -> None:
        self._steps.remove(step)
        size = self._log.path(step).stat().st_size
        if size > LARGEST_FILE or self._bytes_read + size > LARGEST_LOG:
            return
        self._bytes_read += size
        groups = self._groups(step)
        # Groups with equal texts are in the order of the episodes, so the records are read in their order.
        for listed in self._file.episodes:
            if listed.kind == "train" and listed.step == step + 1:
                record = self._file.record(listed)
                self._found[listed.id] = [_node_data(node, groups) for node in record["nodes"]]

    def _groups(self, step: int) -> GroupsByText:
        """Return the groups of a step; none if they cannot be read."""
        try:
            logged = self._log.read(step)
        except (UserError, ModuleNotFoundError) as error:
            self.problem = f"the batches cannot be read: {error}"
            return {}
        groups: GroupsByText = defaultdict(deque)
        for agent, batch in enumerate(logged.batches):
            vocabulary = self._vocabulary(agent)
            if not vocabulary:
                self.problem = "the vocabulary is not of bytes, so the tokenizer needs its library"
                return {}
            for mini_batch in batch.mini_batches:
                for group in mini_batch.groups:
                    pieces = [_pieces(completion, vocabulary) for completion in group.completions]
                    texts = [b"".join(of_completion).decode("utf-8", "replace") for of_completion in pieces]
                    groups[agent, group.turn, tuple(sorted(texts))].append((group, pieces))
        return groups

    def _vocabulary(self, agent: int) -> dict[int, bytes]:
        """Return the bytes of each token of an agent; of special tokens, none."""
        if agent not in self._vocabularies:
            paths = [self._folder.path / "models" / f"agent_{agent}" / "tokenizer.json"]
            paths += sorted(self._folder.path.glob(f"checkpoints/step_*/agent_{agent}/tokenizer.json"))
            # Agents that share a policy have one folder for all.
            paths += sorted(self._folder.path.glob("**/tokenizer.json"))
            file = next(path for path in paths if path.exists())
            self._vocabularies[agent] = read_vocabulary(file)
        return self._vocabularies[agent]


def read_vocabulary(file: Path) -> dict[int, bytes]:
    """Return the bytes of each token of a byte-level tokenizer.json; nothing for another kind of tokenizer."""
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    decoders = [tokenizer.get("decoder") or {}]
    decoders += decoders[0].get("decoders", [])
    if not any(decoder.get("type") == "ByteLevel" for decoder in decoders):
        return {}
    byte_of = {character: byte for byte, character in enumerate(byte_characters())}
    vocabulary = {}
    for piece, number in tokenizer["model"]["vocab"].items():
        if byte_of.keys() >= set(piece):
            vocabulary[number] = bytes(byte_of[character] for character in piece)
    for token in tokenizer.get("added_tokens", []):
        vocabulary[token["id"]] = b"" if token["special"] else token["content"].encode()
    return vocabulary


def byte_characters() -> list[str]:
    """Return the character that stands for each byte in byte-level vocabularies (Radford et al., 2019, GPT-2): the byte
    itself if Latin-1 prints it, otherwise the next character from U+0100 on."""
    printed = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    characters = []
    other = 0x100
    for byte in range(256):
        if byte in printed:
            characters.append(chr(byte))
        else:
            characters.append(chr(other))
            other += 1
    return characters


def _node_data(node: Mapping[str, Any], groups: GroupsByText) -> dict[str, Any]:
    """Take the groups of a node's agents from `groups`, and return their tokens; nothing if a group is missing."""
    taken = []
    for agent, texts in enumerate(node["responses"]):
        waiting = groups.get((agent, node["turn"] - 1, tuple(sorted(texts))))
        if waiting:
            taken.append(waiting.popleft())
    if len(taken) < len(node["responses"]):
        return {}
    tokens = []
    weights = []
    for texts, (group, pieces) in zip(node["responses"], taken, strict=True):
        numbers = _by_response(texts, pieces)
        tokens.append([_token_data(group.completions[number], pieces[number]) for number in numbers])
        # With a critic, weights are the shares by which the learner multiplies its advantages.
        if group.weights and group.critic_sample is None:
            weights.append([group.weights[number] for number in numbers])
    data: dict[str, Any] = {"tokens": tokens}
    if len(weights) == len(tokens):
        data |= _credit(node, weights)
    return data


def _pieces(completion: Completion, vocabulary: Mapping[int, bytes]) -> list[bytes]:
    return [vocabulary.get(token, b"") for token in completion.token_ids]


def _by_response(texts: Sequence[str], pieces: Sequence[Sequence[bytes]]) -> list[int]:
    """Return the number of each response's completion in a group of equal texts in another order."""
    waiting: dict[str, deque[int]] = defaultdict(deque)
    for number, of_completion in enumerate(pieces):
        waiting[b"".join(of_completion).decode("utf-8", "replace")].append(number)
    return [waiting[text].popleft() for text in texts]


def _credit(node: Mapping[str, Any], weights: list[list[float]]) -> dict[str, Any]:
    """Return `credit`: whether loss weights are `proportional` to rewards less their mean, or the `weights` if not."""
    for agent, of_agent in enumerate(weights):
        if not _is_proportional(of_agent, _centred_rewards(node, agent)):
            return {"credit": "weights", "weights": weights}
    return {"credit": "proportional"}


def _centred_rewards(node: Mapping[str, Any], agent: int) -> list[float]:
    """Return the mean reward of the joint actions of each of an agent's responses, less the mean of all."""
    rewards: list[list[float]] = [[] for _ in node["responses"][agent]]
    for place, action in enumerate(node["joint_actions"]):
        reward = action["rewards"][agent] if "rewards" in action else action["reward"]
        calls = [action["indices"][agent]]
        if "callers" in node:
            calls = [number for number, caller in enumerate(node["callers"][agent]) if caller == place]
        for number in calls:
            rewards[number].append(reward)
    means = [fmean(of_response) if of_response else math.nan for of_response in rewards]
    total = fmean(means)
    return [mean - total for mean in means]


def _is_proportional(values: Sequence[float], others: Sequence[float]) -> bool:
    """Return whether one positive factor makes `values` of `others`, up to rounding."""
    scale = max(map(abs, others))
    size = max(map(abs, values))
    if scale == 0 or size == 0:
        return scale == size
    differences = []
    for value, other in zip(values, others, strict=True):
        differences.append(abs(value / size - other / scale))
    # A sum with NaN is no proportion: a response has no reward.
    return sum(differences) < 1e-6 * len(differences)


def _token_data(completion: Completion, pieces: Sequence[bytes]) -> dict[str, Any]:
    """Return `lengths` of the tokens in UTF-16 units, which JavaScript counts, their `levels` of log-probability, and
    the `spans` of weight versions."""
    lengths = []
    levels = []
    content = b""
    before = 0
    for piece, logprob in zip(pieces, completion.logprobs, strict=True):
        content += piece
        # A token may end within a character, which then belongs to the token that completes it.
        units = len(content.decode("utf-8", "ignore").encode("utf-16-le")) // 2
        lengths.append(units - before)
        before = units
        level = round(-8 * logprob) if math.isfinite(logprob) else len(LEVELS)
        levels.append(LEVELS[min(max(level, 0), len(LEVELS) - 1)])
    return {"lengths": lengths, "levels": "".join(levels), "spans": completion.spans}
