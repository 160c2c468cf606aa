"""One vLLM engine in this process, driven by one thread, with continuous batching over all requests.

The only module that knows vLLM's engine (`engine_settings` has what it is told); `marl_ray.weights` knows its weight
transfer. In-process (`VLLM_ENABLE_V1_MULTIPROCESSING=0`) because on CPU the extra processes of the asynchronous front
end halve the throughput, and one actor is one engine anyway.

New weights come between two steps. Requests in flight keep their keys and values and go on with the new weights
(vLLM's spans say which token is of which version), or are finished first. What is asked for later shares no keys and
values with what came before: the salt of vLLM's prefix cache counts the updates. An engine that sleeps wakes up for new
weights (`marl_ray.actors.sleep`).
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, TypeVar

from marl_ray.actors.handle import ActorBroken
from marl_ray.actors.sleep import Sleep
from marl_ray.actors.vllm_arguments import EngineSpec, engine_arguments, sampling_parameters
from marl_ray.core.episode import Completion, SamplingSpec, WeightVersion

T = TypeVar("T")

PAUSE_S = 0.005
"""Without a request, after which no more are expected of a batch."""
GATHER_S = 0.1
"""The longest that a request waits for others."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One completion before its text is known; the fields are those of `Completion`."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    spans: tuple[tuple[WeightVersion, int], ...]

    def completion(self, text: str) -> Completion:
        return Completion(self.token_ids, text, self.logprobs, self.finish_reason, self.spans)


class Engine:
    """A vLLM engine and the thread that steps it.

    All calls into vLLM happen on that thread, between two steps, in the order they were asked for. A failure in a step
    fails every request in flight and every later one with ActorBroken.

    A completion ends at `eos` (the tokenizer's, which settings may have changed), or at one that the model's
    generation config lists, which vLLM adds by itself.
    """

    def __init__(self, spec: EngineSpec, eos: int | None) -> None:
        from vllm import EngineArgs, LLMEngine

        self._engine = LLMEngine.from_engine_args(EngineArgs(**engine_arguments(spec)))
        self._core: Any = self._engine.engine_core.engine_core  # type: ignore[attr-defined]
        if spec.tensor_parallel > 1:
            _end_with(self._engine)
        self._sleep = Sleep(self._engine, spec.on_gpu)
        self._drain = spec.drain
        self._stops = [] if eos is None else [eos]
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting: dict[str, Future] = {}
        self._requests = 0
        self._updates = 0
        self._held = False
        """During an update, after one that failed, and asleep: there is no step."""
        self._failure: BaseException | None = None
        self._signs: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="vllm-engine", daemon=True)
        self._thread.start()

    def generate(
        self, prompt_ids: list[int], sampling: SamplingSpec, priority: int = 0
    ) -> asyncio.Future[list[Sampled]]:
        """Sample a group. Where there is no room for all, those of lower `priority` go first."""
        future: Future = Future()
        self._inbox.put(lambda: self._add(prompt_ids, sampling, priority, future))
        return asyncio.wrap_future(future)

    def call(self, method: Callable[[Any], T]) -> asyncio.Future[T]:
        """Run `method(llm_engine)` on the engine's thread; resolves to its result."""
        future: Future = Future()

        def command() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(method(self._engine))
            except Exception as error:
                future.set_exception(error)

        self._inbox.put(command)
        return asyncio.wrap_future(future)

    def hold(self, method: Callable[[Any], T]) -> asyncio.Future[T]:
        """`call` the first part of an update: from now on, and until the last, which is a `refit`, there is no step."""
        return self.call(lambda engine: self._update(method))

    def refit(self, method: Callable[[Any], T]) -> asyncio.Future[T]:
        """`call` a whole update, or the last part of one. Where it fails there is no step before another one."""

        def update(engine: Any) -> T:
            result = self._update(method)
            self._updates += 1
            self._salt_those_not_begun()
            self._sleep.wake("kv_cache")
            self._held = False
            return result

        return self.call(update)

    def sleep(self) -> asyncio.Future[None]:
        """Give the device back, but for what a process without a model has of it. There is no step before the next
        `refit`."""

        def begin(engine: Any) -> None:
            self._hold()
            self._sleep.begin()

        return self.call(begin)

    def alive(self) -> asyncio.Future[None]:
        """Resolves once the thread has done what it is at, one step or command; at once during an update, which has
        deadlines of its own. Raises ActorBroken."""
        future: Future = Future()
        self._signs.put(future)
        if self._held:
            self._show_signs()
        self._inbox.put(self._show_signs)
        return asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            idle = self._held or not self._waiting
            try:
                command = self._inbox.get(block=idle)
            except queue.Empty:
                self._step()
                continue
            command()
            if idle:
                self._gather()

    def _gather(self) -> None:
        """A batch's requests come one after another. An engine that had none waits until no more come, so that they
        share the first step: the prompts of all cost little more than those of one."""
        until = time.monotonic() + GATHER_S
        while self._waiting and not self._held and time.monotonic() < until:
            try:
                command = self._inbox.get(timeout=PAUSE_S)
            except queue.Empty:
                return
            command()

    def _show_signs(self) -> None:
        while True:
            try:
                future = self._signs.get_nowait()
            except queue.Empty:
                return
            if not future.set_running_or_notify_cancel():
                continue
            if self._failure is None:
                future.set_result(None)
            else:
                future.set_exception(self._broken())

    def _broken(self) -> ActorBroken:
        return ActorBroken(f"the engine failed in a step: {self._failure}")

    def _update(self, method: Callable[[Any], T]) -> T:
        self._hold()
        self._sleep.wake("weights")
        return method(self._engine)

    def _hold(self) -> None:
        if not self._held:
            self._settle()
            self._held = True
        if self._failure is not None:
            raise self._broken()

    def _settle(self) -> None:
        """No step is under way, and where requests are drained none is in flight.

        On a GPU vLLM begins a step before it has the tokens of the last; those would get the next version's label.
        """
        while self._drain and self._waiting:
            self._step()
        if self._core.batch_queue:
            self._engine.sleep(level=0, mode="keep")
            while self._core.batch_queue and self._failure is None:
                self._step()
            self._engine.wake_up(tags=["scheduling"])

    def _salt_those_not_begun(self) -> None:
        """Requests that have no keys and values yet, or have lost them to others, may not find those of old weights."""
        for request in self._core.scheduler.waiting:
            if request.num_computed_tokens == 0:
                request.cache_salt = str(self._updates)
                request.block_hashes.clear()
                request.update_block_hashes()

    def _add(self, prompt_ids: list[int], sampling: SamplingSpec, priority: int, future: Future) -> None:
        if not future.set_running_or_notify_cancel():
            return
        if self._failure is not None:
            future.set_exception(self._broken())
            return
        self._requests += 1
        name = str(self._requests)
        prompt: Any = {"prompt_token_ids": prompt_ids, "cache_salt": str(self._updates)}
        try:
            self._engine.add_request(name, prompt, sampling_parameters(sampling, self._stops), priority=priority)
        except Exception as error:  # vLLM refused this request: its caller must know, the engine goes on
            future.set_exception(error)
            return
        self._waiting[name] = future

    def _step(self) -> None:
        try:
            outputs: list[Any] = self._engine.step()
            for output in outputs:
                if output.finished:
                    group = [_sampled(o) for o in sorted(output.outputs, key=lambda o: o.index)]
                    self._waiting.pop(output.request_id).set_result(group)
        except Exception as error:  # whatever it is, the engine is unusable and everyone must know
            self._failure = error
            for future in self._waiting.values():
                future.set_exception(self._broken())
            self._waiting.clear()
        self._show_signs()


def _sampled(output: Any) -> Sampled:
    """What is kept of vLLM's output: with log-probabilities asked for as 0 there is one entry a token."""
    ids = tuple(output.token_ids)
    logprobs = tuple(output.logprobs.logprobs)
    if len(logprobs) != len(ids):
        raise RuntimeError(f"vLLM returned {len(logprobs)} log-probabilities for {len(ids)} tokens")
    spans = tuple((int(span.version), span.end - span.start) for span in output.weight_versions or ())
    return Sampled(ids, logprobs, output.finish_reason or "", spans)


def _end_with(engine: Any) -> None:
    """End this process as soon as one of the engine's worker processes ends: the engine would wait for it in vain."""
    workers: Sequence[Any] = engine.model_executor.workers
    sentinels = [worker.proc.sentinel for worker in workers]

    def watch() -> None:
        wait(sentinels)
        os._exit(1)

    threading.Thread(target=watch, name="vllm-workers", daemon=True).start()
