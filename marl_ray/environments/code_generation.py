"""Code generation: helpers and a main function, written side by side and joined into one program.

One environment for HumanEval, CoopHumanEval, MBPP and the toy set. All agents but the last write a helper
(`aux`; `aux_1`, `aux_2`... when there are several), the last writes the entry point and may call them.

Reward, the same for all agents, at most 4.0 (2.1 for a single agent, which has no helper levels):

1. 0.4 helper defined and returns a value; 0.6 entry point defined and returns a value, else stop here.
2. 0.5 the joint program compiles, else stop.
3. the share of tests passed.
4. only if a test passed, for a helper that exists: 0.5 main calls it, 1.0 more if main is not a thin wrapper,
   less 0.5 if main throws a result away. `marl_ray.environments.usage` says what these words mean.

A helper exists when the joint program defines it, with or without a `return`: one that changes a list in place, or
prints, earns the bonus of being called, though not the 0.4 of level 1. With several helpers each one's part of
levels 1 and 4 counts in equal shares.

The joint program is, in this order: the problem's imports and finished definitions, each helper, main; of each
answer only the function that was asked for, with the imports it mentions (see `marl_ray.environments.extraction`).
A function that mentions `math` finds it, imported by an agent or not, as in CoMLRL's programs; nothing else is added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from marl_ray.core.messages import Assessment, Task
from marl_ray.environments import prompts
from marl_ray.environments.diagnosis import Diagnosis, FunctionStatus, SandboxSlice, SyntaxProblem, sliced
from marl_ray.environments.extraction import Contribution, clean, contribution, preamble
from marl_ray.environments.usage import helper_use
from marl_ray.sandbox import ExecutionReport, Program

AUX_DEFINED, MAIN_DEFINED, SYNTAX_OK, TESTS = 0.4, 0.6, 0.5, 1.0
AUX_CALLED, NOT_THIN, MISUSED = 0.5, 1.0, 0.5


@dataclass(frozen=True, slots=True)
class _Joint:
    """The joint program, and on which line each agent's code starts (0 when it contributes none)."""

    source: str
    starts: tuple[int, ...]


class CodeGeneration:
    """See the module. `num_agents` 1 is a single agent, without helpers. `count_untrusted`: see `SandboxConfig`."""

    def __init__(self, num_agents: int, count_untrusted: bool = True) -> None:
        self._count_untrusted = count_untrusted
        self.roles = prompts.role_names(num_agents)
        self.helpers = self.roles[:-1]
        self.max_reward = 4.0 if self.helpers else MAIN_DEFINED + SYNTAX_OK + TESTS

    def first_prompts(self, task: Task) -> list[str]:
        """First-turn prompts, one per agent."""
        return prompts.first_prompts(task.prompt, task.entry_point, self.helpers)

    def revisions(self, task: Task) -> list[str]:
        """Later turns' closing instructions, one per agent."""
        return prompts.revisions(task.entry_point, self.helpers)

    def function_names(self, task: Task) -> list[str]:
        """The function each agent writes."""
        return [*self.helpers, task.entry_point]

    def previous_answers(self, task: Task, responses: Sequence[str]) -> list[str]:
        """Each agent's own function as it stands in the joint program; all it wrote where there is none."""
        parts = zip(self._parts(task, responses), responses, strict=True)
        return [part.code or clean(response) for part, response in parts]

    def program(self, task: Task, responses: Sequence[str], sandbox_slice: SandboxSlice = "all") -> Program:
        """The joint program: the problem's imports and finished definitions, the helpers, main.

        `sandbox_slice`: the tests that feedback will tell of.
        """
        source = self._join(task, self._parts(task, responses)).source
        visible = None if sandbox_slice == "all" else sandbox_slice
        return Program(source, task.tests, task.entry_point, prompt=task.prompt, visible=visible)

    def assess(self, task: Task, responses: Sequence[str], report: ExecutionReport) -> Assessment:
        """Reward by levels, from the responses and the one execution of their joint program."""
        *helpers, main = self._parts(task, responses)
        use = helper_use(main, self.helpers)
        runs = main.defined and report.syntax_error is None
        passed = report.passed if self._count_untrusted else report.trusted_passed
        rate = passed / report.total if runs and report.total else 0.0
        share = 1.0 / max(1, len(helpers))

        levels = {"main": MAIN_DEFINED * main.defined, "syntax": SYNTAX_OK * runs, "tests": TESTS * rate}
        metrics = {
            "main_defined": float(main.defined),
            "syntax_ok": float(report.syntax_error is None),
            "tests_passed_rate": rate,
            "all_passed": float(rate == 1.0),
        }
        if helpers:
            defined = sum(helper.defined for helper in helpers)
            called = [helper.name for helper in helpers if helper.exists and helper.name in use.called]
            misused = [name for name in called if name in use.misused]
            earned = share if rate > 0 else 0.0
            levels["aux"] = AUX_DEFINED * share * defined
            levels["aux_called"] = AUX_CALLED * earned * len(called)
            levels["not_thin"] = 0.0 if use.thin_wrapper else NOT_THIN * earned * len(called)
            levels["misused"] = 0.0 - MISUSED * earned * len(misused)
            metrics["aux_defined"] = share * defined
            metrics["aux_called"] = share * len(called)
            metrics["thin_wrapper"] = float(use.thin_wrapper)
            metrics["aux_misused"] = share * len(misused)
        return Assessment(math.fsum(levels.values()), levels, metrics)

    def probes(self, task: Task, responses: Sequence[str], report: ExecutionReport) -> list[Program]:
        """Programs that show what the helpers in use are worth; none for a program that passes no test.

        For each helper that main calls two: the joint program where the helper returns None, and the one where the
        helper stands in main's place.
        """
        *helpers, main = self._parts(task, responses)
        if not report.passed:
            return []
        called = helper_use(main, self.helpers).called
        names = [helper.name for helper in helpers if helper.exists and helper.name in called]
        whole = self.program(task, responses)
        return [
            replace(whole, source=f"{whole.source}\n\n{change}\n")
            for name in names
            for change in (f"def {name}(*args, **kwargs):\n    return None", f"{task.entry_point} = {name}")
        ]

    def probed(self, report: ExecutionReport, probes: Sequence[ExecutionReport]) -> dict[str, float]:
        """Metrics from the reports of `probes`, each the mean over helpers.

        `helper_needed`: without it a test no longer passes. `helper_suffices`: it passes as much alone, so that
        main adds nothing. Both are 0 for a helper that is not in use.
        """
        if not self.helpers:
            return {}
        passed = _passing(report)
        needed = sum(not r.infra_error and not passed <= _passing(r) for r in probes[0::2])
        suffices = sum(passed <= _passing(r) for r in probes[1::2])
        return {"helper_needed": needed / len(self.helpers), "helper_suffices": suffices / len(self.helpers)}

    def diagnose(
        self,
        task: Task,
        responses: Sequence[str],
        report: ExecutionReport,
        sandbox_slice: SandboxSlice = "all",
    ) -> Diagnosis:
        """The facts that feedback may tell of: all of them, but of the tests only those in the slice."""
        parts = self._parts(task, responses)
        use = helper_use(parts[-1], self.helpers)
        return Diagnosis(
            functions=tuple(FunctionStatus(part.name, part.problem) for part in parts),
            syntax=self._syntax_problem(report, parts, self._join(task, parts)),
            tests=sliced(report.tests, sandbox_slice),
            not_called=tuple(name for name in self.helpers if name not in use.called),
            thin_wrapper=use.thin_wrapper,
            aux_misused=bool(use.misused),
        )

    def _parts(self, task: Task, responses: Sequence[str]) -> list[Contribution]:
        pairs = zip(responses, self.function_names(task), strict=True)
        return [contribution(response, name) for response, name in pairs]

    def _join(self, task: Task, parts: Sequence[Contribution]) -> _Joint:
        given = preamble(task.prompt, frozenset(self.function_names(task)))
        future = dict.fromkeys(line for part in (given, *parts) for line in part.future)
        math = any(part.mentions("math") for part in parts) and not any("math" in part.imported for part in parts)
        source = "\n".join([*future, *["import math"] * math, *[given.code] * bool(given.code)])
        starts = []
        for part in parts:
            if source and part.code:
                source += "\n\n"
            starts.append(source.count("\n") + 1 if part.code else 0)
            source += part.code
        return _Joint(source + "\n", tuple(starts))

    def _syntax_problem(
        self, report: ExecutionReport, parts: Sequence[Contribution], joint: _Joint
    ) -> SyntaxProblem | None:
        """The report's syntax error, its line counted in the code of the agent who wrote it."""
        error = report.syntax_error
        if error is None:
            return None
        for part, start in reversed(list(zip(parts, joint.starts, strict=True))):
            if error.line is not None and 0 < start <= error.line:
                return SyntaxProblem(part.name, error.line - start + 1, error.column, error.message)
        return SyntaxProblem(None, error.line, error.column, error.message)


def _passing(report: ExecutionReport) -> frozenset[int]:
    """Which tests pass, by their place."""
    return frozenset(i for i, test in enumerate(report.tests) if test.status == "pass")
