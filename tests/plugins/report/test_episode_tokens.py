"""Tokens, log-probabilities, weight versions and loss weights of recorded episodes, from the batch log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from marl_ray.core.batch import Batch, CriticSample, Group, MiniBatch
from marl_ray.core.episode import Completion, sibling_calls
from marl_ray.plugins.report.episode_data import episode_data
from marl_ray.plugins.report.episode_tokens import LEVELS, read_vocabulary
from marl_ray.storage.batch_log import LoggedStep
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.episode_records import episode_record
from marl_ray.toy import BASE_PATH
from tests.factories import make_episode, make_node

TEXTS = (["def aux(n):", "naïve 😀"], ["return 2", ""])
"""By agent."""
VOCABULARY = read_vocabulary(BASE_PATH / "tokenizer.json")
BYTE_TOKENS = {piece: token for token, piece in VOCABULARY.items() if len(piece) == 1}
END = next(token for token, piece in VOCABULARY.items() if piece == b"")


def completion(text: str) -> Completion:
    """Return a completion of a token per byte and an end, sampled by two versions of the weights."""
    ids = [BYTE_TOKENS[bytes([byte])] for byte in text.encode()]
    logprobs = [-0.25] * len(ids)
    return Completion((*ids, END), "", (*logprobs, -20.0), "stop", ((3, 1), (4, len(ids))))


def group(agent: int, texts: Sequence[str], weights: Sequence[float], sample: CriticSample | None = None) -> Group:
    calls = sibling_calls((1,), [completion(text) for text in texts], agent)
    return Group(0, calls, (0.0,) * len(texts), tuple(weights), critic_sample=sample)


def write_run(folder: Path, groups: Sequence[Sequence[Group]], rewards: Sequence[float] = (3.0, 1.0)) -> RunFolder:
    """Write a run of one step whose only episode has TEXTS as answers."""
    run = RunFolder(folder)
    run.make()
    record = {"step": 5, "kind": "train", **episode_record(make_episode(make_node(0, rewards)))}
    record["nodes"][0]["responses"] = [list(texts) for texts in TEXTS]
    run.episodes.write_text(json.dumps(record) + "\n", encoding="utf-8")
    model = run.models / "agent_0"
    model.mkdir(parents=True)
    shutil.copy(BASE_PATH / "tokenizer.json", model)
    batches = [Batch(4, (MiniBatch(tuple(of_agent), 1),)) for of_agent in groups]
    run.log.append(LoggedStep(4, tuple(batches), 2, {"step": 5}, [record]))
    return run


def node_of(run: RunFolder) -> dict[str, Any]:
    data = episode_data(run, 10**6)
    assert data["tokens_note"] == ""
    node: dict[str, Any] = data["episodes"][0]["nodes"][0]
    return node


def test_tokens_have_lengths_levels_and_versions(tmp_path: Path) -> None:
    node = node_of(write_run(tmp_path, [[group(0, TEXTS[0], (1, -1))], [group(1, TEXTS[1], (0.5, -0.5))]]))
    first, second = node["tokens"][0]
    assert first["lengths"] == [1] * len(TEXTS[0][0]) + [0]
    assert first["levels"] == LEVELS[2] * len(TEXTS[0][0]) + LEVELS[-1], "2/8 of a nat, then the largest"
    assert first["spans"] == ((3, 1), (4, len(TEXTS[0][0])))
    # Bytes within a character have no length of their own, and JavaScript counts an emoji as two units.
    assert second["lengths"] == [1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 2, 0]
    assert sum(second["lengths"]) == len(TEXTS[0][1].encode("utf-16-le")) // 2
    assert node["tokens"][1][1]["lengths"] == [0], "an empty answer has an end only"
    assert node["credit"] == "proportional"
    assert "weights" not in node


def test_weights_that_differ_from_rewards_are_kept_in_the_order_of_the_answers(tmp_path: Path) -> None:
    # The log has the siblings in another order than the record.
    groups = [[group(0, TEXTS[0][::-1], (-0.75, 0.25))], [group(1, TEXTS[1], (1.0, -1.0))]]
    node = node_of(write_run(tmp_path, groups))
    assert (node["credit"], node["weights"]) == ("weights", [[0.25, -0.75], [1.0, -1.0]])


def test_equal_rewards_are_proportional_to_zero_weights(tmp_path: Path) -> None:
    groups = [[group(0, TEXTS[0], (0, 0))], [group(1, TEXTS[1], (0, 0))]]
    assert node_of(write_run(tmp_path, groups, rewards=(2.0, 2.0)))["credit"] == "proportional"


def test_the_shares_of_a_critic_are_no_advantages(tmp_path: Path) -> None:
    sample = CriticSample((1,), (0.0, 0.0), ((), ()))
    groups = [[group(0, TEXTS[0], (0.5, 0.5), sample)], [group(1, TEXTS[1], (0.5, 0.5), sample)]]
    node = node_of(write_run(tmp_path, groups))
    assert "tokens" in node
    assert "credit" not in node


def test_tokens_of_another_answer_are_not_shown(tmp_path: Path) -> None:
    groups = [[group(0, ["def aux(x):", "naïve 😀"], (1, -1))], [group(1, TEXTS[1], (1, -1))]]
    assert "tokens" not in node_of(write_run(tmp_path, groups))


def test_tokens_take_only_a_share_of_the_page(tmp_path: Path) -> None:
    run = write_run(tmp_path, [[group(0, TEXTS[0], (1, -1))], [group(1, TEXTS[1], (1, -1))]])
    (episode,) = episode_data(run, 1500)["episodes"]
    assert "tokens" not in episode["nodes"][0]


def test_the_page_says_why_there_are_no_tokens(tmp_path: Path) -> None:
    run = write_run(tmp_path, [[group(0, TEXTS[0], (1, -1))], [group(1, TEXTS[1], (1, -1))]])
    shutil.rmtree(run.models)
    assert "tokenizer.json" in episode_data(run, 10**6)["tokens_note"]
    write_other_tokenizer(run.models / "agent_0")
    assert "needs its library" in episode_data(run, 10**6)["tokens_note"]
    step = run.log.path(4)
    step.write_bytes(step.read_bytes()[:-1])
    assert "is damaged" in episode_data(run, 10**6)["tokens_note"]
    shutil.rmtree(run.log.folder)
    assert episode_data(run, 10**6)["tokens_note"] == "the run keeps no batches"


@pytest.mark.parametrize("decoder", [{"type": "Metaspace"}, None])
def test_vocabularies_of_other_kinds_are_not_guessed(tmp_path: Path, decoder: Any) -> None:
    assert read_vocabulary(write_other_tokenizer(tmp_path / "model", decoder)) == {}


def write_other_tokenizer(folder: Path, decoder: Any = None) -> Path:
    """Write a tokenizer whose vocabulary is not of bytes."""
    folder.mkdir(parents=True)
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({"decoder": decoder, "model": {"vocab": {"a": 0}}}), encoding="utf-8")
    return file


def test_the_bytes_of_every_token_of_a_byte_level_vocabulary_are_known() -> None:
    assert len(BYTE_TOKENS) == 256
    content = json.loads((BASE_PATH / "tokenizer.json").read_text(encoding="utf-8"))
    assert len(VOCABULARY) == len(content["model"]["vocab"].keys() | {t["content"] for t in content["added_tokens"]})
