"""Write `bundled:arithmetic` and train its base policy, `bundled:toy-math-base`: `python -m tools.toy.make_math`.

A problem starts with a digit and applies two operations with a digit; all values are from 0 to 20. The rows have the
fields of GSM8K. The policy has the size of the grid's, 0.2 M parameters, and is trained from scratch on demonstrations
with the exact prompts of a run. Clean demonstrations teach it to calculate; noisy ones then make mistakes of two kinds:

- a slip: in any step the value is off by 1 or 2;
- a confusion: the solver mostly adds where it should multiply. The wrong answer is then its most frequent one, which a
  majority vote cannot mend. A verifier calculates again, rarely confuses, and says whether it gets the solver's answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from marl_ray.config import ExternalConfig
from marl_ray.core.chat import as_text
from marl_ray.core.episode import Task
from marl_ray.external.transition import Transition
from marl_ray.plugins.math import ARITHMETIC_PATH, MATH_BASE_PATH
from marl_ray.plugins.math.debate import Debate
from marl_ray.plugins.math.options import MathConfig
from marl_ray.plugins.math.problem import MathEnvironment
from marl_ray.plugins.math.rows import MATH
from marl_ray.plugins.math.solver_verifier import SolverVerifier
from tools.toy.make_grid import make_policy, parse_and_seed
from tools.toy.scenes import Scene

STEPS = 2
MAX_VALUE = 20
VOCAB_SIZE = 384
"""Enough for the words of the prompts, which would otherwise have twice as many tokens."""
SPLITS = {"train": 256, "eval": 96}
WORDS = {"+": "Add {}.", "-": "Subtract {}.", "*": "Multiply by {}."}
AFTER_A_TURN = ExternalConfig(original_prompt=True)


@dataclass(frozen=True, slots=True)
class Chain:
    """A start, and operations with their digits."""

    start: int
    steps: tuple[tuple[str, int], ...]

    @property
    def question(self) -> str:
        texts = [f"Start with {self.start}."]
        for sign, digit in self.steps:
            texts.append(WORDS[sign].format(digit))
        return " ".join(texts)


@dataclass(frozen=True, slots=True)
class Care:
    """Probabilities of a calculation: to slip in a step, and to add instead of to multiply."""

    slip: float = 0.0
    confuse: float = 0.0


@dataclass(frozen=True, slots=True)
class Habits:
    """Demonstrations of one stage of training. `faithful` is the probability that a verdict agrees with the verifier's
    own result, and that an agent which has read another answer calculates itself. `count` is the number of
    demonstrations of a prompt."""

    solver: Care = Care()
    verifier: Care = Care()
    faithful: float = 1.0
    count: int = 1


HASTY = Care(slip=0.06, confuse=0.65)
CLEAN = Habits()
NOISY = Habits(solver=HASTY, verifier=Care(slip=0.06, confuse=0.15), faithful=0.85, count=4)


def apply(sign: str, value: int, digit: int) -> int:
    """Return the value after one operation."""
    if sign == "+":
        return value + digit
    if sign == "-":
        return value - digit
    return value * digit


def draw_chain(rng: random.Random) -> Chain:
    """Return a random chain whose values are all from 0 to MAX_VALUE; half of the possible steps are products."""
    start = value = rng.randint(1, 9)
    steps: list[tuple[str, int]] = []
    while len(steps) < STEPS:
        sign = rng.choice("+-**")
        digit = rng.randint(2, 9)
        after = apply(sign, value, digit)
        if 0 <= after <= MAX_VALUE:
            steps.append((sign, digit))
            value = after
    return Chain(start, tuple(steps))


def calculate(chain: Chain, care: Care, rng: random.Random) -> tuple[str, int]:
    """Return the equations of a calculation, one per line, and its result."""
    value = chain.start
    lines = []
    for sign, digit in chain.steps:
        used = "+" if sign == "*" and rng.random() < care.confuse else sign
        after = apply(used, value, digit)
        if rng.random() < care.slip:
            after += rng.choice((-2, -1, 1, 2))
        # The mistake is in the value, not in the words. Further values stay in the range that the policy knows.
        after = min(max(after, 0), MAX_VALUE)
        lines.append(f"{value}{sign}{digit}={after}")
        value = after
    return "\n".join(lines), value


def solution(chain: Chain, care: Care, rng: random.Random) -> str:
    """Return a solver's response."""
    lines, value = calculate(chain, care, rng)
    return f"{lines}\n#### {value}"


def verdict(chain: Chain, solved: str, habits: Habits, rng: random.Random) -> str:
    """Return a verifier's response to a solver's."""
    lines, value = calculate(chain, habits.verifier, rng)
    agrees = solved.endswith(f"#### {value}")
    if rng.random() >= habits.faithful:
        agrees = not agrees
    return f"{lines}\nVerdict: {'right' if agrees else 'wrong'}"


def arithmetic_rows(seed: int = 0) -> Iterator[dict[str, object]]:
    """Yield the rows of the bundled data set, with different problems."""
    rng = random.Random(seed)
    seen: set[Chain] = set()
    for split, count in SPLITS.items():
        for number in range(count):
            chain = draw_chain(rng)
            while chain in seen:
                chain = draw_chain(rng)
            seen.add(chain)
            answer = solution(chain, Care(), rng)
            task_id = f"arithmetic/{split}-{number}"
            yield {"task_id": task_id, "question": chain.question, "answer": answer, "split": split}


def scenes(count: int, habits: Habits, rng: random.Random) -> list[Scene]:
    """Return at least `count` scenes of both environments, of first and second turns."""
    found: list[Scene] = []
    while len(found) < count:
        chain = draw_chain(rng)
        row = {"question": chain.question, "answer": solution(chain, Care(), rng)}
        task = MATH.task(row, 0)
        kind = rng.choice((_judged_scenes, _judged_scenes, _judged_scenes, _corrected_scenes, _debate_scenes))
        found += kind(chain, task, habits, rng)
    return found


def _repeat(draw: Callable[[], str], count: int) -> tuple[str, ...]:
    return tuple(draw() for _ in range(count))


def _judged_scenes(chain: Chain, task: Task, habits: Habits, rng: random.Random) -> list[Scene]:
    environment = SolverVerifier(2)
    check, solve = environment.first_prompts(task)
    solved = solution(chain, HASTY, rng)  # also in the clean stage: a verifier has to meet wrong answers
    read = as_text(environment.prompt_after(task, 0, check, {1: solved}))
    judged = verdict(chain, solved, habits, rng)
    _, again = _next_prompts(environment, task, [check, solve], [judged, solved])

    def revised() -> str:
        keeps = judged.endswith("right")
        if rng.random() >= habits.faithful:
            keeps = not keeps
        return solved if keeps else solution(chain, habits.verifier, rng)

    found = [
        Scene(solve, _repeat(lambda: solution(chain, habits.solver, rng), habits.count)),
        Scene(read, _repeat(lambda: verdict(chain, solved, habits, rng), habits.count)),
    ]
    if rng.random() < 0.3:  # prompts of a second turn are long, and few runs have one
        found.append(Scene(again, _repeat(revised, habits.count)))
    return found


def _corrected_scenes(chain: Chain, task: Task, habits: Habits, rng: random.Random) -> list[Scene]:
    environment = SolverVerifier(2, MathConfig(verifier="corrects"))
    check, _ = environment.first_prompts(task)
    solved = solution(chain, HASTY, rng)  # also in the clean stage: a verifier has to meet wrong answers
    read = as_text(environment.prompt_after(task, 0, check, {1: solved}))

    def corrected() -> str:
        if rng.random() < habits.faithful:
            return solution(chain, habits.verifier, rng)
        return solved

    return [Scene(read, _repeat(corrected, habits.count))]


def _debate_scenes(chain: Chain, task: Task, habits: Habits, rng: random.Random) -> list[Scene]:
    environment = Debate(2)
    firsts = environment.first_prompts(task)
    said = _repeat(lambda: solution(chain, HASTY, rng), 2)
    prompts = _next_prompts(environment, task, firsts, said)

    def later() -> str:
        if rng.random() < habits.faithful:
            return solution(chain, habits.solver, rng)
        return rng.choice(said)

    return [Scene(prompts[0], _repeat(later, habits.count))]


def _next_prompts(
    environment: MathEnvironment, task: Task, firsts: Sequence[str], responses: Sequence[str]
) -> list[str]:
    """Return the prompts of the second turn."""
    attempt = environment.attempt(task, responses, last=False)
    transition = Transition(AFTER_A_TURN, environment)
    observations = asyncio.run(transition.next_prompts(task, firsts, attempt, environment.outcome(attempt, None)))
    return list(map(as_text, observations.prompts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=MATH_BASE_PATH)
    parser.add_argument("--steps", type=int, default=1500, help="steps on clean demonstrations")
    parser.add_argument("--noisy-steps", type=int, default=400)
    parser.add_argument("--scenes", type=int, default=8000)
    args = parse_and_seed(parser)
    ARITHMETIC_PATH.write_text("".join(json.dumps(row) + "\n" for row in arithmetic_rows()), encoding="utf-8")
    stages = []
    for habits, steps, peak_lr in ((CLEAN, args.steps, 1.5e-3), (NOISY, args.noisy_steps, 5e-4)):
        stages.append((scenes(args.scenes, habits, random.Random(args.seed)), steps, peak_lr))
    make_policy(stages, args.out, args.seed, VOCAB_SIZE)


if __name__ == "__main__":
    main()
