"""The cheapest unearned rewards: what answers earn that do no work.

    python -m benchmarks.unearned
    python -m benchmarks.unearned --only code_generation --dataset humaneval.jsonl

Prints for each environment and each kind of answer the mean reward over the tasks, its share of the maximum, and the
number of tasks. Without arguments the tasks are bundled ones. Rows of a dataset in the form of HumanEval or MBPP need a
reference solution, which the answers "right, ..." contain. docs/explanation/unearned.md has the results.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from marl_ray.core.episode import Outcome, Task
from marl_ray.data.loading import load_tasks
from marl_ray.environments import abilities
from marl_ray.environments.base import Environment, collect_programs, group_reports
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.plugins.bug_fix.environment import BugFix, BugFixPatchers
from marl_ray.plugins.builder.environment import HouseBuilder, WordBuilder
from marl_ray.plugins.code_completion.environment import CodeCompletion
from marl_ray.plugins.function_calls.environment import FunctionCalls
from marl_ray.plugins.grid.environment import LetterGrid, PrivateGrid
from marl_ray.plugins.math.debate import Debate
from marl_ray.plugins.math.options import MathConfig
from marl_ray.plugins.math.solver_verifier import SolverVerifier
from marl_ray.plugins.plan_path.environment import PlanPath
from marl_ray.plugins.roll_call.environment import RollCall
from marl_ray.plugins.solver_tester.environment import SolverTester
from marl_ray.plugins.tags.environment import Tagging
from marl_ray.plugins.travel.environment import TravelPlanning
from marl_ray.plugins.travel.prompts import fields_of
from marl_ray.plugins.travel.scores import city_value
from marl_ray.plugins.travel.trip import ACCOMMODATION, ATTRACTION, CITY, MEALS, NONE, TRANSPORT, Trip
from marl_ray.plugins.writing.environment import PaperIntroduction, SummaryAndDetails
from marl_ray.sandbox import Limits, Sandbox, SandboxSettings

Answers = tuple[str, ...]
"""The answers of all agents."""
Writer = Callable[[Task], Answers]
CONSTANTS = ("None", "True", "False", "0", "1", "''", "[]", "()", "{}")


@dataclass(frozen=True)
class Case:
    """The cheap answers of one environment: by description, functions from a task to the answers of all agents."""

    environment: Environment[Any]
    maximum: float
    dataset: str
    dataset_type: str
    answers: Mapping[str, Writer]


# ---- programs


def constant_function(task: Task, value: str) -> str:
    return f"def {task.fields['entry_point']}(*args):\n    return {value}"


def constants_with_a_constant_helper(value: str) -> Writer:
    """Return answers whose main indexes a table with the helper's constant."""
    return lambda task: (
        "def aux(*args):\n    return 42",
        f"def {task.fields['entry_point']}(*args):\n    return [None, {value}][aux(*args) - 41]",
    )


def _around_the_reference(task: Task, result: str) -> str:
    """Return a function that contains the whole reference, and returns the result of an expression."""
    nested = "\n".join(f"    {line}" for line in task.fields["reference"].splitlines())
    return f"def {task.fields['entry_point']}(*args):\n{nested}\n    return {result}"


def right_program_with_a_constant_helper(task: Task) -> Answers:
    """Return the reference solution, inside main, chosen by the helper's constant."""
    chosen = f"[None, {task.fields['entry_point']}][aux(*args) - 41](*args)"
    return "def aux(*args):\n    return 42", _around_the_reference(task, chosen)


def right_program_without_a_helper(task: Task) -> Answers:
    return "", _around_the_reference(task, f"{task.fields['entry_point']}(*args)")


def copied_examples(task: Task) -> str:
    """Return the examples in a problem's text as tests, or else one test that a tester can write without reading."""
    name = task.fields["entry_point"]
    shown = re.findall(rf">>>\s*({name}\(.*\))\s*\n\s*(.+)", task.prompt)
    shown += re.findall(rf"({name}\(.*?\))\s*(?:==|=>|➞|->|=|[Rr]eturns?:?)\s*(.+)", task.prompt)
    tests = [f"assert {call} == {value}" for call, value in shown]
    return "\n".join(tests) or f"assert {name}(0) == 0"


def constants_and_copied_examples(value: str) -> Writer:
    return lambda task: (copied_examples(task), constant_function(task, value))


def constant_methods(value: str) -> Writer:
    """Return answers in which every method of a class returns one constant."""
    environment = CodeCompletion(2)

    def write(task: Task) -> Answers:
        method = f"(self, *args, **kwargs):\n    return {value}"
        shares = environment.shares(task)
        return tuple("\n\n".join(f"def {name}{method}" for name in share) for share in shares)

    return write


def unchanged_program(task: Task) -> Answers:
    return "line: 1\nwhy: it is wrong", task.fields["buggy"]


def unchanged_by_one_patcher(task: Task) -> Answers:
    return (task.fields["buggy"],)


# ---- texts and plans


def calls_with_wrong_arguments(task: Task) -> Answers:
    """Return calls of the listed functions in turn, three for two agents, with a number for every argument."""
    functions = json.loads(task.fields["functions"])
    calls = []
    for number in range(3):
        function = functions[number % len(functions)]
        required = function["parameters"].get("required", ())
        calls.append(f"{function['name']}({', '.join(f'{name}={number}' for name in required)})")
    return "\n".join(calls[:2]), calls[2]


def first_entries(task: Task) -> Answers:
    """Return a plan of the catalogue's first entries, with no place twice, without a look at prices and wishes."""
    trip = task.fields["trip"]
    plan = dict(_first_entries(trip))
    answers = []
    for agent in (0, 1):
        items = [
            {"day": day, "field": name, "value": plan.get((day, name), NONE)}
            for day in range(1, trip.days + 1)
            for name in fields_of(agent, 2)
        ]
        answers.append(json.dumps({"agent_id": agent, "assignments": items}))
    return tuple(answers)


def _first_entries(trip: Trip) -> Iterator[tuple[tuple[int, str], str]]:
    meals: dict[str, int] = {}
    sights: dict[str, int] = {}
    for day, (start, end) in enumerate(trip.route, 1):
        yield (day, CITY), city_value(trip, day)
        if trip.moves(day):
            journeys = trip.connections_on(day)
            yield (day, TRANSPORT), str(journeys[0])
        else:
            restaurants = trip.of_kind(MEALS[0], [start])
            for meal in MEALS:
                number = meals.get(start, 0)
                yield (day, meal), str(restaurants[number % len(restaurants)])
                meals[start] = number + 1
            attractions = trip.of_kind(ATTRACTION, [start])
            yield (day, ATTRACTION), str(attractions[sights.get(start, 0) % len(attractions)])
            sights[start] = sights.get(start, 0) + 1
        if day < trip.days:
            yield (day, ACCOMMODATION), str(trip.of_kind(ACCOMMODATION, [end])[0])


SUMMARY = "The post tells a story about people, and asks others for advice."
DETAILS = (
    "First, the post tells a story: also, for example, people ask others; therefore, however, and indeed, clearly, "
    "they want advice. Overall, just as before, although many hesitate, if asked, some would answer later on."
)


def constant_text(task: Task) -> Answers:
    """Return the same two texts for every post."""
    return SUMMARY, DETAILS


def constant_introduction(task: Task) -> Answers:
    """Return the same two texts for every abstract."""
    words = " ".join(f"topic{number}" for number in range(60))
    first = f"{DETAILS} {words} " + " ".join(f"one{number}" for number in range(45))
    second = f"{DETAILS} {words} " + " ".join(f"another{number}" for number in range(60))
    return first, second


def every_second_position(task: Task) -> Answers:
    """Return blocks on the whole wall, in alternating kinds."""
    rows = task.fields["target"]
    commands: tuple[list[str], list[str]] = ([], [])
    for y in range(len(rows)):
        for x in range(len(rows[0])):
            agent = (x + y) % 2
            block = (("oak_planks", "stone"), ("white_concrete", "obsidian"))[agent][x % 2]
            commands[agent].append(f"/setblock {x} {y} 0 {block}")
    return "\n".join(commands[0]), "\n".join(commands[1])


def no_block(task: Task) -> Answers:
    return "/kill", "/kill"


def one_letter(task: Task) -> Answers:
    """Return a grid of one letter."""
    rows = task.fields["target"]
    half = "\n".join([" ".join("a" * len(rows[0]))] * (len(rows) // 2))
    return half, half


def common_words(task: Task) -> Answers:
    return "people, water, morning", "small, under, street"


def one_row_each(task: Task) -> Answers:
    """Return the rows that earn the most if they are equal for all tasks (benchmarks.roll_call)."""
    return "b b", "b c"


def one_plan(task: Task) -> Answers:
    """Return the plan that earns the most of all plans of at most five moves (docs/results/plan_path.md)."""
    return "U R U L L", "ok"


def one_number(first: str) -> Writer:
    """Return answers in which the solver writes one number for every problem, and the first agent writes `first`."""
    return lambda task: (first, "#### 12")


def cases() -> dict[str, Case]:
    """Return the cases by name."""
    programs: dict[str, Writer] = {}
    for value in CONSTANTS:
        programs[f"{value}, constant helper"] = constants_with_a_constant_helper(value)
    programs["right, constant helper"] = right_program_with_a_constant_helper
    programs["right, no helper"] = right_program_without_a_helper
    tested = {f"{value}, copied examples": constants_and_copied_examples(value) for value in CONSTANTS}
    methods = {f"{value} in every method": constant_methods(value) for value in CONSTANTS}
    toy = ("bundled:toy", "solver_tester")
    arithmetic = ("bundled:arithmetic", "math")
    return {
        "code_generation": Case(CodeGeneration(2, helper_reward="executed"), 4.0, *toy, programs),
        "code_generation, static": Case(CodeGeneration(2), 4.0, *toy, programs),
        "solver_tester": Case(SolverTester(2), 3.5, *toy, tested),
        "code_completion": Case(CodeCompletion(2), 6.0, "", "classeval", methods),
        "bug_fix": Case(BugFix(2), 3.5, "", "bug_fix", {"the program unchanged": unchanged_program}),
        "bug_fix_patchers": Case(
            BugFixPatchers(1), 3.0, "", "bug_fix", {"the program unchanged": unchanged_by_one_patcher}
        ),
        "function_calls": Case(
            FunctionCalls(2), 1.1, "bundled:requests", "function_calls", {"wrong arguments": calls_with_wrong_arguments}
        ),
        "travel": Case(TravelPlanning(2), 1.0, "bundled:trips", "travel", {"first entries": first_entries}),
        "travel, added": Case(
            TravelPlanning(2, "added"), 1.0, "bundled:trips", "travel", {"first entries": first_entries}
        ),
        "writing_tldr": Case(SummaryAndDetails(2), 3.0, "bundled:posts", "tldr", {"a constant text": constant_text}),
        "writing_arxiv": Case(
            PaperIntroduction(2), 3.0, "bundled:abstracts", "arxiv", {"a constant text": constant_introduction}
        ),
        "word_builder": Case(
            WordBuilder(2), 2.0, "bundled:words", "word_builder", {"the whole wall": every_second_position}
        ),
        "house_builder": Case(HouseBuilder(2), 1.0, "bundled:houses", "house_builder", {"no block": no_block}),
        "grid": Case(LetterGrid(2), 2.0, "bundled:grid", "grid", {"one letter": one_letter}),
        "grid_private": Case(PrivateGrid(2), 2.0, "bundled:grid", "grid_private", {"one letter": one_letter}),
        "plan_path": Case(
            PlanPath(2),
            2.5,
            "python:marl_ray.plugins.plan_path.generate:SMALL_PATHS",
            "plan_path",
            {"one plan": one_plan},
        ),
        "roll_call": Case(RollCall(2), 2.0, "bundled:roll-call", "roll_call", {"one row each": one_row_each}),
        "tags": Case(Tagging(2), 1.0, "bundled:tags", "tags", {"common words": common_words}),
        "math": Case(
            SolverVerifier(2),
            2.0,
            *arithmetic,
            {f"one number, always {word}": one_number(f"Verdict: {word}") for word in ("right", "wrong")},
        ),
        "math, corrects": Case(
            SolverVerifier(2, MathConfig(verifier="corrects")), 2.0, *arithmetic, {"one number": one_number("#### 12")}
        ),
        "math_debate": Case(Debate(2), 1.0, *arithmetic, {"one number": one_number("#### 12")}),
    }


def rewards(case: Case, tasks: Sequence[Task], sandbox: Sandbox) -> dict[str, list[float]]:
    """Return the reward on each task, by kind of answer."""
    return {
        name: [_outcome(case.environment, task, write(task), sandbox).reward for task in tasks]
        for name, write in case.answers.items()
    }


def _outcome(environment: Environment[Any], task: Task, answers: Answers, sandbox: Sandbox) -> Outcome:
    attempt = environment.attempt(task, answers, last=True)
    programs = collect_programs([attempt])
    (report,) = group_reports([attempt], sandbox.run_batch(programs) if programs else [])
    outcome = environment.outcome(attempt, report)
    if not abilities.pays_probes(environment):
        return outcome
    probes = sandbox.run_batch(abilities.probes(environment, attempt, report))
    return abilities.probed_outcome(environment, attempt, report, outcome, probes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="name of one environment, or its beginning")
    parser.add_argument("--dataset", help="file with rows; default: the bundled tasks")
    parser.add_argument("--split", default="train", help="split and slice, such as train[:20]")
    arguments = parser.parse_args()
    with Sandbox(SandboxSettings(isolation="auto", limits=Limits(memory_mb=512))) as sandbox:
        for name, case in cases().items():
            dataset = arguments.dataset or case.dataset
            if not dataset or not name.startswith(arguments.only or ""):
                continue
            tasks = load_tasks(dataset, arguments.split, case.dataset_type)
            by_kind = rewards(case, tasks, sandbox)
            constant = [earned for kind, earned in by_kind.items() if not kind.startswith("right")]
            best = [max(earned) for earned in zip(*constant, strict=True)]
            for kind, earned in {**by_kind, "the best of these for each task, none right": best}.items():
                mean = fmean(earned)
                print(f"{name} | {kind} | {mean:.2f} of {case.maximum} | {mean / case.maximum:.0%} | {len(tasks)}")


if __name__ == "__main__":
    main()
