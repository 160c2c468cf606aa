"""docs/how-to/troubleshooting.md: every quoted message is a text of the source."""

from __future__ import annotations

import ast
import re

import pytest

from tests.factories import ROOT

PAGE = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")
FOREIGN = {"libnuma.so.1", "import transformers", "ray job submit", "Python 3.11 or later is needed"}
"""Texts of other programs, and of install.sh."""
ROWS = re.findall(r"^\| (?!symptom|message|---)(.+?) \| ", PAGE, re.MULTILINE)
MESSAGES = sorted({text for row in ROWS for text in re.findall(r"`([^`]+)`", row)} - FOREIGN)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Every text in the source: literals with an ellipsis for each inserted value, and the literals of one function."""
    found = []
    for path in sorted((ROOT / "marl_ray").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                found.append(" ".join("".join(map(str, parts)).split()))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(" ".join(node.value.split()))
    return found


@pytest.mark.parametrize("message", MESSAGES)
def test_a_quoted_message_is_in_the_source(message: str, texts: list[str]) -> None:
    pieces = [piece.strip(" ,:()") for piece in message.split("…")]
    pieces = [piece for piece in pieces if len(piece) > 2]
    assert pieces, message
    if any(all(piece in text for piece in pieces) for text in texts):
        return
    missing = [piece for piece in pieces if not any(piece in text for text in texts)]
    assert missing == [], f"{message}: no text has {missing}"


def test_most_rows_quote_a_message() -> None:
    assert len(MESSAGES) > 30
    assert sum("`" in row for row in ROWS) > 0.7 * len(ROWS)
