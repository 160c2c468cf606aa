"""Completion scripts, run by the shells themselves."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from marl_ray.cli.completion import script
from marl_ray.cli.main import all_commands

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The file of each shell's script."""
    folder = tmp_path_factory.mktemp("completion")
    files = {shell: folder / shell for shell in SHELLS}
    for shell, file in files.items():
        file.write_text(script(shell), encoding="utf-8")
    return files


def run(shell: str, code: str, folder: Path) -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    clean = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run([shell, *clean, "-c", code], capture_output=True, text=True, timeout=300, cwd=folder)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


def in_bash(script: Path, folder: Path, *words: str) -> list[str]:
    """Return the completions of the last word."""
    typed = " ".join(map(shlex.quote, words))
    return run(
        "bash",
        f"source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _marl_ray; "
        'printf "%s\\n" "${COMPREPLY[@]}"',
        folder,
    )


@pytest.mark.plugins("report")
def test_bash_completes_commands_flags_settings_and_files(scripts: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "one.yaml").touch()
    (tmp_path / "runs").mkdir()
    script = scripts["bash"]
    assert in_bash(script, tmp_path, "marl-ray", "") == list(all_commands())
    assert in_bash(script, tmp_path, "marl-ray", "rep") == ["replay", "report"]
    assert in_bash(script, tmp_path, "marl-ray", "train", "--res") == ["--resume"]
    assert in_bash(script, tmp_path, "marl-ray", "train", "magrpo", "--config", "on") == ["one.yaml"]
    turns = ["--override", "seed=1", "magrpo.num_tu"]
    assert in_bash(script, tmp_path, "marl-ray", "train", "magrpo", *turns) == ["magrpo.num_turns="]
    assert in_bash(script, tmp_path, "marl-ray", "train", "magrpo", *turns[:2], "--dr") == ["--dry-run"]
    assert in_bash(script, tmp_path, "marl-ray", "report", "ru") == ["runs"]
    assert in_bash(script, tmp_path, "marl-ray", "report", "runs", "--tr") == ["--trace"]
    assert in_bash(script, tmp_path, "marl-ray", "completion", "z") == ["zsh"]
    assert in_bash(script, tmp_path, "marl-ray", "sandbox", "do") == ["doctor"]


def test_zsh_reads_its_script(scripts: dict[str, Path], tmp_path: Path) -> None:
    start = f"autoload -Uz compinit && compinit -u -d {tmp_path / 'dump'}"
    code = f'{start}; eval "$(< {scripts["zsh"]})"; print $_comps[marl-ray]'
    assert run("zsh", code, tmp_path)[-1] == "_shtab_marl_ray"


def test_fish_completes_commands_and_flags(scripts: dict[str, Path], tmp_path: Path) -> None:
    found = run("fish", f"source {scripts['fish']}; complete -C 'marl-ray rep'", tmp_path)
    assert [line.split("\t")[0] for line in found] == ["replay", "report"]
    found = run("fish", f"source {scripts['fish']}; complete -C 'marl-ray report --tr'", tmp_path)
    assert [line.split("\t")[0] for line in found] == ["--trace"]
