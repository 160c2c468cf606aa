"""What holds for every file. Which way imports run is import-linter's to check (`make check`)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 400


def sources(*folders: str) -> list[Path]:
    """Every Python file below these folders."""
    found = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    assert found
    return found


def nouns(module: ast.Module) -> Iterator[str]:
    """Public classes, and types that have a name (`Row = dict[...]`)."""
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        else:
            continue
        yield from (name for name in names if re.fullmatch(r"[A-Z]+[a-z]\w*", name))


def test_a_noun_means_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sources("marl_ray"):
        for name in nouns(ast.parse(path.read_text(encoding="utf-8"))):
            places[name].append(str(path.relative_to(ROOT)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert twice == {}


def test_no_file_is_too_long_to_read() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources("marl_ray", "tests", "tools")}
    assert {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > LONGEST} == {}


def test_tests_are_where_their_source_is() -> None:
    ours = {"deploy", "end_to_end"}
    rooms = {path.parent.name for path in (ROOT / "marl_ray").glob("*/__init__.py")}
    tested = {path.parent.name for path in (ROOT / "tests").glob("*/__init__.py")}
    assert tested - rooms - ours == set()
    assert {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")} == tested


def test_every_room_says_what_it_is() -> None:
    for path in sources("marl_ray"):
        text = path.read_text(encoding="utf-8")
        assert not text or ast.get_docstring(ast.parse(text)), path
        assert text or path.name != "__init__.py", f"{path} is empty: one line that says what the room is"


@pytest.mark.parametrize("name", ["docs/explanation/architecture.md", "CONTRIBUTING.md", "README.md"])
def test_documents_name_what_is_there(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [link for link in links if not ((ROOT / name).parent / link).exists()] == []
    inside = [ROOT, ROOT / "marl_ray", ROOT / "marl_ray/sandbox", ROOT / "marl_ray/sandbox/inside"]
    named = re.findall(r"`([a-z_0-9]+/(?:[a-z_0-9]+/)*(?:[a-z_0-9]+\.\w+)?)`", text)
    assert [path for path in named if not any((place / path).exists() for place in inside)] == []
