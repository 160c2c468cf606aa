"""Checkpoints that a thread writes while training continues have the bits of checkpoints that were written at once."""

from __future__ import annotations

import errno
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_ray.config import LoraConfig
from marl_ray.learning import snapshot as snapshots
from marl_ray.learning.learner import Learner
from marl_ray.learning.learner_files import write_state
from marl_ray.learning.ranks import RankGroup
from marl_ray.learning.snapshot import HostCopies, take_snapshot
from tests.learning.builders import assert_same_state, numbered, some_groups, tiny_learner, tiny_qwen2
from tests.learning.critic_builders import batch, learner_of
from tests.learning.critic_builders import some_groups as with_experience
from tests.learning.rank_processes import run_ranks


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of all files by their path below the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def train(learner: Learner, steps: int) -> None:
    for _ in range(steps):
        if learner.critic is None:
            learner.update(numbered(learner.step, some_groups(4, learner.step), 2))
        else:
            learner.update(batch(learner.step, with_experience(4, learner.step), 4))


def make(kind: str, folder: Path) -> Learner:
    """Return a learner whose checkpoint has files of this kind."""
    if kind == "tied weights":
        tied = folder.with_name(f"{folder.name}_tied")
        if not tied.exists():
            tiny_qwen2().save_pretrained(tied)
            for file in folder.glob("*token*"):
                (tied / file.name).write_bytes(file.read_bytes())
        return tiny_learner(tied)
    if kind.startswith("critic"):
        return learner_of(folder, "iac", "td", body="own" if kind.endswith("own") else "shared")
    if kind == "adapter":
        pytest.importorskip("peft")
        return tiny_learner(folder, lora=LoraConfig(rank=2))
    if kind == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    return tiny_learner(folder, optimizer=kind)


KINDS = ("adamw", "adamw_8bit", "adafactor", "adapter", "tied weights", "critic", "critic with its own")


@pytest.mark.parametrize("kind", KINDS)
def test_training_does_not_change_what_is_written(tiny_policy: Path, tmp_path: Path, kind: str) -> None:
    learner = make(kind, tiny_policy)
    train(learner, 2)
    learner.save(str(tmp_path / "expected"))
    snapshot = take_snapshot(learner, str(tmp_path / "copied"))
    snapshot.copy()
    control = take_snapshot(learner, str(tmp_path / "not_copied"))
    train(learner, 2)
    snapshot.write()
    control.write()
    expected = contents(tmp_path / "expected")
    assert contents(tmp_path / "copied") == expected
    assert contents(tmp_path / "not_copied") != expected, "training changes the tensors"


def test_a_thread_writes_while_the_learner_trains(
    tiny_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, undisturbed = tiny_learner(tiny_policy), tiny_learner(tiny_policy)
    for of in (learner, undisturbed):
        train(of, 1)
    undisturbed.save(str(tmp_path / "expected"))
    snapshot = take_snapshot(learner, str(tmp_path / "copied"))
    snapshot.copy()
    has_trained = threading.Event()

    def write_late(state: dict[str, Any], path: Path) -> None:
        assert has_trained.wait(60)
        write_state(state, path)

    monkeypatch.setattr(snapshots, "write_state", write_late)
    thread = threading.Thread(target=snapshot.write, daemon=True)
    thread.start()
    train(learner, 2)
    assert thread.is_alive()
    has_trained.set()
    thread.join(timeout=60)
    assert contents(tmp_path / "copied") == contents(tmp_path / "expected")
    train(undisturbed, 2)
    assert_same_state(learner, undisturbed)


def test_a_copied_checkpoint_is_resumed_bit_identically(tiny_policy: Path, tmp_path: Path) -> None:
    learner, resumed = tiny_learner(tiny_policy), tiny_learner(tiny_policy)
    train(learner, 2)
    snapshot = take_snapshot(learner, str(tmp_path))
    snapshot.copy()
    train(learner, 1)
    snapshot.write()
    resumed.load(str(tmp_path), 2)
    train(resumed, 1)
    assert_same_state(resumed, learner)


def test_the_adapter_of_another_learner_may_become_active_before_the_write(tiny_policy: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    own, other = learners_on_one_model(tiny_policy)
    own.activate()
    train(own, 1)
    own.save(str(tmp_path / "expected"))
    snapshot = take_snapshot(own, str(tmp_path / "copied"))
    snapshot.copy()
    other.activate()
    train(other, 1)
    snapshot.write()
    assert contents(tmp_path / "copied") == contents(tmp_path / "expected")


def learners_on_one_model(folder: Path) -> tuple[Learner, Learner]:
    """Return two learners whose adapters share one frozen model."""
    first = tiny_learner(folder, lora=LoraConfig(rank=2))
    settings = first.agent, first.model, first.credit, first.settings
    return first, Learner(str(folder), *settings, "float32", 10, 1, first.lora, 1, name="other", beside=first)


def test_tensors_in_the_same_memory_have_one_copy() -> None:
    weight = torch.randn(3, 4)
    copies: dict[str, Any] = HostCopies().of({"tied": [weight, weight.detach()], "transposed": weight.t(), "count": 3})
    one, other = copies["tied"]
    assert one is other
    assert one.data_ptr() != weight.data_ptr()
    assert copies["transposed"].stride() == weight.t().stride()
    assert torch.equal(copies["transposed"], weight.t())
    assert copies["count"] == 3


def test_a_lost_folder_raises_the_error_of_the_disk(tiny_policy: Path, tmp_path: Path) -> None:
    # safetensors writes first, whose errors have the number as text only.
    snapshot = take_snapshot(tiny_learner(tiny_policy), str(tmp_path / "gone"))
    snapshot.copy()
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="No such file or directory") as refused:
        snapshot.write()
    assert refused.value.errno == errno.ENOENT


def write_beside_training(ranks: RankGroup, folder: str, into: str) -> int:
    """Write a checkpoint at once, and the same one in a thread during training. Return the step of the learner."""
    learner = tiny_learner(Path(folder), ranks=ranks)
    train(learner, 1)
    learner.save(f"{into}/expected")
    snapshot = take_snapshot(learner, f"{into}/copied")
    snapshot.copy()
    thread = threading.Thread(target=snapshot.write, daemon=True)
    thread.start()
    train(learner, 3)
    thread.join(timeout=60)
    assert not thread.is_alive()
    return learner.step


def refuse_to_write(ranks: RankGroup, folder: str, into: str) -> str:
    """Return the error of a rank if rank 1 cannot write."""
    learner = tiny_learner(Path(folder), ranks=ranks)
    snapshot = take_snapshot(learner, into)
    snapshot.copy()
    if ranks.rank == 1:
        snapshot.folder = Path(into) / "file"
    with pytest.raises(OSError, match="directory") as error:
        snapshot.write()
    return str(error.value)


@pytest.mark.slow
def test_several_ranks_write_while_they_train(tiny_policy: Path, tmp_path: Path) -> None:
    for name in ("expected", "copied"):
        (tmp_path / name).mkdir()
    assert run_ranks(2, write_beside_training, str(tiny_policy), str(tmp_path)) == [4, 4]
    expected, found = contents(tmp_path / "expected"), contents(tmp_path / "copied")
    assert found.keys() == expected.keys()
    assert {"learner.pt", "shards/__0_0.distcp", "shards/__1_0.distcp"} <= found.keys()
    for name in found.keys() - {"shards/.metadata"}:  # has paths
        assert found[name] == expected[name], name
    one, other = tiny_learner(tiny_policy), tiny_learner(tiny_policy)
    one.load(str(tmp_path / "expected"), 1)
    other.load(str(tmp_path / "copied"), 1)
    assert_same_state(one, other)


@pytest.mark.slow
def test_all_ranks_raise_the_error_of_one(tiny_policy: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    first, second = run_ranks(2, refuse_to_write, str(tiny_policy), str(tmp_path))
    assert str(tmp_path / "file") in first
    assert str(tmp_path / "file") in second
