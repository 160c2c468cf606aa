"""A stand-in for vLLM's engine in the tests of `Engine`, without a model."""

from __future__ import annotations

import sys
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from marl_ray.actors import engine as engine_module


class StubEngine:
    """A `LLMEngine` that records its threads. `worker` executes collective calls."""

    def __init__(self, worker: Any = None) -> None:
        self.worker, self.version = worker, "0"
        self.requests: list[str] = []
        self.threads = {"build": threading.get_ident()}
        scheduler = SimpleNamespace(waiting=deque())
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(batch_queue=None, scheduler=scheduler))

    def add_request(self, name: str, *_: Any, **__: Any) -> None:
        self.requests.append(name)

    def step(self) -> list[Any]:
        self.threads["step"] = threading.get_ident()
        logprobs = SimpleNamespace(logprobs=())
        output = SimpleNamespace(
            token_ids=(), text="", logprobs=logprobs, index=0, finish_reason="stop", weight_versions=()
        )
        request = self.requests.pop()
        return [SimpleNamespace(finished=True, request_id=request, outputs=[output], lora_request=None)]

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        self.threads[method] = threading.get_ident()
        return [getattr(self.worker, method)(*args)]

    def set_weight_version(self, version: str) -> None:
        self.version = version

    def get_weight_version(self) -> str:
        return self.version


def use_stub_engine(patch: pytest.MonkeyPatch, worker: Any = None) -> None:
    """Let `Engine` build stubs in place of vLLM's engines."""
    vllm = SimpleNamespace(
        EngineArgs=dict, LLMEngine=SimpleNamespace(from_engine_args=lambda *_: StubEngine(worker and worker()))
    )
    usage = SimpleNamespace(UsageContext=SimpleNamespace(LLM_CLASS="offline", ENGINE_CONTEXT="engine"))
    patch.setitem(sys.modules, "vllm", vllm)  # type: ignore[misc]
    patch.setitem(sys.modules, "vllm.usage.usage_lib", usage)  # type: ignore[misc]
    patch.setattr(engine_module, "engine_arguments", lambda spec: {})
    patch.setattr(engine_module, "sampling_parameters", lambda *_: None)
