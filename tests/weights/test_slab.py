"""Weights that pass from a learner to an engine through one buffer, on the CPU in one process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from marl_ray.weights import slab, slab_engine
from marl_ray.weights.deltas import Checksum
from marl_ray.weights.recorded_copies import CannotRecord, record, sum_of_words
from marl_ray.weights.sender import CastSource
from marl_ray.weights.slab import SlabLayout, SlabWriter
from marl_ray.weights.slab_engine import SlabEngine
from tests.weights.vllm_models import make_models, vllm_on_cpu

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 32}
DENSE = {"vocab_size": 512, "num_key_value_heads": 2, "max_position_embeddings": 64, **SHAPE}
CONFIGS = {
    "qwen2, tied": AutoConfig.for_model("qwen2", tie_word_embeddings=True, **DENSE),
    "llama": AutoConfig.for_model("llama", tie_word_embeddings=False, **DENSE),
    "qwen3_moe": AutoConfig.for_model("qwen3_moe", **DENSE, **EXPERTS),
    "gpt_neox": AutoConfig.for_model("gpt_neox", vocab_size=512, max_position_embeddings=64, **SHAPE),
}


@pytest.fixture(scope="module", autouse=True)
def _vllm() -> Iterator[None]:
    with vllm_on_cpu():
        yield


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the handle of a slab be the slab itself, which CUDA IPC would map into another process."""
    monkeypatch.setattr(slab, "export_slab", lambda tensor: {"gpu": (tensor,)})
    monkeypatch.setattr(slab_engine, "open_slab", lambda handles, device: handles["gpu"][0])


@pytest.fixture
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let vLLM's linear layers keep their parameters; on a CPU they repack them."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    for method in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod):
        monkeypatch.setattr(method, "process_weights_after_loading", lambda self, layer: None)


def test_a_layout_aligns_weights_and_divides_them_into_chunks() -> None:
    shapes = {
        "first": torch.empty(3, 5, dtype=torch.bfloat16, device="meta"),
        "second": torch.empty(9, device="meta"),
        "large": torch.empty(100, device="meta"),
        "last": torch.empty(1, dtype=torch.bfloat16, device="meta"),
    }
    layout = SlabLayout.of(shapes, 80)
    assert [(p.name, p.chunk, p.offset) for p in layout.places] == [
        ("first", 0, 0),
        ("second", 0, 32),
        ("large", 1, 0),
        ("last", 2, 0),
    ]
    assert layout.nbytes == 400
    buffer = slab.allocate_slab(layout.nbytes, CPU)
    layout.views(buffer, 0)["second"].fill_(1.0)
    assert layout.views(buffer, 0)["first"].shape == (3, 5)
    assert torch.equal(buffer[32:68].view(torch.float32), torch.ones(9))
    assert not buffer[:32].any()


def shapes_of(model: Any) -> dict[str, torch.Tensor]:
    return CastSource(model, torch.bfloat16, device=CPU).shapes


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_recorded_copies_load_what_the_model_loads(tmp_path: Path, config: Any) -> None:
    trained, served, _ = make_models(config, tmp_path)
    copies = record(served, shapes_of(trained))
    assert all((parameter == 0.5).all() for parameter in served.parameters()), "recording changes nothing"
    source = CastSource(trained, torch.bfloat16, device=CPU)
    writer, layout = write(source, chunk_bytes=20_000)
    assert len(layout.chunks) > 2
    copies.bind(layout, writer._slab)  # type: ignore[arg-type]
    found = {}
    total = 0
    for chunk in writer._fill(writer._slab):  # type: ignore[arg-type]
        copies.copy(chunk)
        total += int(sum_of_words(layout.used(writer._slab, chunk)))  # type: ignore[arg-type]
    assert copies.sum_of_parameters() == total
    for name, parameter in served.named_parameters():
        found[name] = parameter.clone()
        parameter.data.fill_(0.5)
    served.load_weights(iter(source))
    for name, parameter in served.named_parameters():
        assert torch.equal(parameter, found[name]), name
    for name, weight in source:
        read = torch.empty_like(weight)
        copies.read(name, read)
        assert torch.equal(read, weight), name


class Computes(torch.nn.Module):
    """A model that adds one to its weight, as Gemma does in some implementations, or leaves out a half."""

    def __init__(self, part: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4))
        self.part = part

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for _, weight in weights:
            if self.part:
                self.weight.data[:2].copy_(weight[:2])
            else:
                self.weight.data.copy_(weight + 1)


@pytest.mark.parametrize(("part", "reason"), [(True, "2 of 4 values of weight"), (False, "computed with")])
def test_a_model_that_does_more_than_to_copy_is_not_recorded(part: bool, reason: str) -> None:
    with pytest.raises(CannotRecord, match=reason):
        record(Computes(part), {"weight": torch.empty(4, device="meta")})


def write(source: CastSource, chunk_bytes: int) -> tuple[SlabWriter, SlabLayout]:
    layout = SlabLayout.of(source.shapes, chunk_bytes)
    writer = SlabWriter(source, layout, CPU, lambda value: [value], lambda: None)
    writer._open()
    return writer, layout


class Client:
    """A client whose engine is in this process."""

    def __init__(self, engine: SlabEngine) -> None:
        self.engine = engine
        self.stages: list[str] = []

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.stages.append("init")
        self.engine.init_transfer_engine(self.engine.parse_init_info(init_info))

    def start_weight_update(self) -> None:
        self.stages.append("start")
        self.engine.start_weight_update()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.engine.update_weights(update_info)

    def finish_weight_update(self) -> None:
        self.engine.finish_weight_update()


def make_engine(served: Any, vllm_config: Any) -> SlabEngine:
    return SlabEngine(SimpleNamespace(), vllm_config, CPU, served)


def test_an_engine_reloads_once_and_then_copies(
    tmp_path: Path, as_on_cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, served, vllm_config = make_models(CONFIGS["qwen2, tied"], tmp_path)
    source = CastSource(trained, torch.bfloat16, device=CPU)
    writer, _ = write(source, 20_000)
    engine = make_engine(served, vllm_config)
    client = Client(engine)
    reloads = []
    reload = slab_engine.initialize_layerwise_reload
    monkeypatch.setattr(
        slab_engine, "initialize_layerwise_reload", lambda model: (reloads.append(1), reload(model))[-1]
    )
    addresses = {name: parameter.data_ptr() for name, parameter in served.named_parameters()}
    for update in range(3):
        with torch.no_grad():
            for parameter in trained.parameters():
                parameter.add_(0.1 * update)
        writer.send(client)
        assert engine.checksum.value == writer.checksum.value
        check_equal(served, source)
    assert len(reloads) == 1
    assert {name: parameter.data_ptr() for name, parameter in served.named_parameters()} == addresses
    assert client.stages == ["init", "start", "start", "start"]


def check_equal(served: Any, source: CastSource) -> None:
    """Compare the served parameters with the result of vLLM's own loader."""
    found = {name: parameter.clone() for name, parameter in served.named_parameters()}
    served.load_weights(iter(source))
    for name, parameter in served.named_parameters():
        assert torch.equal(parameter, found[name]), name


def test_repacked_layers_are_reloaded_in_every_update(
    tmp_path: Path, as_on_cuda: None, caplog: pytest.LogCaptureFixture
) -> None:
    trained, served, vllm_config = make_models(CONFIGS["llama"], tmp_path)
    for module in served.modules():
        if type(module).__name__ == "QKVParallelLinear":
            module.quant_method = type("PackedLinearMethod", (type(module.quant_method),), {})()
    writer, _ = write(CastSource(trained, torch.bfloat16, device=CPU), 2**30)
    engine = make_engine(served, vllm_config)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            writer.send(Client(engine))
    assert engine._copies is None
    assert caplog.text.count("weights are loaded layer by layer: its layers use PackedLinearMethod") == 1


def test_parameters_that_differ_from_the_sent_weights_are_an_error(tmp_path: Path, as_on_cuda: None) -> None:
    trained, served, vllm_config = make_models(CONFIGS["llama"], tmp_path)
    writer, _ = write(CastSource(trained, torch.bfloat16, device=CPU), 2**30)
    engine = make_engine(served, vllm_config)
    writer.send(Client(engine))
    assert engine._copies is not None
    dropped = next(iter(engine._copies._copies.values()))
    dropped[0].target.fill_(3.0)
    engine._copies._copies[next(iter(engine._copies._copies))] = []
    engine._copies.bind(writer.layout, writer._slab)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="the parameters of the engine differ from the weights that were sent"):
        writer.send(Client(engine))
    writer.send(Client(engine))  # layer by layer again
    assert engine.checksum.value == writer.checksum.value


def test_an_interrupted_update_is_followed_by_a_complete_one(tmp_path: Path, as_on_cuda: None) -> None:
    trained, served, vllm_config = make_models(CONFIGS["llama"], tmp_path)
    source = CastSource(trained, torch.bfloat16, device=CPU)
    writer, layout = write(source, 20_000)
    engine = make_engine(served, vllm_config)
    for update in range(2):  # in the reload, and in the copies
        client = Client(engine)
        client.init_weight_transfer_engine({"handles": writer._handles, "layout": layout})
        client.start_weight_update()
        client.update_weights({"chunk": 0})
        engine.finish_weight_update()  # what `abandon_weight_update` does
        assert (engine._copies is None) == (update == 0)
        writer.send(Client(engine))
        assert engine.checksum.value == writer.checksum.value
        check_equal(served, source)


def test_the_checksum_depends_on_every_word_of_a_chunk() -> None:
    shapes = {"a": torch.empty(5, device="meta"), "b": torch.empty(3, dtype=torch.bfloat16, device="meta")}
    layout = SlabLayout.of(shapes, 100)
    buffer = slab.allocate_slab(layout.nbytes, CPU)

    def value() -> int:
        checksum = Checksum(deferred=True)
        slab.add_chunk(checksum, layout, buffer, 0)
        return checksum.value

    before = value()
    for view in layout.views(buffer, 0).values():
        for index in range(view.numel()):
            view[index] = 1.5
            assert value() != before
            view[index] = 0.0
    assert value() == before
