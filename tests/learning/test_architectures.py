"""Random models of many families in their layout (packed or padded), against a computation without batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from marl_ray.core.episode import Completion
from marl_ray.learning.policy_model import choose_layout, load_policy, token_logprobs
from marl_ray.learning.precision import first_layer_of_each_kind
from marl_ray.learning.prompt_rows import PromptRow
from tests.learning.builders import micro_batches, to_rows, unweighted_group

CPU = torch.device("cpu")
MAX_LENGTH = 64
TEMPERATURE = 0.7
SHAPE = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 0,
    "pad_token_id": None,
}
MAMBA = {"mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_chunk_size": 4}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    # Attention only: packed.
    "qwen2": ("packed", {}),
    "qwen3": ("packed", {}),
    "llama": ("packed", {}),
    "phi3": ("packed", {"embd_pdrop": 0.1, "resid_pdrop": 0.1}),
    "starcoder2": ("packed", {"residual_dropout": 0.1, "embedding_dropout": 0.1, "attention_dropout": 0.1}),
    "gpt_neox": ("packed", {"hidden_dropout": 0.1, "attention_dropout": 0.1}),
    "opt": ("packed", {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.1}),
    "mixtral": ("packed", {"num_local_experts": 4, "router_jitter_noise": 0.1, "output_router_logits": True}),
    "qwen3_moe": ("packed", EXPERTS),
    # Windows, softcapping, sinks, attention that cannot be replaced.
    "mistral": ("padded", {"sliding_window": 4}),
    "qwen2_moe": ("padded", {**EXPERTS, "sliding_window": 4, "use_sliding_window": True, "max_window_layers": 0}),
    "gemma2": ("padded", {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 1.0, "attention_dropout": 0.1}),
    "gemma3_text": ("padded", {"sliding_window": 4, "final_logit_softcapping": 1.0}),
    "gpt_oss": ("padded", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4}),
    "gptj": ("padded", {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "resid_pdrop": 0.1}),
    "bloom": ("padded", {"n_layer": 2, "n_head": 4, "hidden_dropout": 0.1}),
    # Layers with a recurrent state.
    "mamba": ("padded", {"state_size": 4}),
    "mamba2": ("padded", {"num_heads": 8, "n_groups": 1, "state_size": 8, "chunk_size": 4}),
    "falcon_h1": ("padded", {**MAMBA, "mamba_d_ssm": 64}),
    "bamba": ("padded", {**MAMBA, "attn_layer_indices": [1]}),
    "qwen3_next": ("padded", {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 16}),
    "lfm2": ("padded", {"layer_types": ["conv", "full_attention"]}),
    # forward has no logits_to_keep.
    "xlstm": ("padded", {"num_heads": 4, "chunk_size": 4, "qk_dim_factor": 0.5}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def saved(family: str, folders: Path) -> Path:
    """Return the folder of a random model of `family`, with weights large enough for small errors to show."""
    folder = folders / family
    if not folder.exists():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**SHAPE, **FAMILIES[family][1]}))
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(folder)
    return folder


def rows() -> list[PromptRow]:
    def completion(*ids: int) -> Completion:
        return Completion(ids, "", (-1.0,) * len(ids), "stop", ((0, len(ids)),))

    long = completion(7, 1, 0, 4, 5, 6, 7, 8, 9, 10)
    groups = [
        unweighted_group(
            0, (5, 6, 7), (completion(1, 2, 3, 0), completion(4, 0), completion(9, 9, 9)), (1.0, 0.5, 3.5)
        ),
        unweighted_group(1, (8,), (completion(3), completion(2, 2, 0), long), (2.0, 2.5, 1.0)),
    ]
    return to_rows(groups, [1.0, 1.0], "magrpo")


def plain_loss(model: Any) -> torch.Tensor:
    """Return the loss computed one sequence at a time with the full softmax."""
    loss = torch.zeros(())
    for row in rows():
        for sample in row.completions:
            ids = torch.tensor([[*row.prompt_ids, *sample.token_ids]])
            scores = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].float() / TEMPERATURE, -1)
            first = len(row.prompt_ids) - 1
            loss = loss - sample.weight * sum(scores[first + k, t] for k, t in enumerate(sample.token_ids))
    return loss


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


def assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Compare to 1e-4 per entry, with rounding relative to the tensor or, for zero tensors, to all of them."""
    whole = max(tensor.abs().max().item() for tensor in expected.values())
    for name, tensor in expected.items():
        floor = max(1e-4 * tensor.abs().max().item(), 1e-6 * whole)
        torch.testing.assert_close(
            got[name], tensor, rtol=1e-4, atol=floor, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradient_equal_the_plain_computation(family: str, folders: Path) -> None:
    folder = str(saved(family, folders))
    plain = load_policy(folder, False, CPU)
    plain.set_attn_implementation("eager")
    expected = plain_loss(plain)
    expected.backward()

    policy = load_policy(folder, False, CPU)
    layout, why = choose_layout(policy, CPU, MAX_LENGTH)
    assert layout == FAMILIES[family][0], why
    assert bool(why) == (layout == "padded")
    for checkpointing in (False, True):
        if checkpointing:
            policy.gradient_checkpointing_enable()
        policy.zero_grad()
        loss = 0.0
        for batch in micro_batches(rows(), 30, layout):
            part = -(batch.weights * token_logprobs(policy, batch, TEMPERATURE)).sum()
            part.backward()
            loss += part.item()
        assert loss == pytest.approx(expected.item(), rel=1e-4)
        assert_same(gradients(policy), gradients(plain))


def stack_name(model: Any) -> str:
    """Return the name of the list of decoder layers."""
    lists = (name for name, module in model.base_model.named_modules() if isinstance(module, torch.nn.ModuleList))
    return next(lists)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_layers_of_each_kind_have_the_layout_of_all(family: str) -> None:
    shape = {**SHAPE, **FAMILIES[family][1], "num_hidden_layers": 6}
    if "layer_types" in shape:
        shape["layer_types"] = shape["layer_types"] * 3
    if "n_layer" in shape:
        shape["n_layer"] = 6
    few, whole = (AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape)).eval() for _ in range(2))
    with first_layer_of_each_kind(few):
        depth = len(few.base_model.get_submodule(stack_name(few)))
        found = choose_layout(few, CPU, MAX_LENGTH)
    assert found == choose_layout(whole, CPU, MAX_LENGTH)
    assert len(few.base_model.get_submodule(stack_name(few))) == 6
    assert depth == {"gemma3_text": 6}.get(family, 2)


@pytest.mark.parametrize("family", ["starcoder2", "gemma2", "mamba", "qwen3_next"])
def test_an_optimizer_step_equals_the_plain_computation(family: str, folders: Path) -> None:
    folder = str(saved(family, folders))
    plain, policy = load_policy(folder, False, CPU), load_policy(folder, False, CPU)
    plain.set_attn_implementation("eager")
    layout, _ = choose_layout(policy, CPU, MAX_LENGTH)
    plain_loss(plain).backward()
    for batch in micro_batches(rows(), 30, layout):
        (-(batch.weights * token_logprobs(policy, batch, TEMPERATURE)).sum()).backward()
    before = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
    for model in (plain, policy):
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    moved = {name: parameter.detach() - before[name] for name, parameter in policy.named_parameters()}
    assert_same(moved, {name: parameter.detach() - before[name] for name, parameter in plain.named_parameters()})
    assert any(tensor.any() for tensor in moved.values())


@pytest.mark.parametrize("family", [name for name, (layout, _) in FAMILIES.items() if layout == "padded"])
def test_padding_does_not_affect_real_tokens(family: str, folders: Path) -> None:
    policy = load_policy(str(saved(family, folders)), False, CPU)
    choose_layout(policy, CPU, MAX_LENGTH)
    ids = torch.tensor([[5, 6, 7, 1, 2]])
    with torch.no_grad():
        alone = policy(input_ids=ids, use_cache=False).logits[0]
        for filling in (0, 9):
            beside = torch.tensor([[*ids[0].tolist(), *[filling] * 12], list(range(3, 20))])
            torch.testing.assert_close(
                policy(input_ids=beside, use_cache=False).logits[0, :5], alone, rtol=1e-4, atol=1e-5
            )
