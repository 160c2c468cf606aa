"""tools/offline_bundle.py with wheels of one module each, and the install.sh that it writes. No network is used."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools import offline_bundle
from tools.offline_bundle import Package

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PIECE_BYTES = 4000
VARIABLES = {
    **{key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHON"))},
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_NO_INDEX": "1",
}


def write_wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = ()) -> Path:
    """Write a wheel whose package prints its version as a program, and return the wheel's path."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
        f"{name}/__main__.py": f"print({name!r}, {version!r})\n",
        f"{info}/METADATA": "\n".join([*metadata, ""]),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(file, content)
    return path


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with all wheels that pip finds: marl_ray needs top, which needs base."""
    folder = tmp_path_factory.mktemp("index")
    write_wheel(folder, "top", "1.0", ("base>=1", 'absent; python_version < "3"', 'absent; extra == "more"'))
    write_wheel(folder, "base", "1.2+cpu")
    write_wheel(folder, "base", "0.9")
    own = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        for key in set(os.environ) - set(VARIABLES):
            patch.delenv(key)
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(folder))
        patch.setattr(offline_bundle, "build_own_wheel", lambda _: write_wheel(own, "marl_ray", "0.2.0", ("top",)))
        yield folder


def build(out: Path, *options: str) -> None:
    """Make a bundle for the Python and the system of this process, in pieces of `PIECE_BYTES`."""
    common = ["--out", str(out), "--python", PYTHON, "--cuda", "cpu", "--piece-mb", str(PIECE_BYTES / 1e6)]
    offline_bundle.main([*common, *options])


@pytest.fixture(scope="module")
def bundle(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of all three packages. Tests that change files take a copy."""
    folder = tmp_path_factory.mktemp("made") / "bundle"
    build(folder)
    return folder


def install(bundle: Path, python: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["sh", bundle / "install.sh"]
    variables = {**VARIABLES, "PYTHON": str(python)}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)


def packed(bundle: Path, folder: Path) -> dict[str, bytes]:
    """Return the files in the joined pieces of a bundle, by name."""
    joined = folder / "joined.tar"
    joined.write_bytes(b"".join(piece.read_bytes() for piece in sorted(bundle.glob("wheels.tar.*"))))
    with tarfile.open(joined) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def test_pieces_have_the_given_size_and_a_checksum(bundle: Path, tmp_path: Path) -> None:
    pieces = sorted(bundle.glob("wheels.tar.*"))
    sizes = [piece.stat().st_size for piece in pieces]
    assert len(pieces) > 2
    assert set(sizes[:-1]) == {PIECE_BYTES}
    assert 0 < sizes[-1] <= PIECE_BYTES
    sums = [f"{hashlib.sha256(piece.read_bytes()).hexdigest()}  {piece.name}" for piece in pieces]
    assert (bundle / "SHA256SUMS").read_text().splitlines() == sums
    assert {path.name for path in bundle.iterdir()} == {*(p.name for p in pieces), "SHA256SUMS", "install.sh"}
    files = packed(bundle, tmp_path)
    wheels = ["base-1.2+cpu-py3-none-any.whl", "marl_ray-0.2.0-py3-none-any.whl", "top-1.0-py3-none-any.whl"]
    assert sorted(files) == [*wheels[:2], "requirements.txt", wheels[2]]
    assert files["requirements.txt"].decode().split() == ["base==1.2+cpu", "top==1.0"]


@pytest.mark.slow
def test_a_fresh_environment_is_installed_without_an_index(bundle: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    for _ in range(2):  # the second installation replaces marl_ray, which has the same version
        done = install(bundle, python)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "marl_ray 0.2.0"
    command = [python, "-c", "import base, top; print(base.__version__, top.__version__)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1.2+cpu 1.0\n"
    assert list(bundle.glob("wheels.*/")) == []


@pytest.mark.parametrize("name", ["wheels.tar.0001", "SHA256SUMS", "wheels.tar.0000"])
@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_missing_or_damaged_file_is_refused(bundle: Path, tmp_path: Path, name: str, damage: str) -> None:
    copy = shutil.copytree(bundle, tmp_path / "copy")
    if damage == "missing":
        (copy / name).unlink()
    else:
        content = bytearray((copy / name).read_bytes())
        content[len(content) // 2] ^= 1
        (copy / name).write_bytes(content)
    done = install(copy, sys.executable)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"install.sh: {name} is {damage}")
    assert line.endswith("copy it again")


def test_another_python_is_refused(bundle: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(bundle, tmp_path / "copy")
    script = (copy / "install.sh").read_text()
    (copy / "install.sh").write_text(script.replace(f'== "{PYTHON}"', '== "3.99"'))
    (line,) = install(copy, sys.executable).stderr.splitlines()
    assert line == f"install.sh: these wheels are for Python {PYTHON}: set PYTHON"
    (line,) = install(copy, tmp_path / "no-python").stderr.splitlines()
    assert "no-python is no Python" in line


def test_packages_of_the_target_are_left_out(index: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    freeze = tmp_path / "freeze.txt"
    lines = ["# comment", "-e /src/editable", "Base==1.2+cu130", "top==0.8", "marl-ray==0.2.0", "x @ file:///x.whl"]
    freeze.write_text("\n".join(lines))
    build(tmp_path / "bundle", "--exclude-installed", str(freeze))
    assert "left out, on the target already: base 1.2+cpu\n" in capfd.readouterr().out
    files = packed(tmp_path / "bundle", tmp_path)
    assert sorted(files) == ["marl_ray-0.2.0-py3-none-any.whl", "requirements.txt", "top-1.0-py3-none-any.whl"]
    assert files["requirements.txt"].decode().split() == ["base==1.2", "top==1.0"]


def test_a_version_outside_a_range_is_refused(index: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^top needs base>=1, and 0\.9 is chosen: add 'base>=1' to the command$"):
        build(tmp_path / "bundle", "base==0.9")


def test_a_package_that_pip_cannot_find_is_one_line(index: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^pip install: No matching distribution found for absent .*--index URL.*\)$"):
        build(tmp_path / "bundle", "top[more]")


def test_requirements_are_followed_for_the_python_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = [
        'old; python_version < "3.12"',
        'new; python_version >= "3.12"',
        'other; sys_platform == "darwin"',
        "unused",
    ]
    known = {
        "app": Package("1", [Requirement(text) for text in needs]),
        "old": Package("1", [Requirement("app[more]"), Requirement('plus; extra == "more"')]),
        "new": Package("1", []),
    }
    asked: list[list[str]] = []

    def look_up(lines: list[str], choice: list[str]) -> dict[str, Package]:
        asked.append(lines)
        return {name: known[name] for name in (line.split("==")[0] for line in lines)}

    monkeypatch.setattr(offline_bundle, "look_up", look_up)
    for python, name in (("3.11", "old"), ("3.13", "new")):
        asked.clear()
        known["app"].extras.clear()
        packages = offline_bundle.resolve([Requirement("app")], {"app": "app==1"}, python, [], {"unused"})
        assert set(packages) == {"app", name}
        assert asked == [["app==1"], [name]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cuda", "128"], "--cuda 128: give cpu or 130"),
        (["--python", "3"], "--python 3: give a version such as 3.12"),
        (["--piece-mb", "0"], "--piece-mb 0.0: give a size above 0"),
        (["--exclude-installed", "missing.txt"], "No such file or directory: 'missing.txt'"),
        (["--exclude-installed", __file__], "has no line name==version: write it with pip freeze"),
        (["base=>1"], "base=>1"),
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, options: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message) as caught:
        offline_bundle.main(["--out", str(tmp_path / "bundle"), *options])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "bundle").exists()


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wheels.tar.0009").touch()
    with pytest.raises(SystemExit, match="is not empty: name a new folder"):
        offline_bundle.main(["--out", str(tmp_path)])


def test_the_oldest_glibc_is_that_of_the_most_demanding_wheel() -> None:
    names = ["a-1-py3-none-any.whl", "b-1-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"]
    names += ["c-1-cp312-cp312-manylinux2014_x86_64.manylinux_2_31_x86_64.whl"]
    assert offline_bundle.oldest_glibc([Path(name) for name in names]) == 27
    assert offline_bundle.oldest_glibc([Path(name) for name in names[:1]]) == 17
