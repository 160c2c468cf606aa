"""Documentation: code blocks parse, commands exist, and links from Markdown files outside docs/ resolve.

`make docs` checks the links inside docs/.
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*/README.md"),
        *ROOT.glob("marl_ray/plugins/*/README.md"),
        *ROOT.glob("deploy/*/*.md"),
    ]
)
BLOCK = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
MODULE = re.compile(r"python3? -m ((?:marl_ray|benchmarks|tools)[\w.]*)")
CONFIG = re.compile(r"configs/[\w/]+\.yaml")


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced code blocks of a page in one language, without their indentation."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [textwrap.dedent(text) for _, name, text in found if name == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks_parse(page: Path) -> None:
    for text in blocks(page, "python"):
        ast.parse(text)
    for text in blocks(page, "yaml"):
        assert list(yaml.safe_load_all(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_and_configs_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    modules = [ROOT / name.replace(".", "/") for name in MODULE.findall(text)]
    assert [path for path in modules if not (path.with_suffix(".py").exists() or (path / "__main__.py").exists())] == []
    assert [name for name in CONFIG.findall(text) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_glossary_is_short() -> None:
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    glossary = re.search(r"^## Glossary\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert glossary is not None
    assert 10 <= len(re.findall(r"^\| (?!term|---)", glossary[1], re.MULTILINE)) <= 40


def test_tests_that_the_page_of_gpu_paths_names_exist() -> None:
    page = (ROOT / "docs/explanation/gpu_verification.md").read_text(encoding="utf-8")
    missing = []
    for line in page.splitlines():
        names: list[str] = []
        for name in re.findall(r"`((?:test_\w+)|(?:(?:\w+/)+test_\w+\.py))`", line):
            if not name.endswith(".py"):
                names.append(name)  # the file follows
                continue
            path = ROOT / "tests" / name
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            missing += [f"{name}: {test}" for test in names if f"def {test}(" not in text]
            if not text:
                missing.append(name)
            names = []
        missing += [f"no file of {test}" for test in names]
    assert missing == []
