"""The forging programs of `benchmarks/verdict_integrity`: none earns a trusted pass."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.verdict_integrity import ours
from benchmarks.verdict_integrity.forging import FILES, Forgery, load
from marl_ray.sandbox import Limits, Sandbox

LIMITS = Limits(test_cpu_s=0.3, test_wall_s=1.0, program_wall_s=3.0, max_timeouts=1, max_crashes=1, memory_mb=256)


def test_there_are_at_least_250_programs_with_different_names_and_sources() -> None:
    programs = load()
    assert len(programs) >= 250
    for fields in (lambda one: (one.label, one.name), lambda one: (one.source, one.before, one.tests, one.kind)):
        assert [key for key, count in Counter(map(fields, programs)).items() if count > 1] == []
    assert [one.name for one in programs if not one.explanation.endswith(".")] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_forging_program_earns_a_trusted_pass(sandbox: Sandbox, path: Path) -> None:
    forgeries = load([path])
    seed = secrets.randbelow(10**9)
    batch = [replace(program, limits=LIMITS) for one in forgeries for program in ours.programs(one.job(seed))]
    reports = iter(sandbox.run_batch(batch))
    forged = []
    for one in forgeries:
        report = [next(reports) for _ in ours.programs(one.job(seed))][-1]
        assert report.infra_error is None, f"{one.label} / {one.name}"
        assert report.total > 0
        if report.trusted_passed:
            forged.append(f"{one.label} / {one.name}")
    assert forged == [], f"seed {seed}"


def test_a_program_that_knows_the_answers_passes(sandbox: Sandbox) -> None:
    one = Forgery("control", "knows", "Return the answers.", "", "word")
    job = one.job(1)
    answers = [eval(case)[1] for case in job["cases"]]
    job["program"] = f"def f(x): return {answers!r}[x - 1]\n"
    assert ours.run(sandbox, job).trusted_passed == 3
