"""Rules for every file. Import layers are checked by import-linter (`make check`)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tools import prose

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400


def sources(*folders: str) -> list[Path]:
    """Return every Python file below these folders."""
    found = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    assert found
    return found


def repeated(names: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """Return the files of every name that occurs in more than one file."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, path in names:
        places[name].append(str(path.relative_to(ROOT)))
    return {name: files for name, files in places.items() if len(files) > 1}


def type_names(module: ast.Module) -> Iterator[str]:
    """Yield the names of public classes and type aliases (`Row = dict[...]`)."""
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        else:
            continue
        yield from (name for name in names if re.fullmatch(r"[A-Z]+[a-z]\w*", name))


def test_a_class_name_has_one_meaning() -> None:
    trees = [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in sources("marl_ray")]
    assert repeated((name, path) for path, tree in trees for name in type_names(tree)) == {}


def test_no_failure_leaves_tasks_behind() -> None:
    """`asyncio.gather` raises the first failure and lets other tasks run on. `core.concurrency.gather` ends them."""
    found = []
    for path in sources("marl_ray"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.gather" and not node.keywords:
                found.append(str(path.relative_to(ROOT)))
    assert found == ["marl_ray/core/concurrency.py"]


def test_files_have_at_most_400_lines() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources("marl_ray", "tests", "tools")}
    assert {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > MAX_LINES} == {}


def test_every_module_has_a_docstring() -> None:
    for path in sources("marl_ray"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_text_uses_plain_sentences() -> None:
    paths = [path for name in prose.SOURCES for path in [ROOT / name, *(ROOT / name).rglob("*")]]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {rule}: {text}"
        for path in paths
        if path.suffix in prose.SUFFIXES and path.relative_to(ROOT).as_posix() not in prose.EXEMPT
        for line, rule, text in prose.findings(path)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("docstring", "accepted"),
    [
        ("Return the mean.", True),
        ("Pass the tokens on.", True),
        ("Embed a prompt.", True),
        ("What the agents read.", False),
        ("Whether it ended.", False),
        ("Bytes of a result.", False),
        ("Shared by the agents.", False),
        ("[G] returns.", False),
    ],
)
def test_a_function_docstring_opens_with_a_verb(docstring: str, accepted: bool) -> None:
    assert prose.opens_with_verb(docstring) is accepted


def test_tests_are_in_the_folder_of_their_package() -> None:
    other = {"benchmarks", "deploy", "end_to_end"}
    packages = {path.parent.name for path in (ROOT / "marl_ray").glob("*/__init__.py")}
    tested = {path.parent.name for path in (ROOT / "tests").glob("*/__init__.py")}
    assert tested - packages - other == set()
    assert {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")} == tested
    plug_ins = {path.parent.name for path in (ROOT / "marl_ray" / "plugins").glob("*/__init__.py")}
    assert {path.parent.name for path in (ROOT / "tests" / "plugins").glob("*/test_*.py")} == plug_ins


def test_no_test_imports_another_test_module() -> None:
    imports = {
        str(path.relative_to(ROOT)): node.module
        for path in sources("tests")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and re.search(r"^tests\.(\w+\.)*test_\w+$", node.module or "")
    }
    assert imports == {}


@pytest.mark.parametrize("name", ["docs/explanation/architecture.md", "CONTRIBUTING.md", "README.md"])
def test_documents_name_existing_files(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [link for link in links if not ((ROOT / name).parent / link).exists()] == []
    inside = [ROOT, ROOT / "marl_ray", ROOT / "marl_ray/sandbox", ROOT / "marl_ray/sandbox/inside"]
    named = re.findall(r"`([a-z_0-9]+/(?:[a-z_0-9]+/)*(?:[a-z_0-9]+\.\w+)?)`", text)
    assert [path for path in named if not any((place / path).exists() for place in inside)] == []


TEXT_FILES = {"read_text": 0, "write_text": 1, "FileHandler": 9, "TextIOWrapper": 1}
"""Functions that read or write text, by the number of arguments before the encoding."""
OPENERS = {"open": 1, "fdopen": 1, "TemporaryFile": 0, "NamedTemporaryFile": 0}
"""Functions that open a file, by the position of the mode. The method `Path.open` has its mode first."""
COMPRESSED = ("gzip", "bz2", "lzma")
"""Modules whose `open` reads bytes by default."""


def lacks_encoding(call: ast.Call) -> bool:
    """Return whether a call reads or writes text in the encoding of the locale."""
    options = {keyword.arg: keyword.value for keyword in call.keywords}
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    if "encoding" in options or None in options:
        return False
    if name in TEXT_FILES:
        return len(call.args) <= TEXT_FILES[name]
    if name in ("run", "Popen", "call", "check_call", "check_output"):
        return "text" in options or "universal_newlines" in options
    owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if name not in OPENERS or (name == "open" and owner in ("os", "wheel", "shelve", "webbrowser")):
        return False
    is_method = name == "open" and owner not in ("", "io", *COMPRESSED)
    place = 0 if is_method else OPENERS[name]
    given = options.get("mode", call.args[place] if len(call.args) > place else None)
    if given is None:
        return "Temporary" not in name and owner not in COMPRESSED  # which are binary by default
    if owner in COMPRESSED:
        return isinstance(given, ast.Constant) and "t" in str(given.value)
    return isinstance(given, ast.Constant) and isinstance(given.value, str) and "b" not in given.value


def test_text_files_name_their_encoding() -> None:
    found = []
    for path in sources("marl_ray", "tools", "benchmarks", "docs/examples"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and lacks_encoding(node):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:80]}")
    assert found == []


def test_the_rule_finds_text_without_an_encoding() -> None:
    texts = (
        *("p.read_text()", "p.write_text(x)", "open(p)", "p.open('a')", "os.fdopen(1, 'w')", "run(c, text=True)"),
        *("io.open(p)", "io.open(p, 'w')", "gzip.open(p, 'rt')", "check_call(c, text=True)", "TextIOWrapper(x)"),
    )
    others = (
        *("p.read_text('utf-8')", "open(p, 'rb')", "p.open('wb')", "os.open(p, 0)", "run(c)", "TemporaryFile()"),
        *("io.open(p, 'rb')", "gzip.open(p)", "gzip.open(p, 'wb')", "lzma.open(p, 'rt', encoding='utf-8')"),
    )
    assert all(lacks_encoding(ast.parse(text, mode="eval").body) for text in texts)  # type: ignore[arg-type]
    assert not any(lacks_encoding(ast.parse(text, mode="eval").body) for text in others)  # type: ignore[arg-type]


def test_one_function_of_the_package_parses_python() -> None:
    """Threads share a counter in `ast.parse`, so that concurrent calls may fail (Python 3.11)."""
    files = [str(path.relative_to(ROOT)) for path in sources("marl_ray") if "ast.parse(" in path.read_text("utf-8")]
    assert files == ["marl_ray/sandbox/inside/suites/statements.py"]
