"""The folder of a file tells which process runs it: permitted imports per folder, and unique class names."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from marl_ray import sandbox

ROOT = Path(sandbox.__file__).parent
MAY_IMPORT = {
    "protocol": set[str](),
    "isolation": set[str](),
    "suites": set[str](),
    "guest": {"protocol"},
    "judge": {"suites", "isolation", "protocol"},
    "zygote": {"guest", "judge", "isolation", "protocol"},
}
INSIDE = sorted((ROOT / "inside").rglob("*.py"))
OUTSIDE = sorted([*ROOT.glob("*.py"), *(ROOT / "host").glob("*.py")])


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield level and module of every import in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.level, node.module or item.name) for item in node.names)
        elif isinstance(node, ast.Import):
            yield from ((0, item.name) for item in node.names)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", INSIDE, ids=name_of)
def test_isolated_code_imports_the_standard_library_and_permitted_folders_only(path: Path) -> None:
    folder = path.parent.name
    for level, module in imports(path):
        first = module.partition(".")[0]
        if level == 2:
            assert first in MAY_IMPORT[folder], f"{folder} imports {module}"
        elif level == 0:
            assert first in sys.stdlib_module_names or (path.name, first) == ("boot.py", "inside"), module
        else:
            assert level == 1
            assert (path.parent / f"{first}.py").exists(), module


@pytest.mark.parametrize("path", OUTSIDE, ids=name_of)
def test_host_code_imports_neither_the_rest_of_the_package_nor_isolated_processes(path: Path) -> None:
    for level, module in imports(path):
        assert level == 0, f"{module}: only isolated processes use relative imports"
        if module.partition(".")[0] != "marl_ray":
            assert module.partition(".")[0] in sys.stdlib_module_names, module
            continue
        parts = module.split(".")
        assert parts[1] == "sandbox", module
        if parts[2:3] == ["inside"]:
            assert parts[3] in ("protocol", "isolation", "suites"), module


def test_no_two_classes_have_the_same_name() -> None:
    names = Counter(
        node.name
        for path in (*INSIDE, *OUTSIDE)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []
