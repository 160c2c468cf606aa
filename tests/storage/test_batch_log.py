"""The batch log returns exactly the written batches, or an error."""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.ipc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.core.errors import UserError
from marl_ray.storage.batch_log import BatchLog, LoggedStep
from tests.storage.logged_batches import steps, synthetic, without_texts


@given(steps())
@settings(max_examples=60, deadline=None)
def test_a_step_is_read_as_it_was_written(step: LoggedStep) -> None:
    with TemporaryDirectory() as folder:
        log = BatchLog(Path(folder) / "batches")
        log.append(step)
        found = log.read(step.step)
        batches = tuple(map(without_texts, step.batches))
        assert found == replace(step, batches=batches, episodes=list(step.episodes))
        assert repr(found.batches) == repr(batches), "including -0.0 and the types of numbers"
        assert log.prompt_samples(step.step) == step.prompt_samples
        assert [log.batch(step.step, agent) for agent in range(len(batches))] == list(batches)
        assert [path.name for path in log.folder.iterdir()] == [log.path(step.step).name], "no temporary file remains"


def test_non_finite_numbers_are_stored(tmp_path: Path) -> None:
    step = synthetic(0, agents=1, group_count=1, size=2, tokens=1, prompt=1)
    group = step.batches[0].mini_batches[0].groups[0]
    log = BatchLog(tmp_path)
    log.append(LoggedStep(0, step.batches, 1, {"a": math.nan, "b": -math.inf}, ({"text": "\ud800"},)))
    found = log.read(0)
    assert math.isnan(float(found.row["a"]))
    assert found.row["b"] == -math.inf
    assert found.episodes[0]["text"] == "\ud800"
    assert found.batches[0].mini_batches[0].groups[0].returns == group.returns


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_file_is_refused_by_name(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        log = BatchLog(Path(folder))
        log.append(synthetic(12, agents=2, group_count=2, size=2, tokens=3, prompt=4))
        path = log.path(12)
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[place] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del content[place:]
        path.write_bytes(content)
        for read in (lambda: log.read(12), lambda: log.batch(12, 1)):
            with pytest.raises(UserError, match=r"step_000012\.arrow is damaged: copy it again, or delete it"):
                read()


def test_only_complete_steps_with_the_right_name_count(tmp_path: Path) -> None:
    log = BatchLog(tmp_path / "batches")
    assert log.steps() == []
    for step in (10, 9, 1_000_000):
        log.append(synthetic(step, agents=1, group_count=1, size=1, tokens=1, prompt=1))
    (log.folder / ".step_000011.arrow").write_bytes(b"half")
    (log.folder / "step_000012.arrow").mkdir()
    for stray in ("step_x.arrow", "step_000013.arrow.bak", "notes.txt"):
        (log.folder / stray).write_text("")
    assert log.steps() == [9, 10, 1_000_000]
    log.drop_before(10)
    assert log.steps() == [10, 1_000_000]
    with pytest.raises(UserError, match=r"step_000009\.arrow is missing: .* output\.keep_batches: true$"):
        log.batch(9, 0)
    log.path(10).rename(log.path(9))
    with pytest.raises(UserError, match=r"step_000009\.arrow holds step 10: restore its name"):
        log.read(9)


def test_arrow_reads_it_as_a_table(tmp_path: Path) -> None:
    log = BatchLog(tmp_path)
    log.append(synthetic(3, agents=2, group_count=4, size=2, tokens=5, prompt=6))
    table = pyarrow.ipc.open_stream(log.path(3)).read_all()
    table.validate(full=True)
    assert table.column("agent").to_pylist() == [0] * 4 + [1] * 4
    row = table.slice(7).to_pylist()[0]
    assert row["prompts"] == [list(range(6))], "one prompt per group"
    assert [call["token_ids"] for call in row["calls"]] == [list(range(5))] * 2
    assert row["calls"][1]["spans"] == [{"version": 3, "tokens": 5}]
    assert json.loads(table.schema.metadata[b"step"])["joint_samples"] == 8


def test_a_file_of_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = BatchLog(tmp_path)
    monkeypatch.setattr("marl_ray.storage.batch_table.FORMAT", 4)
    log.append(synthetic(3, agents=1, group_count=1, size=1, tokens=1, prompt=1))
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"step_000003\.arrow has format 4, and this version reads 3"):
        log.read(3)


def test_a_step_with_another_number_of_agents_is_refused(tmp_path: Path) -> None:
    log = BatchLog(tmp_path)
    log.append(synthetic(3, agents=1, group_count=1, size=1, tokens=1, prompt=1))
    assert log.read(3, agents=1).batches == (log.batch(3, 0),)
    for read in (lambda: log.read(3, agents=2), lambda: log.batch(3, 1)):
        with pytest.raises(
            UserError, match=r"step_000003\.arrow is of a run of 1 agent, not of this run: copy this run's"
        ):
            read()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the size of files that this process writes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_named_and_the_old_file_stays(tmp_path: Path) -> None:
    log = BatchLog(tmp_path)
    log.append(synthetic(3, agents=1, group_count=1, size=1, tokens=1, prompt=1))
    before = log.path(3).read_bytes()
    with largest_file(5000), pytest.raises(OSError, match="File too large") as full:
        log.append(synthetic(3, agents=1, group_count=9, size=9, tokens=9, prompt=9))
    assert full.value.filename == str(log.path(3))
    assert [path.name for path in tmp_path.iterdir()] == ["step_000003.arrow"]
    assert log.path(3).read_bytes() == before
