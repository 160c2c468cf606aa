"""Allowed packages: importable at every level of this machine, and nothing else of site-packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_ray.sandbox import ExecutionReport, Program, Sandbox, SandboxSettings, SandboxUnavailable

PROGRAM = """
def f(x):
    import shapes.area
    return shapes.area.square(x)

def g(name):
    __import__(name)

def r(name):
    import shapes
    path = shapes.__file__.replace("shapes", name)
    with open(path) as file:
        return file.read()

def w():
    import shapes
    with open(shapes.__file__, "a") as file:
        file.write("import os")
"""
TESTS = ("assert f(3) == 9", "assert g('secrets_of_others')", "assert r('secrets_of_others')", "assert w()")


def distribution(folder: Path, name: str, **files: str) -> None:
    """Install a package with these files as pip does."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (folder / name).mkdir()
    for file, text in files.items():
        (folder / name / f"{file}.py").write_text(text)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "top_level.txt").write_text(f"{name}\n")
    (info / "RECORD").write_text("".join(f"{name}/{file}.py,,\n" for file in files) + f"{info.name}/RECORD,,\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of installed packages."""
    folder = tmp_path / "site"
    distribution(folder, "shapes", __init__="import shapes.area\n", area="def square(x):\n    return x * x\n")
    distribution(folder, "secrets_of_others", __init__="KEY = 'abc'\n")
    monkeypatch.syspath_prepend(folder)
    return folder


def statuses(report: ExecutionReport) -> list[tuple[str, str | None]]:
    return [(test.status, test.error_type) for test in report.tests]


@pytest.mark.parametrize(
    ("isolation", "without"), [("bwrap", ()), ("process", ()), ("process", ("landlock",))], ids=str
)
def test_only_named_packages_can_be_imported_and_read(isolation: str, without: tuple[str, ...], site: Path) -> None:
    settings = SandboxSettings(isolation, packages=("shapes",))  # type: ignore[arg-type]
    try:
        with Sandbox(settings, without=without) as sandbox:
            report = sandbox.run(Program(PROGRAM, TESTS, "f"))
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    first, unnamed, file, written = statuses(report)
    assert first == ("pass", None)
    assert unnamed == ("error", "ModuleNotFoundError")
    assert file[0] == written[0] == "error"
    assert {file[1], written[1]} <= {"PermissionError", "FileNotFoundError", "OSError"}


def test_no_package_can_be_imported_by_default(site: Path) -> None:
    with Sandbox() as sandbox:
        assert statuses(sandbox.run(Program(PROGRAM, TESTS[:1], "f"))) == [("error", "ModuleNotFoundError")]


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("absent", None, "sandbox.packages: absent is not installed here"),
        ("needy", "import another", "sandbox.packages: needy cannot be imported: No module named 'another'"),
        (
            "busy",
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "sandbox.packages: one of them starts threads when it is imported",
        ),
    ],
)
def test_unusable_packages_are_refused(name: str, code: str | None, message: str, site: Path) -> None:
    if code is not None:
        distribution(site, name, __init__=code)
    with pytest.raises(SandboxUnavailable) as caught:
        Sandbox(SandboxSettings("process", packages=(name,)), without=["landlock"]).start()
    assert message in str(caught.value)


def test_every_guest_gets_the_same_random_numbers() -> None:
    pytest.importorskip("numpy")
    program = Program("import numpy\ndef f():\n    return float(numpy.random.rand())", ("assert f() == 2",), "f")
    messages = set()
    for _ in range(2):
        with Sandbox(SandboxSettings(packages=("numpy",))) as sandbox:
            messages.add(sandbox.run(program).tests[0].message)
    assert len(messages) == 1


def test_package_names_must_be_import_names() -> None:
    with pytest.raises(ValueError, match=r"sandbox\.packages: 'numpy\.linalg' is not an import name"):
        SandboxSettings(packages=("numpy.linalg",))
