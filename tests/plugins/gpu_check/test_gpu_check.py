"""`marl-ray doctor` on a CPU: passing, skipped, failing and late checks, and the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_ray.plugins.gpu_check import check_runner
from marl_ray.plugins.gpu_check.check_runner import Result, report, run_in_subprocess, table
from marl_ray.plugins.gpu_check.command import main
from marl_ray.plugins.gpu_check.device_checks import CHECKS
from marl_ray.plugins.gpu_check.exercise import Machine

pytestmark = pytest.mark.slow

CPU = Machine(0, "bundled:toy-base")


@pytest.mark.nightly
def test_a_cpu_runs_its_checks_and_writes_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run all CPU checks except `one_device` and `training`, which are parts of `turns` and `options`."""
    page = tmp_path / "report.md"
    checks = [
        "turns",
        "kv",
        "stream",
        "two_devices",
        "ranks",
        "restart",
        "in_flight",
        "lost_generator",
        "shapes",
        "lora",
        "adapters",
        "options",
    ]
    status = main(["--cpu", "--only", *checks, "--out", str(page)])
    output = capsys.readouterr().out
    assert status == 0, output
    text = page.read_text()
    assert "11 of 12 checks passed, 0 failed." in text
    assert "- driver: none found" in text
    assert "| two_devices | engine, NCCL with checksums, log-probability gap | skipped |" in text
    assert "needs 2 GPUs; this machine has 0" in text
    for number in ("transport Ray's object store", "checksum", "gap after the update", "ranks 2", "asleep MB"):
        assert number in text
    assert "report written to" in output


def test_failed_checks_are_reported_with_their_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    late = run_in_subprocess("turns", CPU, 0.2)
    assert (late.name, late.outcome) == ("turns", "failed")
    assert late.output.endswith("not finished after 0.2 s")
    results = [late, Result("ranks", "ok", 3.0, {"gap": 0.00123, "transport": "x"})]
    assert "ranks  ok" in table(results)
    assert "gap 0.00123, transport x" in report(results, {})
    assert "## turns\n\n```" in report(results, {})
    monkeypatch.setattr(check_runner, "run_in_subprocess", lambda name, *_: late)
    assert main(["--cpu", "--only", "turns"]) == 1


def test_every_check_is_documented() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "gpu.md").read_text()
    assert all(f"| `{name}` |" in text for name in CHECKS)
