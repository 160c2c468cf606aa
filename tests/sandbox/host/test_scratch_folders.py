"""Scratch folders: programs can write files there, within bounds, and nowhere else."""

from __future__ import annotations

import ast
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from marl_ray.sandbox import Limits, Program, Sandbox, SandboxSettings, SandboxUnavailable
from marl_ray.sandbox.inside.isolation import file_access
from tests.sandbox import datasets
from tests.sandbox.datasets import CLASSEVAL_WITH_FILES, failures, run_solutions

LEVELS = {"process+landlock": "process", "bwrap": "bwrap"}
MIB = 4

pytestmark = pytest.mark.skipif(
    file_access.landlock_abi() < file_access.WRITING_ABI, reason="scratch folders need Landlock as of Linux 6.2"
)


@pytest.fixture(scope="module", params=LEVELS)
def scratch(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox with scratch folders at each level that supports them."""
    if request.param == "bwrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    limits = Limits(test_cpu_s=5.0, test_wall_s=20.0, max_output_bytes=1 << 20)
    with Sandbox(SandboxSettings(LEVELS[request.param], limits=limits, scratch_mb=MIB)) as running:
        assert running.level == request.param
        yield running


def result_of(sandbox: Sandbox, source: str) -> object:
    """Run a program and return the result of its `f`."""
    report = sandbox.run(Program(f"{source}\nprint(repr(f()))", ("assert f",), "f"))
    assert report.infra_error is None
    assert report.passed == 1, report.tests
    return ast.literal_eval(report.stdout)


def test_programs_can_write_files_archives_and_databases(scratch: Sandbox) -> None:
    source = """
import os, shutil, sqlite3, tempfile, zipfile

def f():
    os.makedirs("a/b")
    with open("a/b/c.txt", "w") as file:
        file.write("text")
    os.rename("a/b/c.txt", "a/d.txt")
    with open("a/d.txt", "a") as file:
        file.truncate(2)
    with zipfile.ZipFile("z.zip", "w") as archive:
        archive.write("a/d.txt")
    with zipfile.ZipFile("z.zip") as archive:
        read = archive.read("a/d.txt")
    base = sqlite3.connect("s.db")
    base.execute("create table t (n)")
    base.execute("insert into t values (7)")
    base.commit()
    base.close()
    found = sqlite3.connect("s.db").execute("select n from t").fetchall()
    with tempfile.TemporaryDirectory() as folder:
        open(os.path.join(folder, "x"), "w").close()
    shutil.rmtree("a")
    return read, found, sorted(os.listdir())
"""
    assert result_of(scratch, source) == (b"te", [(7,)], ["s.db", "z.zip"])


def test_a_program_gets_a_new_folder(scratch: Sandbox) -> None:
    """Give no guest a folder whose times another guest has set."""
    source = "import os\ndef f():\n    return os.stat('.').st_ino"
    numbers = [result_of(scratch, source) for _ in range(file_access.FOLDERS + 2)]
    assert len(set(numbers)) == len(numbers)


def test_a_program_finds_no_file_of_another(scratch: Sandbox) -> None:
    first = "import os\ndef f():\n    open('left', 'w').write('x')\n    return os.getcwd()"
    before = result_of(scratch, first)
    assert result_of(scratch, "import os\ndef f():\n    return os.listdir()") == []
    assert isinstance(before, str)
    others = f"""
import os

def attempt(what, *arguments):
    try:
        return what(*arguments)
    except OSError as error:
        return type(error).__name__

def f():
    parent = os.path.dirname(os.getcwd())
    made = attempt(os.mkdir, parent + "/own"), attempt(open, parent + "/file", "w")
    return attempt(os.listdir, parent), attempt(os.listdir, {before!r}), *made, attempt(os.rmdir, os.getcwd())
"""
    denied = "PermissionError"
    parent, former, *more = result_of(scratch, others)  # type: ignore[misc]
    assert former in ([], denied), "reused by this program, or closed"
    assert (parent, *more) == (denied, denied, denied, denied)


def test_size_and_number_of_files_are_bounded(scratch: Sandbox) -> None:
    many = """
import os

def f():
    counts = []
    for size in (1 << 20, 0):
        count = 0
        try:
            while count < 10_000:
                with open(f"{size}-{count}", "wb") as file:
                    file.write(bytes(size))
                count += 1
        except OSError as error:
            counts.append((count, error.errno))
        for name in os.listdir():
            os.remove(name)
    return counts
"""
    full, without_inodes = result_of(scratch, many)  # type: ignore[misc]
    assert full == (MIB, 28)
    assert without_inodes[1] == 28
    assert 200 < without_inodes[0] < 256 - 16
    filling = many.replace("os.remove(name)", "pass")
    assert result_of(scratch, filling)[0] == (MIB, 28)  # type: ignore[index]
    assert result_of(scratch, many)[0] == (MIB, 28), "files of the previous program are gone"  # type: ignore[index]


def test_a_program_that_uses_up_all_files_still_gets_its_guests(scratch: Sandbox) -> None:
    source = """
import itertools, os
try:
    for n in itertools.count():
        os.mkdir(str(n))
except OSError:
    pass

def f():
    return len(os.listdir()) > 100

class Own:
    pass
"""
    beside = (
        "import unittest\nclass T{0}(unittest.TestCase):\n    def test(self):\n        self.assertTrue(f() or Own())"
    )
    tests = ("assert f()", "assert isinstance(Own(), Own)", *(beside.format(n) for n in range(3)))
    for visible in (None, 1):
        report = scratch.run(Program(source, tests, "f", visible=visible))
        assert report.infra_error is None
        assert report.tests[0].status == "pass"
    assert scratch.restarts == 0


@pytest.mark.parametrize(
    "leaving",
    [
        "os.mkdir('closed', 0); os.umask(0o777); os.mkdir('too'); open('file', 'w').close()",
        "[(os.mkdir('n' * 250), os.chdir('n' * 250)) for _ in range(200)]",
        "[open(chr(0xE000 + n) * 80, 'w').close() for n in range(100)]",
        "open(b'\\xff\\xfe', 'w').close(); os.mkdir('-rf'); open('-rf/ *', 'w').close()",
        "globals().update(held=[open(str(n), 'w') for n in range(40)]); [os.remove(str(n)) for n in range(40)]",
    ],
)
def test_all_files_are_removed_after_a_program(scratch: Sandbox, leaving: str) -> None:
    assert result_of(scratch, f"import os\ndef f():\n    {leaving}\n    return 1") == 1
    refill = "import os\ndef f():\n    [open(str(n), 'w').close() for n in range(200)]\n    return len(os.listdir())"
    assert result_of(scratch, refill) == 200
    assert scratch.restarts == 0


def test_other_file_operations_stay_denied(scratch: Sandbox, tmp_path: Path) -> None:
    # Writing elsewhere, links, special files, modes and executing written files all fail.
    mine = tmp_path / "mine"
    mine.write_text("kept")
    for path in (tmp_path, *tmp_path.parents):
        if path.owner() == mine.owner() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    mine.chmod(0o666)
    library = os.__file__
    calls = [
        f"open({str(mine)!r}, 'w')",
        f"open({str(mine)!r})",
        f"os.truncate({str(mine)!r}, 0)",
        f"os.open({str(mine)!r}, os.O_RDONLY | os.O_TRUNC)",
        f"os.open({library!r}, os.O_RDONLY | os.O_TRUNC)",
        f"open({library!r}, 'a')",
        f"os.unlink({str(mine)!r})",
        f"os.rename({str(mine)!r}, 'mine')",
        f"os.rename('own', {str(tmp_path / 'moved')!r})",
        "open('/tmp/sandbox-scratch', 'w')",
        "open('/dev/shm/sandbox-scratch', 'w')",
        "open('../x', 'w')",
        "open('/proc/self/oom_score_adj', 'w')",
        "os.symlink('/etc/passwd', 'link')",
        "os.link('own', 'other')",
        f"os.link({library!r}, 'other')",
        "os.mkfifo('fifo')",
        "os.mknod('device', 0o600 | 0o020000, os.makedev(1, 3))",
        "os.chmod('own', 0o777)",
        "os.fchmod(os.open('own', os.O_RDONLY), 0o777)",
        "os.chown('own', 0, 0)",
        f"os.utime({library!r})",
        "os.utime('own')",
        "os.setxattr('own', 'user.a', b'b')",
        "os.open('.', os.O_TMPFILE | os.O_RDWR)",
        "os.execv(os.path.abspath('own'), ['own'])",
        "socket.socket(socket.AF_UNIX).bind('s')",
        "os.chroot('.')",
        "os.mkdir('/mnt/x')",
    ]
    source = f"""
import os, socket

def f():
    with open("own", "w") as file:
        file.write("#!/bin/sh")
    allowed = []
    for call in {calls!r}:
        try:
            eval(call)
        except OSError:
            continue
        allowed.append(call)
    return allowed
"""
    assert result_of(scratch, source) == []
    assert mine.read_text() == "kept"


def test_scratch_folders_are_invisible_to_the_machine(scratch: Sandbox) -> None:
    place = result_of(
        scratch, "import os\ndef f():\n    open('seen', 'w').close()\n    return os.path.dirname(os.getcwd())"
    )
    assert isinstance(place, str)
    assert not any(Path(place).rglob("seen"))
    with open("/proc/self/mounts") as mounts:
        assert not any(line.split()[1] == place and line.startswith("tmpfs") for line in mounts)


def test_levels_without_landlock_are_refused() -> None:
    settings = SandboxSettings("none", allow_unsafe=True, scratch_mb=MIB)
    with pytest.raises(SandboxUnavailable, match=r"none: a scratch folder \(sandbox.scratch_mb\) needs Landlock"):
        Sandbox(settings).start()
    with pytest.raises(SandboxUnavailable, match=r"process: a scratch folder \(sandbox.scratch_mb\) needs Landlock"):
        Sandbox(SandboxSettings("process", scratch_mb=MIB), without=("landlock",)).start()
    with pytest.raises(ValueError, match=r"sandbox.scratch_mb: -1 is not between 0 and 1024"):
        SandboxSettings(scratch_mb=-1)


def test_classeval_classes_that_write_files_pass(scratch: Sandbox) -> None:
    classes = {task: program for task, program in datasets.classeval().items() if task in CLASSEVAL_WITH_FILES}
    assert len(classes) == 8
    assert failures(run_solutions(scratch, classes)) == {}
