"""Count and list the wording that this project does not use, in code, documentation and tests.

    python -m tools.prose                 counts per rule
    python -m tools.prose --list          every place, as path:line: rule: text
    python -m tools.prose --list PATH...  the places in these files and folders

Docstrings of functions and methods open with a verb in the imperative mood. Docstrings of properties, like those of
classes and fields, are noun phrases. The other rules are regular expressions over the whole text of a file.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

SOURCES = ("marl_ray", "docs", "README.md", "CONTRIBUTING.md", "benchmarks", "tools", "tests")
SUFFIXES = {".py", ".md"}
EXEMPT = {"tools/prose.py", "tests/test_house.py"}
"""Files that have to quote the rules."""
PROMPTS = ("and whoever writes a part does not see", "write three tests that show what is wrong with it")
"""Lower-case parts of prompts. Prompts keep their text, because models are trained and evaluated with them."""
RULES = {
    "what-clause": re.compile(
        r"\b[Ww]hat "
        r"(is|was|are|were|has|have|had|it|they|he|she|a|an|the|this|that|each|every|one|two|some|its|their|no|would|may|can|cannot|does|do|comes|makes|goes|remains|runs|happens|follows|needs)\b(?![^\n]*\?)"
    ),
    "those-of": re.compile(r"\b[Tt]hose (of|that|who|which|whose|with)\b"),
    "nobody": re.compile(r"\b([Nn]obody|[Ww]hoever|[Ww]homever|[Ss]omebody|[Aa]nybody)\b"),
    "a-for-per": re.compile(
        r"\b(one|two|once|twice|lines?|tokens|file|object|text|prompts?|actors?) an? (agent|policy|line|step|turn)\b"
    ),
}
NOT_VERBS = re.compile(
    r"about|above|again|after|all|an?|and|any|anybody|anything|as|at|before|below|both|but|by|each|either|engine|every|"
    r"everything|for|from|greedy|had|has|held|her|here|his|how|if|in|independently|into|is|it|its|itself|likewise|"
    r"longer|median|most|neither|no|nobody|none|nor|not|nothing|of|on|one|only|or|other|our|over|public|"
    r"python|ray|several|shape|so|some|somebody|such|that|the|their|them|then|there|these|they|this|those|true|"
    r"two|under|unlike|until|virtual|what|whatever|when|where|whether|which|while|who|whoever|whose|why|with|without|yes|"
    r"\w+(?<!ne)(?<!fe)(?<!se)(?<!emb)ed|\w+(?<!str)(?<!br)ing|\w+(?<!s)s"
)
"""First words of a docstring that cannot be an imperative: function words, participles, plurals and a few nouns."""


def opens_with_verb(docstring: str) -> bool:
    """Return whether the first word of a docstring can be a verb in the imperative mood."""
    first = re.match(r"[A-Za-z]+", docstring)
    return first is not None and not NOT_VERBS.fullmatch(first[0].lower())


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a decorator makes an attribute of the function, whose docstring is then a noun phrase."""
    names = {ast.unparse(decorator).rsplit(".", 1)[-1] for decorator in function.decorator_list}
    return bool(names & {"property", "cached_property", "fixture", "fixture()"}) or any("fixture" in n for n in names)


def functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions in a module, class or statement, without a look at expressions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from functions(child)


def findings(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, rule, text) for every place in a file that breaks a rule."""
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        for rule, pattern in RULES.items():
            for _ in pattern.finditer(line):
                if not any(prompt in line.lower() for prompt in PROMPTS):
                    yield number, rule, line.strip()
    if path.suffix != ".py":
        return
    for node in functions(ast.parse(text)):
        if is_property(node):
            continue
        docstring = ast.get_docstring(node)
        if docstring and not opens_with_verb(docstring):
            yield node.lineno, "no-verb", docstring.splitlines()[0]


def files(names: Sequence[str]) -> list[Path]:
    """Return the tracked Python and Markdown files at or below these paths, except this module."""
    tracked = subprocess.run(
        ["git", "ls-files", "--", *names], capture_output=True, text=True, check=True, encoding="utf-8"
    ).stdout
    return [Path(name) for name in tracked.splitlines() if Path(name).suffix in SUFFIXES and name not in EXEMPT]


def main() -> None:
    """Print the counts per rule, or every place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=SOURCES)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    counts: Counter[str] = Counter(dict.fromkeys([*RULES, "no-verb"], 0))
    for path in files(options.paths):
        for number, rule, text in findings(path):
            counts[rule] += 1
            if options.list:
                print(f"{path}:{number}: {rule}: {text}")
    print(", ".join(f"{rule} {count}" for rule, count in counts.items()))


if __name__ == "__main__":
    main()
