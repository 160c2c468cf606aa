"""Calls of reward functions: turns, deadlines, signals, event loops and exits."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import threading
import time
from typing import Any

import pytest

from marl_ray.core.episode import Outcome
from marl_ray.core.errors import UserError
from marl_ray.core.user_calls import run_coroutine
from marl_ray.environments.reward import RewardEnvironment
from tests.environments.reward_builders import environment, outcomes, tasks_of


def test_plain_calls_take_turns_and_async_calls_run_together() -> None:
    running: list[int] = []

    def plain(prompt: str, answers: list[str]) -> float:
        assert threading.current_thread() is not threading.main_thread(), "the event loop is not blocked"
        running.append(1)
        found = len(running)
        running.pop()
        return float(found)

    assert {outcome.reward for outcome in outcomes(environment(plain), *[["a", "b"]] * 20)} == {1.0}
    met = asyncio.Barrier(3)

    async def together(prompt: str, answers: list[str]) -> float:
        await met.wait()  # would wait for ever if calls took turns
        return 1.0

    assert len(outcomes(environment(together), *[["a", "b"]] * 3)) == 3


def test_a_call_has_a_deadline_and_its_errors_are_its_own() -> None:
    never = threading.Event()
    (late,) = outcomes(environment(lambda prompt, answers: never.wait(), timeout_s=0.05), ["a", "b"])
    assert re.match(r"timed out after 0\.05 s waiting for the function .*<lambda>", late.failure)
    with pytest.raises(UserError, match=r"<lambda> took longer than 0\.01 s in 5 calls in a row"):
        outcomes(environment(lambda prompt, answers: never.wait(), timeout_s=0.01), *[["a", "b"]] * 6)
    never.set()

    def broken(prompt: str, answers: list[str]) -> float:
        return 1 / 0

    (failed,) = outcomes(environment(broken), ["a", "b"])
    assert failed.unscored == "error"
    assert re.match(r"the function .*broken raised ZeroDivisionError: .*test_reward_calls\.py:\d+\)", failed.failure)


def slow(number: int, frame: object) -> None:
    raise TimeoutError("too slow")


def graded(prompt: str, answers: list[str]) -> float:
    """Grade an answer as graders with a limit of time do."""
    signal.signal(signal.SIGALRM, slow)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        while answers[0] == "endless":
            pass
        return 1.0
    except TimeoutError:
        return 0.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


async def graded_later(prompt: str, answers: list[str]) -> float:
    await asyncio.sleep(0)
    return graded(prompt, answers)


@pytest.mark.parametrize("function", [graded, graded_later])
@pytest.mark.parametrize("notebook", [False, True])
def test_functions_may_limit_their_time_with_signals(function: Any, notebook: bool) -> None:
    env = environment(function, feedback=lambda prompt, answers: str(graded(prompt, answers)))
    task = tasks_of(env)[0]
    attempts = [env.attempt(task, [answer, ""], last=False) for answer in ("endless", "short")]

    async def work() -> list[Any]:
        reports = await env.execute(attempts, None)  # type: ignore[arg-type]
        return [*reports, env.feedback(attempts[1], Outcome(1.0), "", 0)]

    async def cell() -> list[Any]:
        return run_coroutine(work)

    before = signal.getsignal(signal.SIGALRM)
    try:
        assert (asyncio.run(cell()) if notebook else run_coroutine(work)) == [0.0, 1.0, ["1.0"]]
    finally:
        signal.signal(signal.SIGALRM, before)


def in_the_main_thread(env: RewardEnvironment, *answers: str) -> list[Any]:
    """Return the reports of a run's way to call reward functions."""
    task = tasks_of(env)[0]
    attempts = [env.attempt(task, [answer, ""], last=False) for answer in answers]
    return run_coroutine(lambda: env.execute(attempts, None))  # type: ignore[arg-type]


async def judged(answer: str) -> float:
    await asyncio.sleep(0)
    return float(len(answer))


def test_a_plain_function_may_run_an_event_loop_of_its_own() -> None:
    env = environment(lambda prompt, answers: asyncio.run(judged(answers[0])))
    assert in_the_main_thread(env, "a", "bb", "ccc") == [1.0, 2.0, 3.0]
    assert [outcome.reward for outcome in outcomes(env, ["a", ""], ["bb", ""])] == [1.0, 2.0]


async def exits_later(prompt: str, answers: list[str]) -> float:
    sys.exit(3)


@pytest.mark.parametrize("function", [lambda prompt, answers: sys.exit(3), exits_later])
def test_a_function_that_calls_exit_has_failed(function: Any) -> None:
    env = environment(function)
    (report,) = in_the_main_thread(env, "a")
    assert "CalledExit: it called sys.exit(3)" in report.reason
    (outcome,) = outcomes(env, ["a", "b"])
    assert outcome.unscored == "error"


def test_a_late_reward_does_not_end_the_feedback_that_waits_for_it() -> None:
    begun = threading.Event()

    def endless(prompt: str, answers: list[str]) -> float:
        begun.set()
        while True:
            pass

    env = environment(endless, feedback=lambda prompt, answers: "fine", timeout_s=1.0)
    attempt = env.attempt(tasks_of(env)[0], ["a", "b"], last=False)

    async def work() -> tuple[Any, list[str]]:
        late = asyncio.ensure_future(env.execute([attempt], None))  # type: ignore[arg-type]
        while not begun.is_set():
            await asyncio.sleep(0.001)
        text = env.feedback(attempt, Outcome(1.0), "", 0)
        return await late, text

    (report,), text = run_coroutine(lambda: asyncio.wait_for(work(), 60))
    assert text == ["fine"]
    assert "timed out after 1 s" in report.reason or "it was interrupted" in report.reason


def test_a_late_call_in_the_main_thread_is_interrupted() -> None:
    ended: list[str] = []

    def endless(prompt: str, answers: list[str]) -> float:
        try:
            while answers[0] == "busy":
                pass
            if answers[0] == "asleep":
                time.sleep(60)
        except Exception:
            return 0.0
        finally:
            ended.append(answers[0])
        return 1.0

    env = environment(endless, timeout_s=1.0)
    task = tasks_of(env)[0]
    attempts = [env.attempt(task, [answer, ""], last=False) for answer in ("busy", "asleep", "short")]
    *late, short = run_coroutine(lambda: env.execute(attempts, None))  # type: ignore[arg-type]
    assert [report.reason[:15] for report in late] == ["timed out after"] * 2
    assert (short, ended) == (1.0, ["busy", "asleep", "short"])


def test_an_async_function_that_blocks_is_interrupted() -> None:
    async def blocking(prompt: str, answers: list[str]) -> float:
        if answers[0] == "asleep":
            time.sleep(600)
        return 1.0

    begun = time.monotonic()
    late, short = in_the_main_thread(environment(blocking, timeout_s=1.0), "asleep", "short")
    assert "timed out after 1 s" in late.reason
    assert short == 1.0 or "timed out after 1 s" in short.reason, "the other call waits for the one that blocks"
    assert time.monotonic() - begun < 60


def test_an_exception_that_a_future_refuses_is_a_failed_call() -> None:
    env = environment(lambda prompt, answers: next(iter(())))
    attempt = env.attempt(tasks_of(env)[0], ["a", "b"], last=False)
    for execute in (asyncio.run, lambda coroutine: run_coroutine(lambda: coroutine)):
        (report,) = execute(env.execute([attempt], None))  # type: ignore[arg-type]
        assert "StopIteration" in report.reason
