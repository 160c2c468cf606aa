"""One rank and several ranks compute with the same precision, and load equal weights without a float32 copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from marl_ray.config import LoraConfig, ModelConfig
from marl_ray.learning import learner as learner_module
from marl_ray.learning import sharding
from marl_ray.learning.cpu_offload import CpuOffload, memory_in_use
from marl_ray.learning.gradient_accumulator import GradientAccumulator
from marl_ray.learning.learner import NO_ADAPTER
from marl_ray.learning.micro_batches import trainable_rows
from marl_ray.learning.policy_model import load_policy
from marl_ray.learning.precision import cast_on_forward, computing_in
from marl_ray.learning.ranks import SINGLE_RANK, RankGroup
from marl_ray.learning.sharding import full_tensor
from marl_ray.models.lora import trainable
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.toy import BASE_PATH
from tests.learning.builders import some_groups, tiny_learner, weigh
from tests.learning.critic_builders import batch
from tests.learning.critic_builders import some_groups as with_experience
from tests.learning.rank_processes import run_ranks

CPU = torch.device("cpu")
Result = tuple[float, list[torch.Tensor], set[torch.dtype]]


def narrow_gradients(ranks: RankGroup, folder: str, ways: list[dict[str, Any]]) -> list[Result]:
    """Return loss, gradients and the residual stream's dtypes of mini-batches computed in bfloat16, as on a GPU."""
    learner_module.compute_dtype = lambda *_: torch.bfloat16  # type: ignore[attr-defined]
    found = []
    for way in ways:
        learner = tiny_learner(Path(folder), ranks=ranks, microbatch_tokens=48, **way)
        streams: set[torch.dtype] = set()
        for layer in learner.policy.model.layers:
            layer.register_forward_hook(lambda _, __, output, streams=streams: streams.add(output.dtype))
        mini_batch = weigh(some_groups(7, 3), [1.0, 1.0], "magrpo", "sequence_sum")
        gradient = GradientAccumulator(learner.logprob_model, learner.settings)
        gradient.add(trainable_rows(mini_batch.groups), 7)
        gradient.close(mini_batch.normalizer)
        gradients = [full_tensor(parameter.grad) for parameter in trainable(learner.policy)]
        found.append((gradient.loss, gradients, streams))
    return found


@pytest.mark.slow
def test_one_and_two_ranks_have_the_same_gradient_in_bfloat16(tiny_policy: Path) -> None:
    """Compare gradients that are sums in another order."""
    ways: list[dict[str, Any]] = [{}, {"gradient_checkpointing": True}, {"lora": LoraConfig(rank=2)}]
    before = learner_module.compute_dtype
    try:
        alone = narrow_gradients(SINGLE_RANK, str(tiny_policy), ways)
    finally:
        learner_module.compute_dtype = before  # type: ignore[attr-defined]
    of_ranks = run_ranks(2, narrow_gradients, str(tiny_policy), ways)[0]
    for (loss, gradients, streams), (expected, own, own_streams) in zip(of_ranks, alone, strict=True):
        assert streams == own_streams == {torch.bfloat16}
        assert loss == pytest.approx(expected, rel=1e-2)
        for found, gradient in zip(gradients, own, strict=True):
            assert found.dtype == gradient.dtype == torch.float32
            if gradient.norm():
                assert (found - gradient).norm() < 0.02 * gradient.norm()


def test_a_model_computes_with_copies_of_its_parameters(tiny_policy: Path) -> None:
    policy = load_policy(str(tiny_policy), False, CPU)
    narrow = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.bfloat16).train()
    ids = torch.tensor([[1, 2, 3]])
    exact = policy(ids).logits
    cast_on_forward(policy, torch.float32)
    assert "forward" not in vars(policy), "nothing to cast"
    with computing_in(policy, torch.bfloat16):
        rounded = policy(ids).logits
        rounded.sum().backward()
    assert rounded.dtype == torch.bfloat16
    expected = narrow(ids).logits
    assert torch.equal(rounded, expected), "as a model of this dtype computes"
    expected.sum().backward()
    for own, other in zip(policy.parameters(), narrow.parameters(), strict=True):
        assert own.dtype == torch.float32
        assert own.grad is not None
        assert other.grad is not None
        assert torch.equal(own.grad, other.grad.float())
    assert torch.equal(policy(ids).logits, exact)


def save_stored(folder: Path, stored: torch.dtype, named: str, layers: int = 12, width: int = 512) -> None:
    """Save a model with weights of one dtype and a config that names another."""
    torch.manual_seed(0)
    shape = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    config = LlamaConfig(vocab_size=512, num_attention_heads=4, **shape)
    LlamaForCausalLM(config).to(stored).save_pretrained(folder)
    text = (folder / "config.json").read_text()
    before = f'"dtype": "{str(stored).removeprefix("torch.")}"'
    assert before in text
    (folder / "config.json").write_text(text.replace(before, f'"dtype": "{named}"'))
    load_tokenizer(str(BASE_PATH), ModelConfig()).save_pretrained(folder)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("named", ["bfloat16", "float32"])
def test_weights_are_loaded_in_the_dtype_of_the_file(tmp_path: Path, stored: torch.dtype, named: str) -> None:
    save_stored(tmp_path, stored, named, 1, 32)
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    found = load_policy(str(tmp_path), False, CPU)
    assert found.config.dtype == torch.float32
    of_ranks = load_policy(str(tmp_path), False, CPU, RankGroup(0, 2))
    narrow = stored == torch.bfloat16 and named == "bfloat16"
    assert {p.dtype for p in of_ranks.parameters()} == {torch.bfloat16 if narrow else torch.float32}
    for model in (found, of_ranks):
        for (name, tensor), (_, other) in zip(model.state_dict().items(), expected.state_dict().items(), strict=True):
            assert torch.equal(tensor.float(), other), name
        assert all(map(torch.equal, model.buffers(), expected.buffers()))


def loading(ranks: RankGroup, folder: str, small: str, lora: LoraConfig) -> tuple[int, int, dict[str, torch.Tensor]]:
    """Return the bytes of all float32 weights, the most that this process held while it sharded them, and them."""
    tiny_learner(Path(small), ranks=ranks, lora=lora)  # all modules are imported
    held = []
    before = sharding.fully_shard

    def watched(module: Any, **options: Any) -> None:
        held.append(memory_in_use(CPU))
        before(module, **options)

    sharding.fully_shard = watched  # type: ignore[assignment]
    start = memory_in_use(CPU)
    learner = tiny_learner(Path(folder), ranks=ranks, lora=lora)
    weights = {name: full_tensor(p.detach()).clone() for name, p in learner.policy.named_parameters()}
    return sum(4 * tensor.numel() for tensor in weights.values()), max(held) - start, weights


@pytest.mark.slow
@pytest.mark.parametrize("lora", [NO_ADAPTER, LoraConfig(rank=2)], ids=["all weights", "adapters"])
def test_ranks_load_their_shards_without_the_whole_model(tiny_policy: Path, tmp_path: Path, lora: LoraConfig) -> None:
    save_stored(tmp_path, torch.bfloat16, "bfloat16")
    of_ranks = run_ranks(2, loading, str(tmp_path), str(tiny_policy), lora)
    alone = tiny_learner(tmp_path, lora=lora)
    for whole, peak, weights in of_ranks:
        assert weights.keys() == dict(alone.policy.named_parameters()).keys()
        assert all(torch.equal(weights[name], p) for name, p in alone.policy.named_parameters())
        # Its shard, the layer in progress, and memory that the allocator keeps, which differs from run to run. A rank
        # that loads the whole model has that in addition to its shard: at least 1.5 times the whole.
        assert peak < whole


class CastCounter(TorchDispatchMode):
    """Counts casts of float32 weights to bfloat16, each of which is a kernel on a GPU."""

    def __init__(self, shapes: set[torch.Size]) -> None:
        super().__init__()
        self.shapes = shapes
        self.casts = 0
        self.joint_casts = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operator = func._overloadpacket
        if operator is torch.ops.aten._to_copy and (args[0].dtype, result.dtype) == (torch.float32, torch.bfloat16):
            self.casts += args[0].shape in self.shapes
        self.joint_casts += operator is torch.ops.aten._foreach_copy_
        return result


@pytest.mark.parametrize("lora", [NO_ADAPTER, LoraConfig(rank=2)], ids=["all weights", "adapters"])
def test_weights_are_cast_once_per_optimizer_step(
    tiny_policy: Path, monkeypatch: pytest.MonkeyPatch, lora: LoraConfig
) -> None:
    monkeypatch.setattr(learner_module, "compute_dtype", lambda *_: torch.bfloat16)
    settings: dict[str, Any] = {"microbatch_tokens": 48, "lora": lora}
    learner = tiny_learner(tiny_policy, **settings)
    each_time = tiny_learner(tiny_policy, **settings)
    each_time.copies._parameters = []
    shapes = {parameter.shape for parameter in learner.policy.parameters()}
    for step in range(2):
        groups = batch(step, with_experience(6, step), 6)
        with CastCounter(shapes) as counter:
            stats = learner.update(groups)
        with CastCounter(shapes) as before:
            assert each_time.update(groups) == stats, "bit for bit"
        assert counter.joint_casts == 1
        assert before.joint_casts == 0
        assert counter.casts < before.casts / 5
    for own, other in zip(learner.policy.parameters(), each_time.policy.parameters(), strict=True):
        assert torch.equal(own, other)


def test_copies_are_dropped_when_the_weights_change(
    tiny_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_module, "compute_dtype", lambda *_: torch.bfloat16)
    learner = tiny_learner(tiny_policy)
    learner.save(str(tmp_path / "saved"))
    groups = some_groups(3, 1)
    before = learner.logprob_gap(groups)
    learner.update(batch(0, with_experience(4), 4))
    assert learner.logprob_gap(groups) != before
    learner.load(str(tmp_path / "saved"), 0)
    assert learner.logprob_gap(groups) == before
    assert learner.copies._copies
    CpuOffload(learner)
    assert not learner.copies._copies, "nothing but the state stays on the device"
