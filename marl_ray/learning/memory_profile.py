"""Memory and FLOPs of a micro-batch, computed on fake tensors before a model is loaded.

The model runs a forward and a backward pass with this package's micro-batches, attention and loss. Memory is counted
per storage, which includes any architecture, adapters and gradient checkpointing, but no workspace inside kernels.
"""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

from marl_ray.config import LoraConfig
from marl_ray.learning.attention import PACKED, PackedGroups
from marl_ray.learning.losses.policy_gradient import policy_gradient
from marl_ray.learning.micro_batches import Layout, MicroBatch, pack, pad
from marl_ray.learning.policy_model import LogprobModel, empty_model, has_final_head, remove_noise
from marl_ray.learning.precision import cast_on_forward, compute_dtype
from marl_ray.learning.prompt_rows import PromptRow, WeightedCompletion
from marl_ray.learning.torch_private import (
    FakeTensorMode,
    TorchDispatchMode,
    buffers_of,
    packet_of,
    parameters_of,
    storage_key,
    tree_leaves,
)
from marl_ray.models.lora import add_adapter, frozen_matrices, trainable

SHALLOW = (2, 4)
"""Numbers of layers of the two models from which deeper models are extrapolated."""


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Memory in bytes and other sizes of a model and its largest micro-batch.

    - parameters: all parameters, with adapters, shared ones once; trained: trainable ones;
    - rows: rows plus columns of the trainable matrices, which is the size of Adafactor's state;
    - largest: values of the largest parameter; embeddings: parameters of input and output layers;
    - frozen_matrices: values of the matrices that LoRA freezes (`marl_ray.models.lora.frozen_matrices`);
    - activations: peak memory beside weights and gradients, without tensors of the logits' size, which are `logits`;
    - tokens, layout: of the micro-batch; flops: of its forward and backward pass without attention scores.
    """

    parameters: int
    trained: int
    rows: int
    largest: int
    embeddings: int
    frozen_matrices: int
    layers: int
    activations: int
    logits: int
    tokens: int
    flops: int
    layout: str


@dataclass(frozen=True, slots=True)
class MicroBatchShape:
    """The largest micro-batch: `groups` prompts of `prompt` tokens, each with `completions` of `completion` tokens.

    accumulated: gradients of an earlier micro-batch of the same step are in memory.
    """

    groups: int
    prompt: int
    completions: int
    completion: int
    accumulated: bool


class MemoryTracker(TorchDispatchMode):
    """The peak bytes of new storages, tensors of `logits_numel` elements and others, and the FLOPs without attention.

    Two tools of torch do not fit. MemTracker fails for models with frozen parameters (adapters), reports less with
    gradient checkpointing, and does not separate tensors of the logits' size. FlopCounterMode keeps tensors alive that
    gradient checkpointing recomputes, so every further layer would count all of its activations.
    """

    def __init__(self, model: torch.nn.Module, logits_numel: int) -> None:
        super().__init__()
        self._logits_numel = logits_numel
        self._known: dict[int, Any] = {}
        """Storages that are counted already, and with a weak reference the ones that are counted here."""
        for tensor in (*model.parameters(), *model.buffers()):
            self._known[storage_key(tensor)] = None
            if tensor.grad is not None:
                self._known[storage_key(tensor.grad)] = None
        self._now = [0, 0]  # other storages, and storages of the logits' size
        self.peak = (0, 0)
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        operator = packet_of(func)
        if operator in flop_registry and "att" not in str(operator):
            self.flops += flop_registry[operator](*args, **kwargs, out_val=result)
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._track(tensor)
        return result

    def _track(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage_key(tensor)
        if key in self._known:
            return
        size = storage.nbytes()
        kind = int(tensor.numel() == self._logits_numel)  # index in `_now`

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
    """Profile a micro-batch of this shape.

    `settings` is transformers' configuration of the model, `dtype` that of the engines. If all layers are alike, two
    shallow models are profiled and the difference per layer is extrapolated. Raises the errors of transformers and peft
    for models that they cannot build.
    """
    settings = copy.deepcopy(settings)
    remove_noise(settings)
    engine_dtype = getattr(torch, dtype)
    # The same operations and dtypes as on a GPU, on fake CPU tensors.
    computing = compute_dtype(engine_dtype, torch.device("cuda" if on_gpu else "cpu"))
    is_varlen = on_gpu and engine_dtype != torch.float32

    def measure(model: Any) -> _Measurement:
        return _run_micro_batch(model, shape, gradient_checkpointing, computing, is_varlen)

    whole = _meta_model(settings, lora, trust_remote_code)
    layers = getattr(settings.get_text_config(), "num_hidden_layers", 0)
    short = [_with_fewer_layers(settings, few) for few in SHALLOW]
    if layers > SHALLOW[-1] and None not in short:
        less, more = (measure(_meta_model(few, lora, trust_remote_code)) for few in short)
        measured = more.with_layers(less, (layers - SHALLOW[1]) / (SHALLOW[1] - SHALLOW[0]))
    else:
        measured = measure(whole)
    sizes = [parameter.numel() for parameter in whole.parameters()]
    learning = list(trainable(whole))
    ends = {whole.get_input_embeddings().weight, whole.get_output_embeddings().weight}  # one if they are tied
    return MemoryProfile(
        parameters=sum(sizes),
        trained=sum(parameter.numel() for parameter in learning),
        rows=sum(map(_rows_and_columns, learning)),
        largest=max(sizes),
        embeddings=sum(weight.numel() for weight in ends),
        frozen_matrices=sum(tensor.numel() for tensor in frozen_matrices(whole)),
        layers=layers,
        **measured._asdict(),
    )


def _rows_and_columns(parameter: torch.Tensor) -> int:
    """Return the number of rows plus columns of a matrix, or of stacked matrices; of a vector its length."""
    if parameter.dim() < 2:
        return parameter.numel()
    return sum(parameter.shape[-2:]) * parameter.shape[:-2].numel()


def parameter_sizes(settings: Any, trust_remote_code: bool = False) -> list[int]:
    """Return the number of values of each parameter."""
    return [parameter.numel() for parameter in _meta_model(settings, LoraConfig(), trust_remote_code).parameters()]


class _Measurement(NamedTuple):
    """Measurements of one micro-batch (see `MemoryProfile`)."""

    activations: int
    logits: int
    flops: int
    tokens: int
    layout: str

    def with_layers(self, less: _Measurement, more: float) -> _Measurement:
        """Extrapolate to more layers: add `more` times the difference to the measurement `less`."""
        activations = int(more * (self.activations + self.logits - less.activations - less.logits))
        flops = int(more * (self.flops - less.flops))
        return self._replace(activations=self.activations + activations, flops=self.flops + flops)


def _with_fewer_layers(settings: Any, layers: int) -> Any:
    """Return the configuration with this number of layers, or None if layers differ."""
    short = copy.deepcopy(settings)
    text = short.get_text_config()
    kinds = getattr(text, "layer_types", None)
    if kinds is not None:
        if len(set(kinds)) > 1:
            return None
        text.layer_types = kinds[:layers]
    text.num_hidden_layers = layers
    return short


def _meta_model(settings: Any, lora: LoraConfig, trust_remote_code: bool) -> Any:
    """Return the model on the meta device, with adapters."""
    model = empty_model(settings, trust_remote_code)
    if lora.rank:
        with torch.device("meta"):
            add_adapter(model, lora, 0)
    return model.train()


def _run_micro_batch(
    model: Any,
    shape: MicroBatchShape,
    gradient_checkpointing: bool,
    computing: torch.dtype,
    is_varlen: bool,
) -> _Measurement:
    attention = model.config._attn_implementation
    packed, padded = _batches(shape, is_varlen)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    with FakeTensorMode(allow_non_fake_inputs=True):
        _make_fake(model)
        cast_on_forward(model, computing)
        if shape.accumulated:
            for parameter in trainable(model):
                parameter.grad = torch.empty_like(parameter)
        try:
            model.set_attn_implementation(PACKED)
            return _measured(model, packed, "packed", computing)
        except (ValueError, AttributeError, KeyError, RuntimeError, TypeError):
            model.set_attn_implementation(attention)
            return _measured(model, padded, "padded", computing)


def _make_fake(model: Any) -> None:
    """Replace tensors of the meta device by fake CPU tensors, for which kernels exist; shared tensors stay shared."""
    made: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        parameters = parameters_of(module)
        for name, old in parameters.items():
            if old is not None:
                new = torch.nn.Parameter(torch.empty(old.shape, dtype=old.dtype), old.requires_grad)
                parameters[name] = made.setdefault(id(old), new)
        buffers = buffers_of(module)
        for name, buffer in buffers.items():
            if buffer is not None:
                buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def _batches(shape: MicroBatchShape, is_varlen: bool = False) -> tuple[MicroBatch, MicroBatch]:
    """Return the micro-batch in the packed and in the padded layout."""
    completion = WeightedCompletion((0,) * shape.completion, (0.0,) * shape.completion, 1.0)
    single = PromptRow((0,) * shape.prompt, (completion,))
    packed = pack([PromptRow(single.prompt_ids, (completion,) * shape.completions)] * shape.groups)
    assert packed.groups is not None
    packed = replace(packed, groups=PackedGroups(packed.groups.groups, is_varlen))
    return packed, pad([single] * max(1, packed.input_ids.numel() // single.size))


def _measured(model: Any, batch: MicroBatch, layout: Layout, dtype: torch.dtype) -> _Measurement:
    logits_numel = len(batch.tokens) * model.get_output_embeddings().out_features
    policy = LogprobModel(model, layout, 1.0, dtype, final_head=has_final_head(model, batch))
    with MemoryTracker(model, logits_numel) as tracker:
        logprobs, _ = policy.score(batch)
        policy_gradient(logprobs, batch.weights).backward()
    activations, logits = tracker.peak
    return _Measurement(activations, logits, tracker.flops, batch.input_ids.numel(), layout)
