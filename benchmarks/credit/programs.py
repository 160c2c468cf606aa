"""Programs with a few ordered calls, whose exact gradient is known, and the estimators that see only their runs.

A program asks its agents in turn. Each answer is one action of two, and the prompt of a call has the agent's card and,
if the agents talk, all earlier answers. The policy of a call has one row of logits per prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch

from benchmarks.credit.games import Actions, Array, softmax
from marl_ray.credit.estimators.base import SiblingValues, load_estimator

ACTIONS = 2
EMPTY = ACTIONS
"""The answer of an agent that is left out, as later prompts show it."""
CHUNK = 4_000
"""Nodes that are in memory at a time."""
Right = Callable[[Actions, Actions], Array]
"""Returns the rewards [S] from the cards [S, 2] and the answers [S, T]."""


@dataclass(frozen=True, slots=True)
class Program:
    """Calls of two agents in turn. `learning` are the agents with a gradient."""

    name: str
    calls: int
    talks: bool
    reward: Right
    learning: tuple[int, ...] = (0, 1)

    def prompts(self, call: int) -> int:
        """Return the number of different prompts of a call: cards, times the earlier answers."""
        return 2 * (ACTIONS + 1) ** (call if self.talks else 0)

    def logits(self) -> list[Array]:
        """Return the policies at which the program is audited: [prompts][actions] by call."""
        rng = np.random.default_rng(1)
        return [rng.normal(0.0, 0.7, (self.prompts(call), ACTIONS)) for call in range(self.calls)]

    def prompt(self, call: int, cards: Actions, answers: Actions) -> Actions:
        """Return the numbers of the prompts of a call [S]."""
        number = cards[:, call % 2].copy()
        if self.talks:
            for earlier in range(call):
                number = number * (ACTIONS + 1) + answers[:, earlier]
        return number

    def gradient(self) -> Array:
        """Return the exact gradient of the expected reward in the logits of all calls, flat; 0 for other agents."""
        cases = np.array(list(product(range(2), range(2), *[range(ACTIONS)] * self.calls)))
        cards, answers = cases[:, :2], cases[:, 2:]
        policies = [softmax(logits) for logits in self.logits()]
        prompts = [self.prompt(call, cards, answers) for call in range(self.calls)]
        chance = np.full(len(cases), 1 / 4)
        for call, policy in enumerate(policies):
            chance *= policy[prompts[call], answers[:, call]]
        value = chance * self.reward(cards, answers)
        flat = []
        for call, policy in enumerate(policies):
            slope = np.zeros_like(policy)
            # The gradient of a log-probability is 1 for the action, less the policy.
            np.add.at(slope, (prompts[call], answers[:, call]), value)
            np.add.at(slope, prompts[call], -value[:, None] * policy[prompts[call]])
            flat.append(slope.ravel() * (call % 2 in self.learning))
        return np.concatenate(flat)


def _relay(cards: Actions, answers: Actions) -> Array:
    """Return the reward of `play` in docs/examples/relay.py: each player names the other's card in its second call."""
    found: Array = 0.5 * (answers[:, 2] == cards[:, 1]) + 0.5 * (answers[:, 3] == cards[:, 0])
    return found


def _loud_relay(cards: Actions, answers: Actions) -> Array:
    """Return the reward of `play_loud` there: both players name the card of the first one, who alone sees it."""
    found: Array = 5.0 * (answers[:, 0] == cards[:, 0]) + (answers[:, 1] == cards[:, 0])
    return found


def _own_cards(cards: Actions, answers: Actions) -> Array:
    """Return the number of answers that name the own card, for agents that say nothing to each other."""
    owners = np.arange(answers.shape[1]) % 2
    found: Array = (answers == cards[:, owners]).sum(1).astype(np.float64)
    return found


PROGRAMS = (
    Program("relay: two cards are told and named", 4, True, _relay),
    Program("loud relay: the first answer counts five times, and is a message", 2, True, _loud_relay),
    Program("loud relay, only the second agent learns", 2, True, _loud_relay, (1,)),
    Program("six answers without messages", 6, False, _own_cards),
)


@dataclass(frozen=True, slots=True)
class Method:
    """A way to learn from runs. `replayed` is the number of calls that are sampled anew, 0 for credit by runs."""

    name: str
    estimator: str
    scale: float
    siblings: int
    replayed: int = 0
    removes: bool = False
    shares: bool = True
    """Whether replays get the recorded answers to the prompts that they repeat."""


METHODS = (
    Method("magrpo, runs", "magrpo", 6 / 7, 7),
    Method("marloo, runs", "marloo", 1.0, 7),
    Method("difference, agent removed", "difference", 1.0, 7, removes=True),
    Method("centred_difference, agent removed", "centred_difference", 6 / 7, 7, removes=True),
    Method("magrpo, branch replays", "magrpo", 3 / 4, 4, 2),
    Method("marloo, branch replays", "marloo", 1.0, 4, 2),
    Method("marloo, branch replays, answers not shared", "marloo", 1.0, 4, 2, shares=False),
)


@dataclass(frozen=True, slots=True)
class ProgramAudit:
    """The measures of a method on a program, per task: see `benchmarks.credit.audit.Audit`. `parts` is the noise of
    each agent's own gradient; `tokens` counts sampled answers."""

    program: str
    method: Method
    standard_errors: float
    cosine: float
    noise: float
    parts: tuple[float, float]
    tokens: float
    runs: float


class Sampler:
    """Runs of a program for many tasks at once, at the audited policies."""

    def __init__(self, program: Program, rng: np.random.Generator, size: int) -> None:
        self.program = program
        self.policies = [softmax(logits) for logits in program.logits()]
        self.rng = rng
        self.size = size
        self.cards: Actions = rng.integers(2, size=(size, 2))

    def streams(self) -> list[Array]:
        """Return uniform numbers by call and prompt, [S, prompts] each: an answer is a function of its prompt."""
        return [self.rng.random((self.size, self.program.prompts(call))) for call in range(self.program.calls)]

    def play(
        self, streams: list[Array], recorded: Run | None = None, anew: int = -1, shares: bool = True, absent: int = -1
    ) -> Run:
        """Return runs. With `recorded` runs they repeat the answers to equal prompts before the call `anew`, and with
        `shares` after it too."""
        rows = np.arange(self.size)
        answers = np.zeros((self.size, self.program.calls), dtype=np.int64)
        prompts = np.zeros_like(answers)
        for call, policy in enumerate(self.policies):
            asked = self.program.prompt(call, self.cards, answers)
            drawn = streams[call][rows, asked]
            answer = (drawn[:, None] > policy.cumsum(-1)[asked][:, :-1]).sum(-1)
            if recorded is not None and call != anew and (shares or call < anew):
                answer = np.where(asked == recorded.prompts[:, call], recorded.answers[:, call], answer)
            if call % 2 == absent:
                answer = np.full_like(answer, EMPTY)
            prompts[:, call] = asked
            answers[:, call] = answer
        return Run(prompts, answers, self.program.reward(self.cards, answers))

    def slope(self, call: int, run: Run, advantages: Array) -> Array:
        """Return the gradient of one call's log-probability times the advantages, [S, prompts * actions]."""
        policy = self.policies[call]
        rows = np.arange(self.size)
        slopes = np.zeros((self.size, *policy.shape))
        slopes[rows, run.prompts[:, call], run.answers[:, call]] = advantages
        slopes[rows, run.prompts[:, call]] -= policy[run.prompts[:, call]] * advantages[:, None]
        return slopes.reshape(self.size, -1)


@dataclass(frozen=True, slots=True)
class Run:
    """Runs of S tasks: prompts and answers [S, T], and rewards [S]."""

    prompts: Actions
    answers: Actions
    rewards: Array


def gradients(program: Program, method: Method, rng: np.random.Generator, size: int) -> tuple[Array, float, float]:
    """Return the gradients of `size` tasks, [S, parameters], and the mean numbers of sampled answers and of runs."""
    sampler = Sampler(program, rng, size)
    learning = [call for call in range(program.calls) if call % 2 in program.learning]
    slopes = [np.zeros((size, policy.size)) for policy in sampler.policies]
    if method.replayed:
        tokens = _add_replays(sampler, method, learning, slopes)
        runs = 1.0 + min(method.replayed, len(learning)) * (method.siblings - 1)
    else:
        tokens, runs = _add_runs(sampler, method, learning, slopes)
    return np.concatenate(slopes, axis=1), tokens, runs


def _add_runs(sampler: Sampler, method: Method, learning: list[int], slopes: list[Array]) -> tuple[float, float]:
    streams = [sampler.streams() for _ in range(method.siblings)]
    played = [sampler.play(one) for one in streams]
    tokens = float(method.siblings * sampler.program.calls)
    runs = float(method.siblings)
    for agent in sampler.program.learning:
        without = None
        if method.removes:
            removed = [sampler.play(one, absent=agent) for one in streams]
            without = np.stack([run.rewards for run in removed], 1)
            runs += method.siblings
            for run, other in zip(played, removed, strict=True):
                changed = run.prompts != other.prompts
                tokens += float(changed[:, 1 - agent :: 2].sum(1).mean())
        credit = _advantages(method, np.stack([run.rewards for run in played], 1), without)
        for call in learning:
            if call % 2 != agent:
                continue
            for sibling, run in enumerate(played):
                slopes[call] += sampler.slope(call, run, credit[:, sibling]) / method.siblings
    return tokens, runs


def _add_replays(sampler: Sampler, method: Method, learning: list[int], slopes: list[Array]) -> float:
    """Add the gradients of branch replays (`marl_ray.credit.groups.build_replay_group`), and return the tokens."""
    first = sampler.play(sampler.streams())
    order = sampler.rng.random((sampler.size, len(learning))).argsort(1)
    count = min(method.replayed, len(learning))
    chosen = np.zeros((sampler.size, len(learning)))
    np.put_along_axis(chosen, order[:, :count], len(learning) / count, 1)
    tokens = np.full(sampler.size, float(sampler.program.calls))
    for place, call in enumerate(learning):
        played = [first]
        for _ in range(method.siblings - 1):
            run = sampler.play(sampler.streams(), first, call, method.shares)
            played.append(run)
            sampled = 1.0 + (run.prompts != first.prompts).sum(1)
            if not method.shares:
                sampled = np.full(sampler.size, float(sampler.program.calls - call))
            tokens += (chosen[:, place] > 0) * sampled
        credit = _advantages(method, np.stack([run.rewards for run in played], 1), None)
        for sibling, run in enumerate(played):
            weight = chosen[:, place] / method.siblings
            slopes[call] += sampler.slope(call, run, weight * credit[:, sibling])
    return float(tokens.mean())


def _advantages(method: Method, returns: Array, without: Array | None) -> Array:
    inputs = {}
    if without is not None:
        inputs["counterfactual_rewards"] = torch.from_numpy(without)
    values = SiblingValues(torch.from_numpy(returns), **inputs)
    found: Array = load_estimator(method.estimator).advantages(values).numpy()
    return found


def audit_program(program: Program, method: Method, tasks: int, seed: int = 0) -> ProgramAudit:
    """Return the measures from `tasks` tasks."""
    rng = np.random.default_rng([seed, tasks])
    exact = program.gradient()
    total = np.zeros_like(exact)
    squares = np.zeros_like(exact)
    count = 0
    tokens = runs = 0.0
    while count < tasks:
        slopes, tokens, runs = gradients(program, method, rng, CHUNK)
        total += slopes.sum(0)
        squares += (slopes**2).sum(0)
        count += CHUNK
    mean = total / count
    variance = squares / count - mean**2
    sizes = [policy.size for policy in program.logits()]
    owners = np.repeat(np.arange(len(sizes)) % 2, sizes)
    parts = []
    for agent in range(2):
        own = owners == agent
        truth = (exact[own] ** 2).sum() * method.scale**2
        parts.append(float(variance[own].sum() / truth) if truth else math.nan)
    error = np.linalg.norm(mean - method.scale * exact)
    return ProgramAudit(
        program=program.name,
        method=method,
        standard_errors=float(error / np.sqrt(variance.sum() / count)),
        cosine=float(mean @ exact / np.linalg.norm(mean) / np.linalg.norm(exact)),
        noise=float(variance.sum() / (method.scale**2 * (exact**2).sum())),
        parts=(parts[0], parts[1]),
        tokens=tokens,
        runs=runs,
    )


def program_rows(audits: list[ProgramAudit]) -> Iterator[list[str]]:
    """Yield the measures of one program's methods."""
    yield [
        "method", "scale", "distance in s.e.", "cosine", "runs", "answers", "noise", "noise x runs", "noise x answers",
        "of agent 0 x runs", "of agent 1 x runs",
    ]  # fmt: skip
    for one in audits:
        parts = ["" if math.isnan(part) else f"{part * one.runs:.0f}" for part in one.parts]
        yield [
            one.method.name,
            f"{one.method.scale:.3g}",
            f"{one.standard_errors:.1f}",
            f"{one.cosine:.3f}",
            f"{one.runs:.0f}",
            f"{one.tokens:.1f}",
            f"{one.noise:.1f}",
            f"{one.noise * one.runs:.0f}",
            f"{one.noise * one.tokens:.0f}",
            *parts,
        ]
