"""Make an installation of marl_ray for a Linux machine without a network: wheels in pieces, and the script `install.sh`.

    python tools/offline_bundle.py --out bundle --python 3.12 --cuda 130
    PYTHON=/path/to/venv/bin/python sh bundle/install.sh    (on the other machine)

Versions come from constraints/. pip's resolver evaluates `python_version` in requirements for the Python that it runs in.
Requirements are therefore followed here, with the markers of the target, and pip only looks for single packages.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
GPU_WHEELS = "130"
"""CUDA version of the wheels in constraints/gpu.txt."""
NOT_INSTALLED = {"cpu": {"torchvision", "torchaudio", "torchcodec"}, GPU_WHEELS: {"torchaudio", "torchcodec"}}
"""Packages that vLLM requires and text models do not use (pyproject.toml, install.sh in the root)."""
GLIBC = [f"manylinux_2_{minor}_x86_64" for minor in range(17, 36)]
PLATFORMS = ["manylinux2014_x86_64", *GLIBC, "linux_x86_64"]
"""Platforms of wheels. pip takes the first that a release has, so the oldest glibc comes first."""
METADATA_S = 900
DOWNLOAD_S = 6 * 3600
"""Deadlines of a call of pip, in seconds."""


@dataclass
class Package:
    """A package of the bundle, with its requirements of all extras and the extras that something requires."""

    version: str
    requires: list[Requirement]
    extras: set[str] = field(default_factory=set)


def pip(*arguments: str, seconds: float, quiet: bool = True) -> None:
    """Run pip of this Python. Exit with pip's last error in one line, or when `seconds` are over."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    try:
        done = subprocess.run(
            command + ["-q"] * quiet, stderr=subprocess.PIPE, text=True, encoding="utf-8", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        sys.exit(f"pip {arguments[0]} was not ready after {seconds:.0f} s: try again")
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["", *done.stderr.splitlines()]
        sys.exit(f"pip {arguments[0]}: {errors[-1]} (add --index URL if another index has it)")


def build_own_wheel(folder: Path) -> Path:
    """Build marl_ray's wheel from this checkout into a folder, and return its path."""
    with tempfile.TemporaryDirectory() as work:
        # setuptools writes into the folder that it builds, and would pack old files of build/.
        source = Path(work)
        shutil.copytree(ROOT / "marl_ray", source / "marl_ray", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, source)
        pip("wheel", "--no-deps", "-w", str(folder), str(source), seconds=METADATA_S)
    return next(folder.glob("marl_ray-*.whl"))


def read_pins(path: Path) -> dict[str, str]:
    """Return the version of every package in a file of `name==version` lines, as pip freeze or constraints/ have them.

    Other lines of pip freeze (comments, editable installs, addresses) name no version and are left out.
    """
    pins = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r"([\w.-]+)===?([^\s;#]+)", line.strip())
        if match:
            pins[canonicalize_name(match[1])] = match[2]
    return pins


def look_up(lines: list[str], options: list[str]) -> dict[str, Package]:
    """Return the packages that pip selects for these lines, without their requirements and without downloading them."""
    with tempfile.TemporaryDirectory() as work:
        report = Path(work) / "report.json"
        flags = ["--dry-run", "--ignore-installed", "--no-deps", "--report", str(report)]
        pip("install", *flags, *options, *lines, seconds=METADATA_S)
        rows = json.loads(report.read_text(encoding="utf-8"))["install"]
    packages = {}
    for row in rows:
        name = canonicalize_name(row["metadata"]["name"])
        version = row["metadata"]["version"]
        requires = [Requirement(text) for text in row["metadata"].get("requires_dist", [])]
        packages[name] = Package(version, requires)
    return packages


def resolve(
    roots: list[str], pins: dict[str, str], python: str, options: list[str], without: set[str]
) -> dict[str, Package]:
    """Return every package that the roots lead to on the target, by name.

    `pins` has the requirement (`name==version`, `name @ address`) that replaces other ranges of a package. Packages in
    `without` are not followed.
    Exit if a selected version is outside the range of a requirement.
    """
    target = {"implementation_name": "cpython", "platform_python_implementation": "CPython", "os_name": "posix"}
    target |= {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
    target |= {"python_version": python, "python_full_version": f"{python}.0", "implementation_version": f"{python}.0"}
    packages: dict[str, Package] = {}
    pending = [(Requirement(root), "the bundle") for root in roots]
    ranges = []
    while pending:
        ranges += pending
        lines = set()
        for requirement, _ in pending:
            name = canonicalize_name(requirement.name)
            if name not in packages:
                lines.add(pins.get(name) or f"{name}{requirement.specifier}")
        if lines:
            packages |= look_up(sorted(lines), options)
        following = []
        for requirement, _ in pending:
            name = canonicalize_name(requirement.name)
            package = packages[name]
            for extra in {"", *requirement.extras} - package.extras:
                package.extras.add(extra)
                for needed in package.requires:
                    wanted = needed.marker is None or needed.marker.evaluate({**target, "extra": extra})
                    if wanted and canonicalize_name(needed.name) not in without:
                        following.append((needed, name))
        pending = following
    for requirement, parent in ranges:
        name = canonicalize_name(requirement.name)
        version = packages[name].version
        if not requirement.specifier.contains(version, prereleases=True):
            sys.exit(f"{parent} needs {requirement} and {version} was selected: add '{name}{requirement.specifier}'")
    return packages


def prune(wheel: Path, architectures: list[str]) -> int:
    """Remove the code for other GPU architectures from the static libraries of a wheel. Return the bytes saved.

    nvprune accepts static libraries and object files only. Shared libraries, which are most of the code for GPUs, keep
    all architectures. A file that nvprune refuses stays as it is.
    """
    codes = [f"-gencode=arch={name.replace('sm', 'compute')},code={name}" for name in architectures]
    changed = {}
    saved = 0
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as work:
        for entry in archive.infolist():
            if not entry.filename.endswith((".a", ".o")):
                continue
            source = Path(archive.extract(entry, work))
            result = source.with_suffix(".pruned")
            done = subprocess.run(
                ["nvprune", *codes, "-o", result, source], capture_output=True, timeout=METADATA_S, check=False
            )
            if done.returncode == 0 and 0 < result.stat().st_size < entry.file_size:
                changed[entry.filename] = result.read_bytes()
                saved += entry.file_size - len(changed[entry.filename])
        if not changed:
            return 0
        smaller = wheel.with_suffix(".new")
        with zipfile.ZipFile(smaller, "w", zipfile.ZIP_DEFLATED) as output:
            for entry in archive.infolist():
                content = changed.get(entry.filename) or archive.read(entry)
                if entry.filename.endswith(".dist-info/RECORD"):
                    content = updated_record(content.decode("utf-8"), changed).encode("utf-8")
                output.writestr(entry, content)
    smaller.replace(wheel)
    return saved


def updated_record(record: str, changed: dict[str, bytes]) -> str:
    """Return a wheel's RECORD with the digests (SHA-256, base64) and sizes (bytes) of changed files."""
    lines = []
    for line in record.splitlines():
        name = line.rsplit(",", 2)[0]
        if name in changed:
            digest = base64.urlsafe_b64encode(hashlib.sha256(changed[name]).digest()).rstrip(b"=").decode()
            line = f"{name},sha256={digest},{len(changed[name])}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def write_pieces(source: Path, out: Path, piece_bytes: int) -> None:
    """Write the files of a folder as one tar archive in pieces `wheels.tar.0000`, ... and their SHA-256 in SHA256SUMS."""
    names: list[str] = []

    class Pieces(io.RawIOBase):
        """The archive as a file that is only written, from its start to its end."""

        room = 0

        def write(self, data: Any) -> int:
            rest = memoryview(data)
            while rest:
                if self.room == 0:
                    names.append(f"wheels.tar.{len(names):04d}")
                    self.room = piece_bytes
                part = rest[: self.room]
                with (out / names[-1]).open("ab") as piece:
                    piece.write(part)
                self.room -= len(part)
                rest = rest[len(part) :]
            return len(data)

    with tarfile.open(fileobj=Pieces(), mode="w|") as archive:
        for path in sorted(source.iterdir()):
            archive.add(path, path.name)
    sums = "".join(f"{sha256(out / name)}  {name}\n" for name in names)
    (out / "SHA256SUMS").write_text(sums, encoding="utf-8")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


INSTALL = """#!/bin/sh
# Installs marl_ray without a network into the environment of $PYTHON (python3 if it is not set):
#     PYTHON=/path/to/venv/bin/python sh install.sh
# The wheels (@MB@ MB) are unpacked into a new folder in $TMPDIR, or here if it is not set, and removed at the end.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python="${PYTHON:-python3}"

fail() {
    echo "install.sh: $1" >&2
    exit 1
}
accepts() { "$python" -c "import platform, sys; sys.exit(not ($1))" 2>/dev/null; }
digest() { sha256sum "$1" | cut -d " " -f 1; }

"$python" -m pip --version >/dev/null 2>&1 || fail "$python has no pip: set PYTHON to the Python of a virtual environment"
accepts '"%d.%d" % sys.version_info[:2] == "@PYTHON@"' || fail "these wheels are for Python @PYTHON@: set PYTHON"
accepts 'platform.system() == "Linux" and platform.machine() == "x86_64"' || fail "these wheels are for Linux on x86-64"
accepts 'int(platform.libc_ver()[1].split(".")[1]) >= @GLIBC@' || fail "these wheels need glibc 2.@GLIBC@"

[ -f "$here/SHA256SUMS" ] || fail "SHA256SUMS is missing: copy it again"
[ "$(digest "$here/SHA256SUMS")" = @SUMS@ ] || fail "SHA256SUMS is damaged or of another bundle: copy it again"
while read -r sum name; do
    [ -f "$here/$name" ] || fail "$name is missing: copy it again"
    [ "$(digest "$here/$name")" = "$sum" ] || fail "$name is damaged: copy it again"
done <"$here/SHA256SUMS"

work=$(mktemp -d "${TMPDIR:-$here}/wheels.XXXXXX") || fail "set TMPDIR to a folder with @MB@ MB of free space"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
while read -r sum name; do cat "$here/$name"; done <"$here/SHA256SUMS" |
    "$python" -W ignore -c 'import sys, tarfile
try:
    tarfile.open(fileobj=sys.stdin.buffer, mode="r|").extractall(sys.argv[1])
except OSError as error:
    sys.exit(str(error))' "$work" || fail "the wheels need @MB@ MB: set TMPDIR to a folder with this space"

# The bundle has all requirements of its packages, except some for sound and video that vLLM names and does not need.
install() { "$python" -m pip --disable-pip-version-check install --no-index --no-deps "$@"; }
install --find-links "$work" -r "$work/requirements.txt" || fail "pip could not install the wheels, see above"
# marl_ray has the same version for many states of its repository.
install --force-reinstall "$work"/marl_ray-*.whl || fail "pip could not install marl_ray, see above"
"$python" -m marl_ray --version
"""


def write_installer(out: Path, python: str, wheels: list[Path]) -> None:
    """Write install.sh for a Python version, the oldest glibc that has all wheels, and the checksums in the folder."""
    glibc = 17
    for wheel in wheels:
        tags = parse_wheel_filename(wheel.name)[3]
        minors = [int(tag.platform.split("_")[2]) for tag in tags if tag.platform in GLIBC]
        older = any(tag.platform not in GLIBC for tag in tags)
        if minors and not older:
            glibc = max(glibc, min(minors))
    megabytes = sum(wheel.stat().st_size for wheel in wheels) / 1e6
    script = INSTALL.replace("@PYTHON@", python).replace("@GLIBC@", str(glibc)).replace("@MB@", f"{megabytes:.0f}")
    script = script.replace("@SUMS@", sha256(out / "SHA256SUMS"))
    (out / "install.sh").write_text(script, encoding="utf-8")
    (out / "install.sh").chmod(0o755)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="new folder for the pieces and install.sh")
    parser.add_argument("--python", default="3.12", help="Python version of the target (default: 3.12)")
    parser.add_argument("--cuda", default=GPU_WHEELS, help=f"cpu or {GPU_WHEELS} (default: {GPU_WHEELS})")
    parser.add_argument("--exclude-installed", type=Path, metavar="FILE", help="output of `pip freeze` on the target")
    parser.add_argument("--only-architectures", metavar="sm_90,...", help="remove other GPU code from static libraries")
    parser.add_argument("--piece-mb", type=float, default=60, help="size of a piece in 10^6 bytes (default: 60)")
    parser.add_argument("--index", action="append", default=[], metavar="URL", help="another index, e.g. PyTorch's own")
    parser.add_argument("requirements", nargs="*", help="more packages, or marl-ray with other extras")
    options = parser.parse_args(arguments)
    out = options.out
    architectures = (options.only_architectures or "").split(",") if options.only_architectures else []
    if options.cuda not in NOT_INSTALLED:
        sys.exit(f"--cuda {options.cuda}: constraints/ has versions for cpu and {GPU_WHEELS} only")
    if not re.fullmatch(r"3\.\d+", options.python):
        sys.exit(f"--python {options.python}: give the version as 3.12")
    if not 1 <= options.piece_mb * 1e6:
        sys.exit(f"--piece-mb {options.piece_mb}: a piece needs more than 0 MB")
    if not all(re.fullmatch(r"sm_\d+[af]?", name) for name in architectures):
        sys.exit(f"--only-architectures {options.only_architectures}: give names such as sm_90,sm_100")
    if architectures and not shutil.which("nvprune"):
        sys.exit("--only-architectures needs nvprune of the CUDA toolkit on PATH")
    if out.exists() and any(out.iterdir()):
        sys.exit(f"{out} is not empty: name a new folder")
    installed = read_pins(options.exclude_installed) if options.exclude_installed else {}
    if options.exclude_installed and not installed:
        sys.exit(f"{options.exclude_installed} has no line name==version: write it with `pip freeze` on the target")

    kind = "cpu" if options.cuda == "cpu" else "gpu"
    pins = {name: f"{name}=={version}" for name, version in read_pins(ROOT / "constraints" / f"{kind}.txt").items()}
    given = [Requirement(text) for text in options.requirements]
    for requirement in given:
        if requirement.specifier or requirement.url:
            pins[canonicalize_name(requirement.name)] = str(requirement)
    roots = list(options.requirements)
    if "marl-ray" not in {canonicalize_name(requirement.name) for requirement in given}:
        roots.append("marl-ray[cpu]" if kind == "cpu" else "marl-ray[gpu,lora]")

    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as work:
        own = build_own_wheel(Path(work))
        folder = Path(work) / "wheels"
        pins["marl-ray"] = f"marl-ray @ {own.resolve().as_uri()}"
        choice = ["--only-binary=:all:", "--implementation=cp", f"--python-version={options.python}"]
        choice += [f"--platform={name}" for name in PLATFORMS]
        choice += [f"--extra-index-url={url}" for url in options.index]
        packages = resolve(roots, pins, options.python, choice, NOT_INSTALLED[options.cuda])

        lines, wanted, left_out = [], [], []
        for name, package in sorted(packages.items()):
            exact = f"{name}=={package.version}"
            public = package.version.split("+")[0]
            if name != "marl-ray" and installed.get(name, "").split("+")[0] == public:
                left_out.append(exact)
                wanted.append(f"{name}=={public}")
                continue
            lines.append(pins[name] if " @ " in pins.get(name, "") else exact)
            if name != "marl-ray":
                wanted.append(exact)
        pip("download", "--no-deps", "-d", str(folder), *choice, *lines, seconds=DOWNLOAD_S, quiet=False)
        wheels = sorted(folder.glob("*.whl"))
        saved = sum(prune(wheel, architectures) for wheel in wheels) if architectures else 0
        (folder / "requirements.txt").write_text("\n".join([*wanted, ""]), encoding="utf-8")
        write_pieces(folder, out, int(options.piece_mb * 1e6))
        write_installer(out, options.python, wheels)
        megabytes = sum(wheel.stat().st_size for wheel in wheels) / 1e6
    if left_out:
        print(f"left out, on the target already: {', '.join(left_out)}")
    if architectures:
        print(f"removed code of other GPU architectures: {saved / 1e6:.1f} MB")
    print(f"{len(wheels)} wheels, {megabytes:.0f} MB, {len(list(out.glob('wheels.tar.*')))} pieces in {out}")
    print(f"On the target: PYTHON=/path/to/venv/bin/python sh {out.name}/install.sh")


if __name__ == "__main__":
    main()
