"""What the processes of a sandbox may use, and where they find Python's library."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pytest

from marl_ray.sandbox import ExecutionReport, Limits, Program, Sandbox
from marl_ray.sandbox.host import python_files, session

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
_DEAR = f"def f(x):\n    match x:\n        case {_PATTERNS}:\n            return 1\n"


def statuses(report: ExecutionReport) -> list[str]:
    return [test.status for test in report.tests]


def processes(sandbox: Sandbox) -> list[int]:
    """The processes behind a sandbox: bubblewrap where there is one, zygote, judge and guests."""
    found = [sandbox.process_id]
    for pid in found:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a guest whose time had come
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def test_as_many_threads_as_honest_programs_need_and_no_more(sandbox: Sandbox) -> None:
    if "any number of threads" in sandbox.describe():
        pytest.skip("this kernel cannot count the threads of a process")
    tests = ("assert f(200) == 200", "assert f(400) == 400", "assert f(100) + f(100) + f(100) == 300")
    source = _THREADS.replace("import threading\n", "import threading\nthreading.stack_size(65536)\n")
    report = sandbox.run(Program(source, tests, "f"))
    assert statuses(report) == ["pass", "error", "pass"], report.tests
    assert report.tests[1].error_type == "RuntimeError"


def test_guests_leave_nothing_open_in_the_zygote(sandbox: Sandbox) -> None:
    def descriptors() -> dict[int, int]:
        counts = {}
        for pid in processes(sandbox):
            with contextlib.suppress(FileNotFoundError):  # a guest whose time had come
                counts[pid] = len(os.listdir(f"/proc/{pid}/fd"))
        return counts

    quick = [Program(_THREADS + f"# {n}", ("assert f(3) == 3",), "f") for n in range(40)]
    sandbox.run_batch(quick)
    try:
        before = descriptors()
    except PermissionError:
        pytest.skip("an ordinary user cannot see what others have open")
    assert [report.passed for report in sandbox.run_batch(quick)] == [1] * 40
    more = {pid: count - before[pid] for pid, count in descriptors().items() if pid in before}
    assert max(more.values()) <= 4, "what a spare guest takes"


def test_compiling_has_limits_of_its_own(sandbox: Sandbox) -> None:
    test = ("assert f(1) == 1",)
    good, bad = Program("def f(x): return x\n", test, "f"), Program("def f(x): return x x\n", test, "f")
    before = sandbox.run_batch([good, bad])
    first = set(processes(sandbox))
    dear = sandbox.run(Program(_DEAR, test, "f", limits=Limits(test_cpu_s=2.0, test_wall_s=10.0)))
    assert statuses(dear) in (["error"], ["timeout"], ["crash"]), "it is its guest's affair"
    after = sandbox.run_batch([good, bad, good])  # for the last one the zygote has to be done with burying
    assert [(r.tests, r.syntax_error) for r in after[:2]] == [(r.tests, r.syntax_error) for r in before]
    stay = first & set(processes(sandbox))
    assert len(stay) >= 2, "the sandbox was not restarted"
    for pid in stay:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        peak = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
        assert peak < 250_000, "kibibytes, of a process that stays"


def test_a_program_finds_the_arguments_of_a_script(sandbox: Sandbox) -> None:
    source = "import sys\ndef f(): return [sys.argv, __file__, __name__]\n"
    report = sandbox.run(Program(source, ("assert f() == [['solution.py'], 'solution.py', 'solution']",), "f"))
    assert statuses(report) == ["pass"], report.tests


def test_standard_error_of_a_script_is_not_its_output(sandbox: Sandbox) -> None:
    source = "import sys\nprint('noise' * 20_000, file=sys.stderr)\nprint(input())\n"
    report = sandbox.run(Program(source, ('{"stdin": "a", "stdout": "a"}',), "", limits=Limits(max_output_bytes=2000)))
    assert statuses(report) == ["pass"]
    assert report.stdout == "a\n"


@pytest.mark.parametrize(("status", "verdict"), [(0, "pass"), (1, "error"), (3, "error"), (256, "pass")])
@pytest.mark.parametrize("leave", ["sys.exit({})", "os._exit({} & 255)"])
def test_the_exit_status_of_a_script_counts(sandbox: Sandbox, leave: str, status: int, verdict: str) -> None:
    source = f"import os, sys\nprint(input(), flush=True)\n{leave.format(status)}\n"
    report = sandbox.run(Program(source, ('{"stdin": "a", "stdout": "a"}',), ""))
    assert statuses(report) == [verdict], report.tests


_STUCK = Program(
    "def f(x): return 1\n",
    ("import itertools\nassert f(1) in itertools.repeat(0)",),  # in C, where no timer reaches it
    "f",
    limits=Limits(test_wall_s=0.2, program_wall_s=0.2),
)


def test_a_judge_gets_stuck_once(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_GRACE_S", 0.5)
    restarts = sandbox.restarts
    good = Program("def f(x): return x\n", ("assert f(1) == 1",), "f")
    reports = sandbox.run_batch([_STUCK, good])
    assert [statuses(report) for report in reports] == [["timeout"], ["pass"]]
    assert sandbox.restarts == restarts + 1


def test_a_program_is_not_blamed_for_a_judge_that_was_stuck(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    good = Program("def f(x): return x\n", ("assert f(1) == 1",), "f", limits=Limits(program_wall_s=3.0))
    reports = sandbox.run_each([good, _STUCK])
    assert statuses(next(reports)) == ["pass"]
    reports.close()  # type: ignore[attr-defined]
    monkeypatch.setattr(session, "_GRACE_S", 0.5)
    restarts = sandbox.restarts
    assert statuses(sandbox.run(good)) == ["pass"]
    assert sandbox.restarts == restarts + 1


def _prefix(folder: Path) -> Path:
    """Something that looks like a Python, with a private folder above it."""
    inside = folder / "private" / sys.platlibdir / f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in ("os.py", "json/__init__.py", "site-packages/secret.py", "test/test_os.py"):
        (inside / name).parent.mkdir(parents=True, exist_ok=True)
        (inside / name).write_text(f"# {name}\n")
        (inside / name).chmod(0o660)
    (folder / "private").chmod(0o700)
    return folder / "private"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that everybody may enter."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(python_files.tempfile, "tempdir", str(place))
    monkeypatch.setattr(python_files, "readable_by_all", lambda base: base == str(place))
    python_files.readable_copy.cache_clear()
    return place


def test_the_copy_of_the_library_is_readable_and_shared(tmp_path: Path, temporary: Path) -> None:
    copy = python_files.readable_copy(str(_prefix(tmp_path)))
    assert copy is not None
    files = {str(path.relative_to(copy)) for path in Path(copy).rglob("*") if path.is_file()}
    assert {name.rpartition("/")[2] for name in files} == {"os.py", "__init__.py", "complete"}, "nothing else"
    for path in (Path(copy), *Path(copy).rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), "everybody reads, nobody else writes"
    python_files.readable_copy.cache_clear()
    assert python_files.readable_copy(str(tmp_path / "private")) == copy
    assert [path.name for path in temporary.iterdir()] == [Path(copy).name]


@pytest.mark.parametrize("harm", ["writable", "incomplete", "link"])
def test_a_copy_that_others_could_have_made_is_not_used(tmp_path: Path, temporary: Path, harm: str) -> None:
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


def test_without_a_place_there_is_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_files, "readable_by_all", lambda base: False)
    python_files.readable_copy.cache_clear()
    assert python_files.readable_copy(str(_prefix(tmp_path))) is None
    python_files.readable_copy.cache_clear()
