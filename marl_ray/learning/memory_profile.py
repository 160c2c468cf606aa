"""A micro-batch on tensors without data: what memory and what arithmetic it takes, before anything is loaded.

The model is built from its configuration alone, on fake tensors, which have shapes and no numbers, and computes a
forward and a backward pass through this package's own batches, attention and loss. What lives at the same time is
counted storage by storage, so that every architecture, adapters and gradient checkpointing are counted as they are.
What a kernel needs inside of itself is not seen.
"""

from __future__ import annotations

import copy
import weakref
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from marl_ray.config import LoraConfig
from marl_ray.learning.attention import PACKED
from marl_ray.learning.logprobs import token_logprobs_and_entropies
from marl_ray.learning.losses import policy_gradient
from marl_ray.learning.micro_batches import Layout, MicroBatch, PromptRow, WeightedCompletion, pack, pad
from marl_ray.learning.policy_model import compute_in, remove_noise, token_logits
from marl_ray.models.lora import add_adapter

FEW = (2, 4)
"""Layers of the two models that stand for one of many."""


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """What was found. Memory in bytes.

    parameters: all numbers of the model, adapters included and shared ones once; trained: those that learn; rows: the
    rows and columns of the matrices that learn, which is what Adafactor keeps; largest: numbers of the largest tensor
    that learns; embeddings: of the input's and output's layers; layers: of what is stacked.

    activations: what lives beside weights and gradients when the need is largest, the logits and what is as large as
    they are apart; logits: those; tokens: of the micro-batch; flops: of its forward and backward pass without
    attention's products; layout: of the micro-batch.
    """

    parameters: int
    trained: int
    rows: int
    largest: int
    embeddings: int
    layers: int
    activations: int
    logits: int
    tokens: int
    flops: int
    layout: str


@dataclass(frozen=True, slots=True)
class MicroBatchShape:
    """A micro-batch at its largest: `groups` prompts of `prompt` tokens, each with `completions` of `completion`
    tokens. `accumulated`: another micro-batch of the same step came before."""

    groups: int
    prompt: int
    completions: int
    completion: int
    accumulated: bool


class MemoryTracker(TorchDispatchMode):
    """Counts the bytes of storages from when an operation returns them until they are freed, but for those of the
    model, which were there before."""

    def __init__(self, model: torch.nn.Module, wide: int) -> None:
        super().__init__()
        self._wide = wide
        there = (*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None))
        self._known: dict[int, Any] = {tensor.untyped_storage()._cdata: None for tensor in there}
        self._now = [0, 0]  # others, and those of `wide` numbers
        self.peak = (0, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor)
        return result

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size, kind = storage.nbytes(), int(tensor.numel() == self._wide)

        def freed(_: Any) -> None:
            del self._known[key]
            self._now[kind] -= size

        self._known[key] = weakref.ref(storage, freed)
        self._now[kind] += size
        if sum(self._now) > sum(self.peak):
            self.peak = (self._now[0], self._now[1])


def profile_memory(
    settings: Any,
    shape: MicroBatchShape,
    lora: LoraConfig,
    gradient_checkpointing: bool,
    dtype: str = "float32",
    on_gpu: bool = False,
    trust_remote_code: bool = False,
) -> MemoryProfile:
    """`settings` is transformers' configuration of the model, which is left as it was; `dtype` that of the engines.

    Where all layers are alike, two models of a few of them are computed, and what a layer adds is counted as often as
    there are further ones. Raises what transformers and peft raise for a model that they cannot make.
    """
    settings = copy.deepcopy(settings)
    remove_noise(settings)
    own = getattr(torch, dtype)
    # On a GPU: the same operations in the same types, of a CPU, where fake tensors know the kernels.
    autocast = on_gpu and own != torch.float32
    computing = (
        torch.autocast("cpu", dtype=own, cache_enabled=False) if autocast else compute_in(own, torch.device("cpu"))
    )
    whole = _made(settings, lora, trust_remote_code)
    learning = [parameter for parameter in whole.parameters() if parameter.requires_grad]
    ends = {id(layer.weight): layer.weight for layer in (whole.get_input_embeddings(), whole.get_output_embeddings())}
    layers = getattr(settings.get_text_config(), "num_hidden_layers", 0)
    short = [_shortened(settings, few) for few in FEW]
    if layers > FEW[-1] and None not in short:
        less, more = (
            _play(_made(few, lora, trust_remote_code), shape, gradient_checkpointing, computing) for few in short
        )
        played = more.further(less, (layers - FEW[1]) / (FEW[1] - FEW[0]))
    else:
        played = _play(whole, shape, gradient_checkpointing, computing)
    return MemoryProfile(
        parameters=sum(parameter.numel() for parameter in whole.parameters()),
        trained=sum(parameter.numel() for parameter in learning),
        rows=sum(sum(p.shape[-2:]) * p.shape[:-2].numel() if p.dim() > 1 else p.numel() for p in learning),
        largest=max(parameter.numel() for parameter in learning),
        embeddings=sum(weight.numel() for weight in ends.values()),
        layers=layers,
        activations=played.activations,
        logits=played.logits,
        tokens=played.tokens,
        flops=played.flops,
        layout=played.layout,
    )


def count_parameters(settings: Any, trust_remote_code: bool = False) -> int:
    """Numbers of a model's weights, shared ones once."""
    return sum(parameter.numel() for parameter in _made(settings, LoraConfig(), trust_remote_code).parameters())


@dataclass(frozen=True, slots=True)
class _Played:
    """See `MemoryProfile`."""

    activations: int
    logits: int
    flops: int
    tokens: int
    layout: str

    def further(self, less: _Played, more: float) -> _Played:
        """With further layers: so many times those that this has beyond `less`."""
        layers = int(more * (self.activations + self.logits - less.activations - less.logits))
        flops = int(more * (self.flops - less.flops))
        return replace(self, activations=self.activations + layers, flops=self.flops + flops)


def _shortened(settings: Any, layers: int) -> Any:
    """The settings of a model of so few layers; None where its layers differ."""
    short = copy.deepcopy(settings)
    text = short.get_text_config()
    kinds = getattr(text, "layer_types", None)
    if kinds is not None:
        if len(set(kinds)) > 1:
            return None
        text.layer_types = kinds[:layers]
    text.num_hidden_layers = layers
    return short


def _made(settings: Any, lora: LoraConfig, trust_remote_code: bool) -> Any:
    """The model on device meta, its adapters added."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(
            settings, dtype=torch.float32, trust_remote_code=trust_remote_code
        )
        if lora.rank:
            add_adapter(model, lora, 0)
    return model.train()


def _play(
    model: Any, shape: MicroBatchShape, gradient_checkpointing: bool, computing: AbstractContextManager[Any]
) -> _Played:
    """Packed if the model can do that."""
    own = model.config._attn_implementation
    packed, padded = _batches(shape)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    with FakeTensorMode(allow_non_fake_inputs=True):
        _make_fake(model)
        if shape.accumulated:
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.empty_like(parameter)
        try:
            model.set_attn_implementation(PACKED)
            return _measured(model, packed, "packed", computing)
        except (ValueError, AttributeError, KeyError, RuntimeError, TypeError):
            model.set_attn_implementation(own)
            return _measured(model, padded, "padded", computing)


def _make_fake(model: Any) -> None:
    """Fake tensors of the CPU in place of those of device meta, which know no kernels; shared ones stay shared."""
    made: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, old in module._parameters.items():
            if old is not None:
                new = torch.nn.Parameter(torch.empty(old.shape, dtype=old.dtype), old.requires_grad)
                module._parameters[name] = made.setdefault(id(old), new)
        for name, old in module._buffers.items():
            if old is not None:
                module._buffers[name] = torch.empty(old.shape, dtype=old.dtype)


def _batches(shape: MicroBatchShape) -> tuple[MicroBatch, MicroBatch]:
    """Packed and padded."""
    completion = WeightedCompletion((0,) * shape.completion, (0.0,) * shape.completion, 1.0)
    row = PromptRow((0,) * shape.prompt, (completion,) * shape.completions)
    packed = pack([row] * shape.groups)
    single = PromptRow(row.prompt_ids, (completion,))
    fit = max(1, packed.input_ids.numel() // single.size)
    return packed, pad([single] * fit)


def _measured(model: Any, batch: MicroBatch, layout: Layout, computing: AbstractContextManager[Any]) -> _Played:
    wide = len(batch.tokens) * model.get_output_embeddings().out_features
    with MemoryTracker(model, wide) as living, FlopCounterMode(display=False) as flops:
        with computing:
            logits = token_logits(model, batch)
            logprobs, _ = token_logprobs_and_entropies(logits, batch.tokens, 1.0)
            del logits
            loss = policy_gradient(logprobs, batch.weights)
        loss.backward()
    activations, logits = living.peak
    return _Played(activations, logits, flops.get_total_flops(), batch.input_ids.numel(), layout)
