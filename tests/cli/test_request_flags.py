"""Flags made from the fields of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from marl_ray.cli.parser import Parser
from marl_ray.cli.request_flags import add_request_flags, request_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request."""

    files: Sequence[Path]
    """files to read,
    one or several"""
    port: Annotated[int, int] = 0
    """0: a free port"""
    batch_size: int = 8
    """rows per step"""
    rate: Annotated[float | None, "LR"] = None
    """default: the agent's"""
    is_public: bool = False
    """for all"""
    inner: str = "none"


def parse(*words: str) -> Request:
    parser = Parser(prog="test")
    add_request_flags(parser, Request)
    return request_of(Request, parser.parse_args(words), inner="given")


def test_values_have_the_types_of_the_fields() -> None:
    assert parse("--files", "a", "b") == Request(files=[Path("a"), Path("b")], inner="given")
    words = ("--files", "a", "--port", "0", "--batch-size", "2", "--rate", "1e-5", "--is-public")
    assert parse(*words) == Request(files=[Path("a")], batch_size=2, rate=1e-5, is_public=True, inner="given")


@pytest.mark.parametrize("words", [(), ("--files", "a", "--batch-size", "0"), ("--files", "a", "--inner", "x")])
def test_wrong_values_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(*words)


def test_docstrings_and_defaults_are_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        parse("--help")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "--batch-size N rows per step; default: 8" in lines
    assert "--rate LR default: the agent's" in lines
    assert "files to read, one or several" in lines
