"""Make an installation of marl_ray for a Linux machine without a network.

    python tools/offline_bundle.py --out bundle --python 3.12 --cuda 130
    PYTHON=/path/to/venv/bin/python sh bundle/install.sh    (on the other machine)

The folder has the wheels as one archive in pieces, the SHA-256 of each piece, and a script that checks and installs
them. Versions come from constraints/. pip evaluates a requirement's `python_version < ...` for the Python that pip runs
in. This tool therefore follows requirements by itself, for the target's Python, and asks pip for single packages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
GPU_BUILD = "130"
"""CUDA version of the packages in constraints/gpu.txt."""
LISTS = {"cpu": "cpu.txt", GPU_BUILD: "gpu.txt"}
ROOTS = {"cpu": "marl-ray[cpu]", GPU_BUILD: "marl-ray[gpu,lora]"}
UNUSED = {"cpu": {"torchvision", "torchaudio", "torchcodec"}, GPU_BUILD: {"torchaudio", "torchcodec"}}
"""Packages that vLLM requires and text models do not use. install.sh and pyproject.toml leave out the same ones."""
GLIBC = {f"manylinux_2_{minor}_x86_64": minor for minor in range(17, 36)}
PLATFORMS = ["manylinux2014_x86_64", *GLIBC, "linux_x86_64"]
"""Platforms of wheels. pip takes the first for which a release has a wheel, so the oldest glibc comes first."""
METADATA_S = 900
DOWNLOAD_S = 6 * 3600
"""Deadlines of one call of pip, in seconds."""


@dataclass
class Package:
    """A package of the bundle, with its requirements of all extras, and the extras that other packages ask for."""

    version: str
    requires: list[Requirement]
    extras: set[str] = field(default_factory=set)


def run_pip(*arguments: str, seconds: float) -> None:
    """Run pip of this Python. Exit with pip's last error in one line, or when `seconds` are over."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    try:
        # Downloads show their progress on standard output.
        done = subprocess.run(command, stderr=subprocess.PIPE, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        sys.exit(f"pip {arguments[0]} has not ended in {seconds:.0f} s: try again, or name a faster index with --index")
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").split("\n")
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        # Of two versions that exclude each other, pip's last line has an address only.
        named = [line for line in errors if not line.startswith("ResolutionImpossible")] or ["no message"]
        sys.exit(f"pip {arguments[0]}: {named[-1].rstrip('.')} (--index URL names another index)")


def build_own_wheel(folder: Path) -> Path:
    """Build marl_ray's wheel from this checkout into a folder, and return its path."""
    with tempfile.TemporaryDirectory() as work:
        # setuptools writes into the folder that it builds, and would pack old files of its build/.
        source = Path(work)
        shutil.copytree(ROOT / "marl_ray", source / "marl_ray", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, source)
        run_pip("wheel", "-q", "--no-deps", "-w", str(folder), str(source), seconds=METADATA_S)
    return next(folder.glob("marl_ray-*.whl"))


def read_versions(path: Path) -> dict[str, str]:
    """Return the version of every package in a file of `name==version` lines (constraints/, pip freeze).

    Other lines of pip freeze (comments, editable installs, addresses) have no version and are passed over.
    """
    versions: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r"([\w.-]+)==([^\s;#]+)", line.strip())
        if match:
            versions[canonicalize_name(match[1])] = match[2]
    return versions


def look_up(lines: list[str], choice: list[str]) -> dict[str, Package]:
    """Return the packages that pip chooses for these requirements alone, from the index's metadata."""
    with tempfile.TemporaryDirectory() as work:
        report = Path(work) / "report.json"
        flags = ["-q", "--dry-run", "--ignore-installed", "--no-deps", "--report", str(report)]
        run_pip("install", *flags, *choice, *lines, seconds=METADATA_S)
        rows = json.loads(report.read_text(encoding="utf-8"))["install"]
    packages: dict[str, Package] = {}
    for row in rows:
        metadata = row["metadata"]
        requires = [Requirement(text) for text in metadata.get("requires_dist", [])]
        packages[canonicalize_name(metadata["name"])] = Package(metadata["version"], requires)
    return packages


def resolve(
    roots: list[Requirement], pins: dict[str, str], python: str, choice: list[str], unused: set[str]
) -> dict[str, Package]:
    """Return every package that the roots lead to on the target, by name.

    `pins` has the line for pip of each package with a fixed version, `choice` pip's options for the target, and
    `unused` the packages that are not followed. Exit if a chosen version is outside the range of any requirement.
    """
    target = {"implementation_name": "cpython", "platform_python_implementation": "CPython", "os_name": "posix"}
    target |= {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
    target |= {"python_version": python, "python_full_version": f"{python}.0", "implementation_version": f"{python}.0"}
    packages: dict[str, Package] = {}
    seen: list[tuple[Requirement, str]] = []
    pending: list[tuple[Requirement, str]] = [(root, "the command line") for root in roots]
    while pending:
        seen += pending
        lines = set()
        for requirement, _ in pending:
            name = canonicalize_name(requirement.name)
            if name not in packages:
                lines.add(pins.get(name, f"{name}{requirement.specifier}"))
        if lines:
            packages |= look_up(sorted(lines), choice)
        following: list[tuple[Requirement, str]] = []
        for requirement, _ in pending:
            name = canonicalize_name(requirement.name)
            package = packages[name]
            for extra in {"", *requirement.extras} - package.extras:
                package.extras.add(extra)
                for needed in package.requires:
                    applies = needed.marker is None or needed.marker.evaluate({**target, "extra": extra})
                    if applies and canonicalize_name(needed.name) not in unused:
                        following.append((needed, name))
        pending = following
    for requirement, parent in seen:
        version = packages[canonicalize_name(requirement.name)].version
        if not requirement.specifier.contains(version, prereleases=True):
            sys.exit(f"{parent} needs {requirement}, and {version} is chosen: add '{requirement}' to the command")
    return packages


def write_pieces(folder: Path, out: Path, piece_bytes: int) -> None:
    """Move the files of a folder into one archive, in pieces `wheels.tar.0000`, ... with their SHA-256 in SHA256SUMS.

    A piece is in memory as a whole.
    """
    archive = folder.with_suffix(".tar")
    with tarfile.open(archive, "w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)
            path.unlink()  # at most two copies of the wheels are on the disk
    sums: list[str] = []
    with archive.open("rb") as file:
        while piece := file.read(piece_bytes):
            name = f"wheels.tar.{len(sums):04d}"
            (out / name).write_bytes(piece)
            sums.append(f"{hashlib.sha256(piece).hexdigest()}  {name}\n")
    (out / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")


def oldest_glibc(wheels: list[Path]) -> int:
    """Return the minor version of the oldest glibc 2 that all wheels run with."""
    needed = [17]
    for wheel in wheels:
        platforms = {tag.platform for tag in parse_wheel_filename(wheel.name)[3]}
        if platforms <= GLIBC.keys():
            needed.append(min(GLIBC[platform] for platform in platforms))
    return max(needed)


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line. Exit with one line for a value that cannot work."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="new folder for the pieces and install.sh")
    parser.add_argument("--python", default="3.12", help="Python version of the target (default: 3.12)")
    parser.add_argument("--cuda", default=GPU_BUILD, help=f"cpu or {GPU_BUILD} (default: {GPU_BUILD})")
    parser.add_argument("--exclude-installed", type=Path, metavar="FILE", help="output of `pip freeze` on the target")
    parser.add_argument("--piece-mb", type=float, default=60, help="size of a piece, 10^6 bytes (default: 60)")
    parser.add_argument(
        "--index", action="append", default=[], metavar="URL", help="one more index, such as PyTorch's own"
    )
    parser.add_argument("requirements", nargs="*", help="more packages, or marl-ray with other extras")
    options = parser.parse_args(arguments)
    if options.cuda not in LISTS:
        sys.exit(f"--cuda {options.cuda}: give cpu or {GPU_BUILD}, for which constraints/ has versions")
    if not re.fullmatch(r"3\.\d+", options.python):
        sys.exit(f"--python {options.python}: give a version such as 3.12")
    if options.piece_mb * 1e6 < 1:
        sys.exit(f"--piece-mb {options.piece_mb}: give a size above 0")
    if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
        sys.exit(f"--out {options.out} is not empty: name a new folder")
    return options


def main(arguments: list[str] | None = None) -> None:
    options = read_arguments(arguments)
    try:
        roots = [Requirement(text) for text in options.requirements]
        present = read_versions(options.exclude_installed) if options.exclude_installed else {}
    except (InvalidRequirement, OSError, UnicodeDecodeError) as error:
        sys.exit(" ".join(str(error).split()))
    if options.exclude_installed and not present:
        sys.exit(f"{options.exclude_installed} has no line name==version: write it with pip freeze on the target")
    versions = read_versions(ROOT / "constraints" / LISTS[options.cuda])
    pins = {name: f"{name}=={version}" for name, version in versions.items()}
    for root in roots:
        if root.specifier or root.url:
            pins[canonicalize_name(root.name)] = str(root)
    if "marl-ray" not in [canonicalize_name(root.name) for root in roots]:
        roots.append(Requirement(ROOTS[options.cuda]))
    choice = ["--only-binary=:all:", "--implementation=cp", f"--python-version={options.python}"]
    choice += [f"--platform={platform}" for platform in PLATFORMS]
    choice += [f"--extra-index-url={url}" for url in options.index]

    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out) as work:
        own_wheel = build_own_wheel(Path(work))
        pins["marl-ray"] = f"marl-ray @ {own_wheel.resolve().as_uri()}"
        packages = resolve(roots, pins, options.python, choice, UNUSED[options.cuda])

        downloads = [pins.pop("marl-ray")]
        installed = []
        left_out = []
        for name, package in sorted(packages.items()):
            public_version = package.version.split("+")[0]
            if name == "marl-ray":
                continue  # install.sh installs it whatever version the target has
            if present.get(name, "").split("+")[0] == public_version:
                left_out.append(f"{name} {package.version}")
                installed.append(f"{name}=={public_version}")  # pip fails there if the target does not have it
                continue
            exact = f"{name}=={package.version}"
            downloads.append(pins[name] if " @ " in pins.get(name, "") else exact)
            installed.append(exact)
        folder = Path(work) / "wheels"
        run_pip("download", "--no-deps", "-d", str(folder), *choice, *downloads, seconds=DOWNLOAD_S)
        wheels = sorted(folder.glob("*.whl"))
        megabytes = f"{sum(wheel.stat().st_size for wheel in wheels) / 1e6:.0f}"
        (folder / "requirements.txt").write_text("\n".join([*installed, ""]), encoding="utf-8")
        write_pieces(folder, options.out, int(options.piece_mb * 1e6))

    script = (ROOT / "tools" / "offline_install.sh").read_text(encoding="utf-8")
    sums = hashlib.sha256((options.out / "SHA256SUMS").read_bytes()).hexdigest()
    values = {"PYTHON": options.python, "GLIBC": str(oldest_glibc(wheels)), "MB": megabytes, "SUMS": sums}
    for name, value in values.items():
        script = script.replace(f"@{name}@", value)
    (options.out / "install.sh").write_text(script, encoding="utf-8")
    if left_out:
        print(f"left out, on the target already: {', '.join(left_out)}")
    pieces = len(list(options.out.glob("wheels.tar.*")))
    print(f"{len(wheels)} wheels, {megabytes} MB, {pieces} pieces in {options.out}")


if __name__ == "__main__":
    main()
