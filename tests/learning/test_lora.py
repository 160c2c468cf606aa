"""LoRA adapters: training, weight updates, checkpoints, export, and the reference policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_ray.config import AgentConfig, CreditConfig, LoraConfig, ModelConfig, OptimizerConfig
from marl_ray.core.batch import Batch
from marl_ray.core.errors import UserError
from marl_ray.learning import learner as learner_module
from marl_ray.learning.arguments import narrows_frozen_matrices
from marl_ray.learning.learner import Learner
from marl_ray.learning.learner_files import save_merged_model
from marl_ray.learning.micro_batches import unweighted_row
from marl_ray.learning.policy_model import LogprobModel, load_policy
from marl_ray.learning.sharding import WeightGatherer
from marl_ray.models.lora import (
    ADAPTER_FILE,
    NAME,
    adapted,
    describe_adapter,
    frozen_matrices,
    named_weights,
    narrow_frozen_matrices,
)
from marl_ray.models.tokenization import fingerprint, load_tokenizer
from marl_ray.weights.deltas import Checksum
from marl_ray.weights.sender import CastSource
from tests.learning.builders import build_batch, save_tiny_policy
from tests.learning.toy_learners import group

pytest.importorskip("peft")

LORA = LoraConfig(rank=4, alpha=2)
SCALE = 2 / 4
"""alpha / rank of LORA."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_policy(folder)
    return folder


def learner(
    base: Path,
    lora: LoraConfig = LORA,
    seed: int = 3,
    kl: float = 0.0,
    name: str = NAME,
    beside: Learner | None = None,
    **settings: Any,
) -> Learner:
    agent = AgentConfig(name="tiny", temperature=0.7, learning_rate=1e-2, reference_kl_coef=kl)
    optimizer = OptimizerConfig(**({"importance": "none"} | settings))
    arguments = (agent, ModelConfig(), CreditConfig(), optimizer, "float32", 10, 1, lora, seed)
    return Learner(str(base), *arguments, name=name, beside=beside)


def learn(of: Learner, steps: int = 2) -> None:
    for _ in range(steps):
        batch = build_batch([group(1.0, 0.0, 0.5), group(0.0, 2.0)], 9)
        stats = of.update(replace(batch, step=of.step))
        assert stats.optimizer_steps == 1


def group_logprobs(of: LogprobModel) -> torch.Tensor:
    """Return log-probabilities of a group's tokens."""
    return torch.cat(of.logprobs([unweighted_row(group(1.0, 0.0, 0.5))], 512))


def plain_logprobs(model: Any) -> torch.Tensor:
    """Return log-probabilities of a model without adapters."""
    return group_logprobs(LogprobModel(model, "padded", 0.7, torch.float32))


def plain(base: Path, weights: dict[str, torch.Tensor]) -> Any:
    """Return the base model with other weights and no adapters."""
    model = load_policy(str(base), False, torch.device("cpu"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights.pop(name))
    assert not weights
    return model


def test_a_new_adapter_changes_no_output_and_is_trained_alone(base: Path) -> None:
    agent = learner(base)
    untouched = load_policy(str(base), False, torch.device("cpu"))
    fresh = plain(base, dict(named_weights(agent.policy)))
    assert torch.equal(plain_logprobs(fresh), plain_logprobs(untouched))
    assert torch.allclose(group_logprobs(agent.logprob_model), plain_logprobs(untouched), atol=1e-5)
    learn(agent)
    for (name, before), (_, after) in zip(untouched.named_parameters(), named_weights(agent.policy), strict=True):
        inside = name.removesuffix(".weight") in adapted(agent.policy)
        assert torch.equal(before, after) is not inside, name
    assert len(adapted(agent.policy)) == 7 * 2
    assert describe_adapter(agent.policy).startswith("learns adapters of rank 4 beside 14 layers: ")


def test_weights_are_merged_where_they_are_moved_to(base: Path) -> None:
    agent = learner(base)
    learn(agent)
    merged = dict(named_weights(agent.policy))
    moved = dict(named_weights(agent.policy, lambda tensor: tensor.to("meta")))
    assert all(tensor.is_meta for tensor in moved.values()), "no factor stays where it was"
    assert {name: tensor.shape for name, tensor in moved.items()} == {n: t.shape for n, t in merged.items()}
    for name, layer in adapted(agent.policy).items():
        expected = layer.base_layer.weight + layer.get_delta_weight("default")
        assert torch.equal(merged[f"{name}.weight"], expected), "peft's own sum"


def test_the_shapes_of_the_sent_weights_need_no_merge(base: Path) -> None:
    agent = learner(base)
    gatherer = WeightGatherer(agent.policy, dtype=torch.bfloat16)
    sent = {name: (tensor.shape, tensor.dtype) for name, tensor in gatherer}
    shapes = gatherer.shapes()
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in shapes.items()} == sent
    assert all(tensor.is_meta for tensor in shapes.values())


def test_sent_and_exported_weights_equal_the_trained_policy(base: Path, tmp_path: Path) -> None:
    agent = learner(base)
    learn(agent)
    sent = dict(CastSource(agent.policy, torch.float32))
    assert torch.allclose(plain_logprobs(plain(base, sent)), group_logprobs(agent.logprob_model), atol=1e-5)
    agent.export(str(tmp_path / "agent_0"), ["def f(x):"])
    exported = load_policy(str(tmp_path / "agent_0"), False, torch.device("cpu"))
    assert torch.allclose(plain_logprobs(exported), group_logprobs(agent.logprob_model), atol=1e-5)
    assert checksum(exported) == checksum(agent.policy)
    assert not list((tmp_path / "agent_0").glob("adapter*"))


def test_an_exported_adapter_can_be_merged(base: Path, tmp_path: Path) -> None:
    agent = learner(base, replace(LORA, export="adapter"))
    learn(agent)
    agent.export(str(tmp_path / "agent_0"), ["def f(x):"])
    assert [file.name for file in (tmp_path / "agent_0").glob("*.safetensors")] == [ADAPTER_FILE]
    save_merged_model(str(base), tmp_path / "agent_0", tmp_path / "merged", ModelConfig())
    whole = load_policy(str(tmp_path / "merged"), False, torch.device("cpu"))
    assert checksum(whole) == checksum(agent.policy), "bit-identical to the weights sent to generators"
    assert fingerprint(load_tokenizer(str(tmp_path / "merged"), ModelConfig()), ["def f(x):"]) == fingerprint(
        agent.tokenizer, ["def f(x):"]
    )
    wider = tmp_path / "wider"
    save_tiny_policy(wider, width=16)
    with pytest.raises(UserError, match=r"agent_0 cannot be merged into .*wider: .*of other layers or of another rank"):
        save_merged_model(str(wider), tmp_path / "agent_0", tmp_path / "none", ModelConfig())


def checksum(model: Any) -> int:
    found = Checksum()
    for _ in found.watch(CastSource(model, torch.float32)):
        pass
    return found.value


def test_a_checkpoint_with_an_adapter_resumes_bit_identically(base: Path, tmp_path: Path) -> None:
    agent = learner(base)
    learn(agent)
    agent.save(str(tmp_path / "step" / "agent_0"))
    assert [file.name for file in (tmp_path / "step" / "agent_0").glob("*.safetensors")] == [ADAPTER_FILE]
    other = learner(base, seed=4)
    other.load(str(tmp_path / "step" / "agent_0"), agent.step)
    learn(agent)
    learn(other)
    assert checksum(agent.policy) == checksum(other.policy)


def test_the_seed_determines_the_initial_adapter(base: Path) -> None:
    one, same, other = learner(base), learner(base), learner(base, seed=4)
    torch.rand(3)  # unrelated random numbers
    for of in (one, same, other):
        learn(of)
    assert checksum(one.policy) == checksum(same.policy) != checksum(other.policy)


def test_an_adapter_of_another_rank_is_rejected(base: Path, tmp_path: Path) -> None:
    learner(base).save(str(tmp_path / "step" / "agent_0"))
    with pytest.raises(UserError, match=r"is damaged .it is the adapter of other layers or of another rank"):
        learner(base, LoraConfig(rank=2)).load(str(tmp_path / "step" / "agent_0"), 0)


def test_learners_on_a_shared_model_equal_separate_learners(base: Path, tmp_path: Path) -> None:
    # Their groups alternate, and they take steps at different times.
    apart = {seed: learner(base, seed=seed, kl=0.5) for seed in (3, 4)}
    first = learner(base, seed=3, kl=0.5, name="agent_1")
    sharing = {3: first, 4: learner(base, seed=4, kl=0.5, name="agent_10", beside=first)}
    weights = {id(p): p.numel() for of in sharing.values() for p in of.policy.parameters()}
    untouched = load_policy(str(base), False, torch.device("cpu"))
    adapters = sum(p.numel() for of in apart.values() for p in of.policy.parameters() if p.requires_grad)
    assert sum(weights.values()) == adapters + sum(p.numel() for p in untouched.parameters())

    batches = {
        3: build_batch([group(1.0, 0.0, 0.5), group(0.0, 2.0)], 9),
        4: build_batch([group(0.0, 1.0), group(3.0, 2.0)], 9),
    }
    for step in range(2):
        for start in range(2):
            for seed, of in sharing.items():
                of.activate()
                of.accumulate(step, start, batches[seed].mini_batches[0].groups[start : start + 1])
        for seed, of in sharing.items():
            of.activate()
            mini_batch = replace(batches[seed].mini_batches[0], groups=())
            found = of.finish(Batch(step, (mini_batch,)), 2)
            assert found == apart[seed].update(replace(batches[seed], step=step))
    for seed, of in sharing.items():
        of.activate()
        assert checksum(of.policy) == checksum(apart[seed].policy)
        of.save(str(tmp_path / f"of_{seed}"))
        alone = learner(base, seed=9, kl=0.5)
        alone.load(str(tmp_path / f"of_{seed}"), 2)
        assert checksum(alone.policy) == checksum(of.policy)
    first.activate()
    first.load(str(tmp_path / "of_4"), 2)
    assert checksum(first.policy) == checksum(apart[4].policy)
    sharing[4].activate()
    assert checksum(first.policy) == checksum(apart[4].policy)


@pytest.mark.parametrize("place", ["k1_in_reward", "k3_in_loss"])
def test_the_reference_is_the_policy_without_its_adapter(base: Path, place: str) -> None:
    agents = [learner(base, lora, kl=0.5, reference_kl=place) for lora in (LORA, LoraConfig())]
    assert agents[0].reference is not None
    assert agents[1].reference is not None
    learn(agents[0])
    with torch.no_grad():
        for name, merged in named_weights(agents[0].policy):
            agents[1].policy.get_parameter(name).copy_(merged)
    groups = build_batch([group(1.0, 0.0, 0.5), group(0.0, 2.0)], 9).mini_batches[0].groups
    for one, two in zip(*(agent.reference.rows(groups) for agent in agents if agent.reference), strict=True):
        for mine, theirs in zip(one.completions, two.completions, strict=True):
            assert mine.weight == pytest.approx(theirs.weight, abs=1e-5)
            assert mine.reference_logprobs == pytest.approx(theirs.reference_logprobs, abs=1e-5)


@pytest.mark.parametrize("again", [False, True], ids=["kept", "computed again"])
def test_the_adapters_gradient_follows_from_the_merged_weights(base: Path, again: bool) -> None:
    # d loss / d B = scale * (d loss / d W) A^T, with W's gradient from a model without adapters.
    agent = learner(base, gradient_checkpointing=again, max_grad_norm=1e9)
    learn(agent)
    whole = learner(base, LoraConfig(), max_grad_norm=1e9)
    with torch.no_grad():
        for name, merged in named_weights(agent.policy):
            whole.policy.get_parameter(name).copy_(merged)
    layers = adapted(agent.policy)
    wanted = {name: layer.lora_A["default"].weight.detach().clone() for name, layer in layers.items()}
    batch = build_batch([group(1.0, 0.0, 0.5), group(0.0, 2.0)], 9)
    agent.update(replace(batch, step=agent.step))
    whole.update(batch)
    for name, layer in layers.items():
        found, gradient = layer.lora_B["default"].weight.grad, whole.policy.get_parameter(f"{name}.weight").grad
        assert found is not None
        assert gradient is not None
        assert torch.allclose(found, SCALE * gradient @ wanted[name].T, atol=1e-5)


def test_an_error_names_missing_target_layers(base: Path) -> None:
    with pytest.raises(UserError, match=r"lora\.targets does not fit LlamaForCausalLM: .*nothing"):
        learner(base, LoraConfig(rank=2, targets=("nothing",)))


def test_embeddings_are_rejected_as_targets(base: Path) -> None:
    with pytest.raises(UserError, match=r"lora\.targets names model\.embed_tokens"):
        learner(base, LoraConfig(rank=2, targets=("embed_tokens",)))


def test_frozen_matrices_in_16_bits_do_not_change_training(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train on a CPU in place of a GPU, computing in the same dtype."""
    monkeypatch.setattr(learner_module, "compute_dtype", lambda *_: torch.bfloat16)
    wide, narrow = learner(base, kl=0.1), learner(base, kl=0.1)
    assert not narrows_frozen_matrices(LORA, 1, False, 2)
    assert narrows_frozen_matrices(LORA, 1, True, 2)
    narrow_frozen_matrices(narrow.policy, torch.bfloat16)
    frozen = {id(tensor) for tensor in frozen_matrices(narrow.policy)}
    assert {tensor.dtype for tensor in frozen_matrices(narrow.policy)} == {torch.bfloat16}
    assert {p.dtype for p in narrow.policy.parameters() if id(p) not in frozen} == {torch.float32}
    assert narrow.policy.get_input_embeddings().weight.dtype == torch.float32
    for of in (wide, narrow):
        learn(of)
    own, expected = (list(of.policy.get_adapter_state_dict().values()) for of in (narrow, wide))
    assert own
    assert all(map(torch.equal, own, expected))
    rounded = narrow.policy.state_dict()
    wide.policy.load_state_dict({name: tensor.float() for name, tensor in rounded.items()})
    sent = (dict(CastSource(of.policy, torch.bfloat16)) for of in (narrow, wide))
    for (name, tensor), (other, same) in zip(*(weights.items() for weights in sent), strict=True):
        assert name == other
        assert torch.equal(tensor, same)
