"""The learner in one process: the effects of an update, and checkpoints."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from marl_ray.core.batch import UpdateStats
from marl_ray.core.errors import UserError
from marl_ray.learning.learner import STATE_FILE, Learner
from marl_ray.learning.policy_model import load_policy
from marl_ray.learning.precision import cast_on_forward, compute_dtype
from marl_ray.toy import BASE_PATH
from tests.learning.builders import with_prompt
from tests.learning.toy_learners import group, learner, same, state, update


def test_a_step_without_a_gradient_changes_nothing() -> None:
    agent = learner()
    moved = update(agent, group(1.0, 0.0))
    assert (moved.optimizer_steps, moved.skipped_steps) == (1, 0)
    assert moved.logprob_gap is not None
    weights, rate = state(agent), agent.schedule.get_last_lr()
    still = update(agent, group(1.0, 1.0), group(2.0, 2.0))
    assert still == UpdateStats(0.0, 0.0, rate[0], None, None, 0, 0)
    assert same(weights, state(agent)), "neither momentum nor weight decay changes the weights"
    assert agent.schedule.get_last_lr() == rate
    again = update(agent, group(1.0, 0.0))
    assert again.learning_rate == rate[0] < moved.learning_rate
    assert not same(weights, state(agent))


def test_a_base_with_values_of_sampling_for_greedy_decoding_can_be_saved(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(BASE_PATH, base)
    published = {"temperature": 0.6, "top_p": 0.95, "eos_token_id": [1, 2]}
    (base / "generation_config.json").write_text(json.dumps(published), encoding="utf-8")
    model = load_policy(str(base), False, torch.device("cpu"))
    model.save_pretrained(tmp_path / "saved")
    assert model.generation_config.eos_token_id == [1, 2]


def test_a_learning_rate_of_zero_changes_no_weights() -> None:
    agent = learner(agents=[{"learning_rate": 0}, {}])
    weights = state(agent)
    assert update(agent, group(1.0, 0.0)).grad_norm > 0
    assert same(weights, state(agent))


def test_mini_batches_without_a_gradient_take_no_optimizer_step() -> None:
    agent = learner()
    stats = update(agent, group(1.0, 1.0), group(1.0, 0.0), group(0.0, 0.0), size=1)
    assert (stats.optimizer_steps, stats.skipped_steps) == (1, 0)
    assert stats.grad_norm > 0
    assert stats.logprob_gap is not None
    assert stats.logprob_gap > 0, "from the first mini-batch with a gradient"


def test_a_non_finite_loss_changes_no_state() -> None:
    agent, healthy = learner(), learner()
    weights = state(agent)
    stats = update(agent, group(float("inf"), 0.0))
    assert (stats.optimizer_steps, stats.skipped_steps) == (0, 1)
    assert same(weights, state(agent))
    assert update(agent, group(1.0, 0.0)) == update(healthy, group(1.0, 0.0))
    assert same(state(agent), state(healthy))


def test_gradients_without_a_maximum_norm_are_unchanged() -> None:
    free, far = learner(max_grad_norm=None), learner(max_grad_norm=1e9)
    assert update(free, group(100.0, 0.0)) == update(far, group(100.0, 0.0))
    assert same(state(free), state(far))


def test_adafactor_has_a_small_state_and_resumes_bit_identically(tmp_path: Path) -> None:
    agent, other = learner(optimizer="adafactor"), learner(optimizer="adafactor")
    before = state(agent)
    assert update(agent, group(1.0, 0.0)).optimizer_steps == 1
    weights = sum(parameter.numel() for parameter in before)
    kept = sum(t.numel() for of_one in agent.optimizer.state.values() for t in of_one.values())
    assert kept < weights / 20
    size = sum(float(weight.square().sum()) for weight in before) ** 0.5
    moved = sum(float((a - b).square().sum()) for a, b in zip(before, state(agent), strict=True)) ** 0.5
    assert 0 < moved < 2e-3 * size, "relative to the weights' size, at a rate of 1e-3, with some decay"
    agent.save(str(tmp_path))
    other.load(str(tmp_path), 1)
    for of in (agent, other):
        update(of, group(0.0, 1.0, 3.0))
    assert same(state(agent), state(other))


def test_packed_and_padded_layouts_take_the_same_step() -> None:
    packed, padded = learner(), learner()
    assert packed.logprob_model.layout == "packed"
    padded.logprob_model = replace(padded.logprob_model, layout="padded")
    padded.policy.set_attn_implementation("sdpa")
    groups = [group(1.0, 0.0, 3.0), with_prompt(group(2.0, 1.0), (20,))]
    one, other = update(packed, *groups), update(padded, *groups)
    for name in ("loss", "grad_norm", "logprob_gap"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-4)
    assert one.importance_ratios is not None
    assert other.importance_ratios is not None
    assert asdict(one.importance_ratios) == pytest.approx(asdict(other.importance_ratios), rel=1e-4)
    for a, b in zip(state(packed), state(padded), strict=True):
        assert (a - b).abs().mean() < 1e-5, "AdamW's first step is the gradient's sign, so that rounding shows"


@pytest.mark.parametrize("units", [False, True])
def test_bfloat16_is_used_only_on_cpus_with_matrix_units(units: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": units})
    moved = []
    for dtype in (torch.float32, torch.bfloat16):
        one = learner()
        cast_on_forward(one.policy, compute_dtype(dtype, one.device))
        before = state(one)
        update(one, group(1.0, 2.0, 4.0))
        assert {parameter.dtype for parameter in one.policy.parameters()} == {torch.float32}
        moved.append(torch.cat([(b - a).flatten() for a, b in zip(before, state(one), strict=True)]))
    exact, rounded = moved
    assert torch.equal(exact, rounded) is not units
    assert torch.nn.functional.cosine_similarity(exact, rounded, dim=0) > 0.85


def cut(file: Path) -> None:
    """Truncate a file, as by an interrupted copy."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize("name", [STATE_FILE, "model.safetensors"])
@pytest.mark.parametrize("damage", [cut, Path.unlink, lambda file: file.write_bytes(b"\x80\x02garbage" * 9)])
def test_an_error_names_a_damaged_checkpoint(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    folder = tmp_path / "step_000003" / "agent_0"
    saved = learner()
    saved.save(str(folder))
    damage(folder / name)
    with pytest.raises(UserError) as refused:
        saved.load(str(folder), 3)
    assert name in str(refused.value)
    assert str(refused.value).startswith(str(folder))
    assert str(refused.value).endswith(f"copy it again, or delete {folder.parent} to go on from before it")


def test_an_error_names_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    folder = tmp_path / "step_000003" / "agent_0"
    saved = learner()
    saved.save(str(folder))
    torch.save({"optimizer": {}, "schedule": {}}, folder / STATE_FILE)
    with pytest.raises(UserError, match=rf"^{folder / STATE_FILE} is damaged \("):
        saved.load(str(folder), 3)


@pytest.mark.parametrize("write", [Learner.save, lambda of, folder: of.export(folder, ["a text"])])
def test_saved_files_are_synced_to_disk(
    tmp_path: Path, synced: list[Path], write: Callable[[Learner, str], None]
) -> None:
    folder = tmp_path / "agent_0"
    write(learner(), str(folder))
    names = {path.name.removeprefix(".") for path in synced}
    assert names >= {folder.name, *(path.name for path in folder.iterdir())}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_raises_its_own_error(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as refused:
        learner().save(str(tmp_path))
    assert refused.value.errno == errno.ENOSPC
