"""One vLLM engine in this process, driven by one thread, with continuous batching over all requests.

The engine runs in-process, because the additional processes of vLLM's asynchronous front end halve the throughput on a
CPU. Only this module uses vLLM's engine; `marl_ray.weights` uses its weight transfer and its adapters. Private names,
and a comparison with the asynchronous front end, are in `marl_ray.actors.vllm_private`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import wait
from typing import Any, TypeVar

from marl_ray.actors.engine_arguments import EngineSpec, engine_arguments
from marl_ray.actors.engine_sleep import EngineSleep
from marl_ray.actors.handle import ActorBroken
from marl_ray.actors.vllm_private import exclude_from_prefix_cache, has_steps_in_progress, worker_sentinels
from marl_ray.core.episode import Completion, SamplingSpec
from marl_ray.core.errors import UserError
from marl_ray.weights.version_labels import spans_of

T = TypeVar("T")
OnTokens = Callable[[tuple[int, ...], str], None]
"""Receives a streamed completion's tokens and, with stop texts, text before any stop text, on the engine's thread."""

IDLE_GAP_S = 0.005
"""Pause without a new request after which a batch counts as complete."""
MAX_BATCH_WAIT_S = 0.1
"""Maximum time that a request waits for the rest of its batch."""


def engine_facts(engine: Any) -> dict[str, str]:
    """Return the model runner, attention backend and scheduling mode of vLLM's `LLMEngine`."""
    runner, attention = engine.collective_rpc("runner_and_attention")[0]
    scheduler = engine.vllm_config.scheduler_config
    scheduling = "async" if scheduler.async_scheduling else "synchronous"
    return {"runner": runner, "attention": attention, "scheduling": scheduling}


class RequestAborted(UserError):
    """A request that was stopped by `Engine.abort`."""


def sampling_parameters(sampling: SamplingSpec, stop_ids: list[int]) -> Any:
    """Return vLLM's `SamplingParams`: token ids and log-probabilities of a group, returned when all are finished. With
    stop texts vLLM returns the text too, which ends before the stop text; the token ids include the stop text."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    structured_outputs = None
    if sampling.json_schema:
        structured_outputs = StructuredOutputsParams(json=sampling.json_schema)
    return SamplingParams(
        n=sampling.num_generations,
        max_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k or 0,
        seed=sampling.seed,
        stop_token_ids=stop_ids,
        stop=list(sampling.stop),
        min_tokens=sampling.min_new_tokens,
        logprobs=0,  # of the sampled tokens only
        flat_logprobs=True,
        detokenize=bool(sampling.stop),
        output_kind=RequestOutputKind.FINAL_ONLY,
        structured_outputs=structured_outputs,
    )


class Engine:
    """A vLLM engine and the thread that steps it.

    The thread builds the engine too: CUDA's current stream differs between threads, and vLLM's runner copies sampled
    tokens after the work on the stream that was current when it was built. All calls into vLLM are made on that thread,
    between two steps, in the order of submission. A failed step fails all requests in flight and all later requests
    with ActorBroken. A completion ends at `eos` or at an end-of-sequence token of the model's generation config, which
    vLLM adds itself.

    Requests in flight during a weight update keep their KV cache and continue with the new weights (vLLM's spans record
    the version of each token), unless `drain` has finished them before. Later requests share no KV cache with earlier
    ones: the salt of vLLM's prefix cache is the number of updates. Adapters of one engine are updated independently.
    """

    def __init__(self, spec: EngineSpec, eos: int | None) -> None:
        self._stop_ids = [] if eos is None else [eos]
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        """Commands for the engine's thread."""
        self._requests: dict[str, Future] = {}
        """Results of the requests in flight, by name."""
        self._listeners: dict[str, OnTokens] = {}
        """Listeners of streamed requests, by name."""
        self._request_count = 0
        self._updates: Counter[int] = Counter()
        """Number of weight updates by adapter."""
        self._adapters: list[Any] = [None]
        """vLLM's `LoRARequest` by adapter; one None if the engine serves merged weights."""
        self._paused = False
        self._is_occupied = False
        """True during an update, after a failed update, and asleep: no steps are made."""
        self._failure: BaseException | None = None
        self._heartbeats: queue.SimpleQueue[Future] = queue.SimpleQueue()
        built: Future[None] = Future()
        threading.Thread(target=self._run, args=(spec, built), name="vllm-engine", daemon=True).start()
        built.result()

    def generate(
        self, prompt_ids: list[int], sampling: SamplingSpec, priority: int, adapter: int = 0
    ) -> asyncio.Future[list[Completion]]:
        """Sample a group of completions, with their text only if `sampling` has stop texts. Requests with a lower
        `priority` value are scheduled first. `adapter` is the number of the adapter, if the engine has adapters."""
        future: Future = Future()
        self._inbox.put(lambda: self._add_request(prompt_ids, sampling, priority, future, adapter=adapter))
        return asyncio.wrap_future(future)

    def stream(
        self, name: str, prompt_ids: list[int], sampling: SamplingSpec, on_tokens: OnTokens | None, adapter: int = 0
    ) -> asyncio.Future[list[Completion]]:
        """Sample one completion as `generate` does, but start at once, and report its tokens after each step to a
        listener, if there is one. `name`, which must not be a number, identifies the request for `abort`."""
        future: Future = Future()
        self._inbox.put(lambda: self._add_request(prompt_ids, sampling, 0, future, name, on_tokens, adapter))
        return asyncio.wrap_future(future)

    def abort(self, name: str) -> asyncio.Future[None]:
        """Stop a named request, which then raises RequestAborted. Does nothing if there is none with this name."""

        def stop(engine: Any) -> None:
            self._listeners.pop(name, None)
            future = self._requests.pop(name, None)
            if future is not None:
                engine.abort_request([name])
                future.set_exception(RequestAborted(name))

        return self.call(stop)

    def call(self, method: Callable[[Any], T]) -> asyncio.Future[T]:
        """Run `method(llm_engine)` on the engine's thread and return its result."""
        future: Future = Future()

        def command() -> None:
            if not future.set_running_or_notify_cancel():
                return  # the caller has been cancelled meanwhile
            try:
                future.set_result(method(self._engine))
            except Exception as error:  # of this command alone: the thread continues
                future.set_exception(error)

        self._inbox.put(command)
        return asyncio.wrap_future(future)

    def occupy(self, method: Callable[[Any], T]) -> asyncio.Future[T]:
        """Run a method that takes longer than a heartbeat may, which is answered at once meanwhile."""

        def command(engine: Any) -> T:
            self._is_occupied = True
            self._answer_heartbeats()
            try:
                return method(engine)
            finally:
                self._is_occupied = False

        return self.call(command)

    def drain(self) -> asyncio.Future[None]:
        """Finish all requests in flight. No steps are made before the next `update_weights`."""

        def finish(engine: Any) -> None:
            while self._requests and self._failure is None:
                self._step()
            self._pause()

        return self.call(finish)

    def begin_update(self, method: Callable[[Any], T]) -> asyncio.Future[T]:
        """Submit the first stage of a weight update. No steps are made until `update_weights` returns."""
        return self.call(lambda engine: self._update(method))

    def update_weights(self, method: Callable[[Any], T], adapter: int = 0) -> asyncio.Future[T]:
        """Submit a whole weight update, or its last stage, of one adapter if the engine has adapters. If it fails, no
        steps are made before another update."""

        def update(engine: Any) -> T:
            result = self._update(method)
            self._updates[adapter] += 1
            # vLLM separates the prefix caches of different adapters itself.
            exclude_from_prefix_cache(engine, self._adapters[adapter], str(self._updates[adapter]))
            self._sleep.wake("kv_cache")
            self._paused = False
            return result

        return self.call(update)

    def sleep(self) -> asyncio.Future[None]:
        """Release the device. No steps are made before the next `update_weights`."""

        def begin(engine: Any) -> None:
            self._pause()
            self._sleep.begin()

        return self.call(begin)

    def heartbeat(self) -> asyncio.Future[None]:
        """Return after the current step or command, or at once during an update. Raises ActorBroken."""
        future: Future = Future()
        self._heartbeats.put(future)
        # A paused engine may be in a weight update, which takes longer than a heartbeat may.
        if self._paused or self._is_occupied:
            self._answer_heartbeats()
        self._inbox.put(self._answer_heartbeats)
        return asyncio.wrap_future(future)

    def _build(self, spec: EngineSpec) -> None:
        from vllm import EngineArgs, LLMEngine
        from vllm.usage.usage_lib import UsageContext

        # On a GPU, vLLM's defaults for offline inference; other uses have 128 sequences and 2048 tokens per step.
        usage = UsageContext.LLM_CLASS if spec.on_gpu else UsageContext.ENGINE_CONTEXT
        self._engine = LLMEngine.from_engine_args(EngineArgs(**engine_arguments(spec)), usage)
        if spec.tensor_parallel > 1:
            _exit_with_workers(self._engine)
        keeps_weights = spec.residency in ("kv", "stream")
        offloads_weights = spec.lora is not None  # updates bring adapters, but not the base model
        self._sleep = EngineSleep(self._engine, spec.on_gpu, keeps_weights, offloads_weights)
        if spec.lora is not None:
            from marl_ray.weights.vllm_adapters import adapter_requests

            self._adapters = adapter_requests(
                self._engine, spec.model, spec.trust_remote_code, spec.lora, spec.adapters
            )

    def _run(self, spec: EngineSpec, built: Future[None]) -> None:
        try:
            self._build(spec)
        except BaseException as error:  # for the constructor, which waits in another thread
            built.set_exception(error)
            return
        built.set_result(None)
        while True:
            is_idle = self._paused or not self._requests
            try:
                # Commands come before the next step; without a step to make, wait for one.
                command = self._inbox.get(block=is_idle)
            except queue.Empty:
                self._step()
                continue
            command()
            if is_idle:
                self._collect_batch()

    def _collect_batch(self) -> None:
        """Wait for the rest of a batch before the first step of an idle engine, since prefill of all prompts together
        costs little more than prefill of one. Named requests, which come one by one, start at once."""
        end = time.monotonic() + MAX_BATCH_WAIT_S
        while self._batches_grow() and time.monotonic() < end:
            try:
                command = self._inbox.get(timeout=IDLE_GAP_S)
            except queue.Empty:
                return
            command()

    def _batches_grow(self) -> bool:
        """Return whether requests are waiting of a group of which more may come. The names of these are numbers."""
        return not self._paused and any(map(str.isdecimal, self._requests))

    def _answer_heartbeats(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                future = self._heartbeats.get_nowait()
                if not future.set_running_or_notify_cancel():
                    continue
                if self._failure is None:
                    future.set_result(None)
                else:
                    future.set_exception(self._broken())

    def _broken(self) -> ActorBroken:
        return ActorBroken(f"the engine failed in a step: {self._failure}")

    def _update(self, method: Callable[[Any], T]) -> T:
        self._pause()
        self._sleep.wake("weights")
        return method(self._engine)

    def _pause(self) -> None:
        if not self._paused:
            self._finish_steps()
            self._paused = True
        if self._failure is not None:
            raise self._broken()

    def _finish_steps(self) -> None:
        """Finish the steps in progress. On a GPU vLLM starts a step before it has the tokens of the last one; these
        tokens would be labelled with the next version."""
        if has_steps_in_progress(self._engine):
            self._engine.sleep(level=0, mode="keep")  # starts no further steps
            while has_steps_in_progress(self._engine) and self._failure is None:
                self._step()
            self._engine.wake_up(tags=["scheduling"])

    def _add_request(
        self, prompt_ids: list[int], sampling: SamplingSpec, priority: int, future: Future, name: str = "",
        on_tokens: OnTokens | None = None, adapter: int = 0,
    ) -> None:  # fmt: skip
        if not future.set_running_or_notify_cancel():
            return
        if self._failure is not None:
            future.set_exception(self._broken())
            return
        self._request_count += 1
        name = name or str(self._request_count)  # requests of groups have numbers, streamed ones names
        parameters = sampling_parameters(sampling, self._stop_ids)
        if on_tokens is not None:
            parameters.output_kind = type(parameters.output_kind).CUMULATIVE
            self._listeners[name] = on_tokens
        prompt: Any = {"prompt_token_ids": prompt_ids, "cache_salt": str(self._updates[adapter])}
        try:
            lora_request = self._adapters[adapter]
            self._engine.add_request(name, prompt, parameters, lora_request=lora_request, priority=priority)
        except Exception as error:  # vLLM rejects this request; the engine continues
            self._listeners.pop(name, None)
            future.set_exception(error)
            return
        self._requests[name] = future

    def _step(self) -> None:
        try:
            outputs: list[Any] = self._engine.step()
            for output in outputs:
                self._deliver(output)
        except Exception as error:  # the engine is unusable
            self._failure = error
            for future in self._requests.values():
                future.set_exception(self._broken())
            self._requests.clear()
            self._listeners.clear()
        self._answer_heartbeats()

    def _deliver(self, output: Any) -> None:
        """Pass a request's new tokens to its listener, and its completions to its future once all are finished."""
        name = output.request_id
        on_tokens = self._listeners.get(name)
        if on_tokens is not None:
            streamed = output.outputs[0]
            on_tokens(tuple(streamed.token_ids), streamed.text)
        if not output.finished:
            return
        self._listeners.pop(name, None)
        adapter = self._adapters.index(output.lora_request)
        siblings = sorted(output.outputs, key=lambda sibling: sibling.index)  # they finish in any order
        group = [_convert(sibling, adapter) for sibling in siblings]
        self._requests.pop(name).set_result(group)


def _convert(output: Any, adapter: int) -> Completion:
    token_ids = tuple(output.token_ids)
    logprobs = tuple(output.logprobs.logprobs)
    if len(logprobs) != len(token_ids):
        raise RuntimeError(f"vLLM returned {len(logprobs)} log-probabilities for {len(token_ids)} tokens")
    labels = [(span.version, span.end - span.start) for span in output.weight_versions or ()]
    return Completion(token_ids, output.text, logprobs, output.finish_reason or "", spans_of(labels, adapter))


def _exit_with_workers(engine: Any) -> None:
    """Exit this process when a worker process of the engine exits; the engine would wait for it forever."""
    sentinels = worker_sentinels(engine)

    def watch() -> None:
        wait(sentinels)
        os._exit(1)

    threading.Thread(target=watch, name="vllm-workers", daemon=True).start()
