"""Resources of the sandbox's processes, failures of the judge, and the copy of Python's library."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pytest

from marl_ray.sandbox import Limits, Program, Sandbox
from marl_ray.sandbox.host import python_files, session
from tests.sandbox.helpers import statuses

_THREADS = """
import threading
def f(n):
    leave, ready = threading.Event(), []
    def work():
        leave.wait()
        ready.append(1)
    threads = []
    try:
        for _ in range(n):
            threads.append(threading.Thread(target=work))
            threads[-1].start()
    finally:
        leave.set()
        for thread in threads[:-1]:
            thread.join()
    threads[-1].join()
    return len(ready)
"""
_PATTERNS = "|".join("[" + ",".join(f"a{(i * step) % 4001}" for i in range(1, 4001)) + "]" for step in (1, 4000))
_EXPENSIVE = f"def f(x):\n    match x:\n        case {_PATTERNS}:\n            return 1\n"


def processes(sandbox: Sandbox) -> list[int]:
    """Return the process ids of a sandbox: bubblewrap if any, zygote, judge and guests."""
    assert sandbox._session is not None
    assert sandbox._session.connection is not None
    pids = [sandbox._session.connection.process.pid]
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a guest that has ended
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return pids


def test_a_guest_may_have_256_threads(sandbox: Sandbox) -> None:
    if "any number of threads" in sandbox.describe():
        pytest.skip("this kernel cannot count the threads of a process")
    tests = ("assert f(200) == 200", "assert f(400) == 400", "assert f(100) + f(100) + f(100) == 300")
    source = _THREADS.replace("import threading\n", "import threading\nthreading.stack_size(65536)\n")
    report = sandbox.run(Program(source, tests, "f"))
    assert statuses(report) == ["pass", "error", "pass"], report.tests
    assert report.tests[1].error_type == "RuntimeError"


def test_guests_leave_no_descriptor_open_in_the_zygote(sandbox: Sandbox) -> None:
    def descriptors() -> dict[int, int]:
        counts = {}
        for pid in processes(sandbox):
            with contextlib.suppress(FileNotFoundError):  # a guest that has ended
                counts[pid] = len(os.listdir(f"/proc/{pid}/fd"))
        return counts

    quick = [Program(_THREADS + f"# {n}", ("assert f(3) == 3",), "f") for n in range(40)]
    sandbox.run_batch(quick)
    try:
        before = descriptors()
    except PermissionError:
        pytest.skip("an ordinary user cannot list descriptors of other processes")
    assert [report.passed for report in sandbox.run_batch(quick)] == [1] * 40
    more = {pid: count - before[pid] for pid, count in descriptors().items() if pid in before}
    assert max(more.values()) <= 4, "descriptors of a spare guest"


def test_compilation_has_its_own_limits(sandbox: Sandbox) -> None:
    test = ("assert f(1) == 1",)
    good, bad = Program("def f(x): return x\n", test, "f"), Program("def f(x): return x x\n", test, "f")
    before = sandbox.run_batch([good, bad])
    first = set(processes(sandbox))
    expensive = sandbox.run(Program(_EXPENSIVE, test, "f", limits=Limits(test_cpu_s=2.0, test_wall_s=10.0)))
    assert statuses(expensive) in (["error"], ["timeout"], ["crash"]), "compiled by its own guest"
    after = sandbox.run_batch([good, bad, good])  # the last program waits until the zygote has reaped
    assert [(r.tests, r.syntax_error) for r in after[:2]] == [(r.tests, r.syntax_error) for r in before]
    remaining = first & set(processes(sandbox))
    assert len(remaining) >= 2, "the sandbox was restarted"
    for pid in remaining:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        peak = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
        assert peak < 250_000, "KiB of a process that was not replaced"


def test_argv_and_file_name_are_those_of_a_script(sandbox: Sandbox) -> None:
    source = "import sys\ndef f(): return [sys.argv, __file__, __name__]\n"
    report = sandbox.run(Program(source, ("assert f() == [['solution.py'], 'solution.py', 'solution']",), "f"))
    assert statuses(report) == ["pass"], report.tests


def test_standard_error_of_a_script_is_ignored(sandbox: Sandbox) -> None:
    source = "import sys\nprint('noise' * 20_000, file=sys.stderr)\nprint(input())\n"
    report = sandbox.run(Program(source, ('{"stdin": "a", "stdout": "a"}',), "", limits=Limits(max_output_bytes=2000)))
    assert statuses(report) == ["pass"]
    assert report.stdout == "a\n"


@pytest.mark.parametrize(("status", "verdict"), [(0, "pass"), (1, "error"), (3, "error"), (256, "pass")])
@pytest.mark.parametrize("leave", ["sys.exit({})", "os._exit({} & 255)"])
def test_a_script_must_exit_with_status_0(sandbox: Sandbox, leave: str, status: int, verdict: str) -> None:
    source = f"import os, sys\nprint(input(), flush=True)\n{leave.format(status)}\n"
    report = sandbox.run(Program(source, ('{"stdin": "a", "stdout": "a"}',), ""))
    assert statuses(report) == [verdict], report.tests


_STUCK = Program(
    "def f(x): return 1\n",
    ("import itertools\nassert f(1) in itertools.repeat(0)",),  # in C code, which the judge's timer cannot interrupt
    "f",
    limits=Limits(test_wall_s=0.2, program_wall_s=0.2),
)


def test_a_program_that_blocks_the_judge_times_out_without_a_retry(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_GRACE_S", 0.5)
    restarts = sandbox.restarts
    good = Program("def f(x): return x\n", ("assert f(1) == 1",), "f")
    reports = sandbox.run_batch([_STUCK, good])
    assert [statuses(report) for report in reports] == [["timeout"], ["pass"]]
    assert sandbox.restarts == restarts + 1


def test_a_program_is_retried_if_an_earlier_program_blocked_the_judge(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Program("def f(x): return x\n", ("assert f(1) == 1",), "f", limits=Limits(program_wall_s=3.0))
    reports = sandbox.run_each([good, _STUCK])
    assert statuses(next(reports)) == ["pass"]
    reports.close()  # type: ignore[attr-defined]
    monkeypatch.setattr(session, "_GRACE_S", 0.5)
    restarts = sandbox.restarts
    assert statuses(sandbox.run(good)) == ["pass"]
    assert sandbox.restarts == restarts + 1


def _prefix(folder: Path) -> Path:
    """Create a folder that resembles a Python prefix, below a private folder."""
    inside = folder / "private" / sys.platlibdir / f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in ("os.py", "json/__init__.py", "site-packages/secret.py", "test/test_os.py"):
        (inside / name).parent.mkdir(parents=True, exist_ok=True)
        (inside / name).write_text(f"# {name}\n")
        (inside / name).chmod(0o660)
    (folder / "private").chmod(0o700)
    return folder / "private"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a temporary folder that every user may enter."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(python_files.tempfile, "tempdir", str(place))
    monkeypatch.setattr(python_files, "readable_by_all", lambda base: base == str(place))
    python_files.readable_copy.cache_clear()
    return place


def test_the_library_copy_is_readable_and_shared(tmp_path: Path, temporary: Path) -> None:
    copy = python_files.readable_copy(str(_prefix(tmp_path)))
    assert copy is not None
    files = {str(path.relative_to(copy)) for path in Path(copy).rglob("*") if path.is_file()}
    assert {name.rpartition("/")[2] for name in files} == {"os.py", "__init__.py", "complete"}, "only the library"
    for path in (Path(copy), *Path(copy).rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), (
            "every user may read, only the owner may write"
        )
    python_files.readable_copy.cache_clear()
    assert python_files.readable_copy(str(tmp_path / "private")) == copy
    assert [path.name for path in temporary.iterdir()] == [Path(copy).name]


@pytest.mark.parametrize("harm", ["writable", "incomplete", "link"])
def test_an_incomplete_or_untrusted_library_copy_is_not_used(tmp_path: Path, temporary: Path, harm: str) -> None:
    prefix = str(_prefix(tmp_path))
    found = python_files.readable_copy(prefix)
    assert found is not None
    copy = Path(found)
    if harm == "writable":
        copy.chmod(0o777)
    elif harm == "incomplete":
        next(copy.rglob("os.py")).unlink()
    else:
        copy.rename(tmp_path / "elsewhere")
        copy.symlink_to(tmp_path / "elsewhere")
    python_files.readable_copy.cache_clear()
    again = python_files.readable_copy(prefix)
    assert again is not None
    assert again != found
    assert list(Path(again).rglob("os.py"))


def test_no_copy_is_made_without_an_accessible_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_files, "readable_by_all", lambda base: False)
    python_files.readable_copy.cache_clear()
    assert python_files.readable_copy(str(_prefix(tmp_path))) is None
    python_files.readable_copy.cache_clear()
