"""The engine is built and used by one thread, because vLLM's CUDA streams belong to threads."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from marl_ray.actors.engine import Engine
from tests.actors.helpers import SAMPLING, SPEC
from tests.actors.stub_engine import use_stub_engine


def test_the_thread_that_builds_the_engine_also_steps_and_updates_it(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stub_engine(monkeypatch, lambda: SimpleNamespace(memory_in_use=lambda: 0))

    async def scenario() -> None:
        engine = Engine(SPEC, None)
        await engine.generate([1], SAMPLING, 0)
        threads = await engine.call(lambda vllm: vllm.collective_rpc("memory_in_use") and vllm.threads)
        assert threads.keys() == {"build", "step", "memory_in_use"}
        assert len(set(threads.values()) - {threading.get_ident()}) == 1

    asyncio.run(scenario())


def test_an_engine_that_cannot_be_built_raises_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ValueError("no such model")

    use_stub_engine(monkeypatch, refuse)
    with pytest.raises(ValueError, match="no such model"):
        Engine(SPEC, None)


@pytest.mark.slow
@pytest.mark.parametrize("one_thread", [True, False])
def test_vllm_copies_tokens_after_the_steps_only_if_one_thread_builds_and_steps(
    one_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run vLLM's own stream functions on fake streams: the runner is built, NCCL's first communicator is made, and the
    first step copies its tokens."""
    import torch
    from vllm.platforms import current_platform
    from vllm.utils import torch_utils
    from vllm.v1.worker.gpu.async_utils import stream
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    class Stream:
        def wait_stream(self, other: Stream) -> None:
            pass

    current, default = threading.local(), Stream()  # CUDA's current stream, per thread
    monkeypatch.setattr(torch_utils, "prev_set_stream", lambda stream: setattr(current, "stream", stream))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: getattr(current, "stream", default))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(type(current_platform), "is_cuda", lambda self: True)
    runner: Any = GPUModelRunner.__new__(GPUModelRunner)
    runner.device = None

    def build() -> None:
        with stream(Stream(), runner.main_stream):  # type: ignore[arg-type]
            pass  # the copy of a warm-up step's tokens

    def make_communicator() -> None:
        torch_utils.current_stream()

    copied_after_step: list[bool] = []

    def step() -> None:
        copied_after_step.append(runner.main_stream is torch.cuda.current_stream())

    def work(*parts: Any) -> None:
        thread = threading.Thread(target=lambda: [part() for part in parts])
        thread.start()
        thread.join()

    if one_thread:
        work(build, make_communicator, step)
    else:
        work(build)
        work(make_communicator, step)
    assert copied_after_step == [one_thread]
