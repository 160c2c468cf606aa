"""Comparison of a script's output with the expected output."""

from __future__ import annotations

import pytest

from marl_ray.sandbox.inside.judge.output_comparison import first_difference, outputs_match, split_lines


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ("3\n", "3"),
        ("\n  3 \r\n\n", "3\n"),
        ("1  2\t3", "1 2 3\n"),
        ("a\n\nb", "a\n\nb\n"),
        ("0.50 1.0", "0.5 1"),
        ("007 0 0.0 -0.5", "007 0 0 -0.50"),
        ("+7 007 7.0 7e0", "7 7 7 7"),
        ("0.333333", "0.33333333333"),
        ("1e10", "10000000000.0"),
        ("100000.4", "100000.0"),
        ("x = 0.1", "x = 0.10"),
        ("nan inf", "nan inf"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_output_matches(actual: str, expected: str) -> None:
    assert outputs_match(split_lines(actual), split_lines(expected))


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ("", "3"),
        ("3\n3", "3"),
        ("3 3", "3"),
        ("a b", "ab"),
        ("a", "A"),
        ("b\na", "a\nb"),
        ("a\nb", "a\n\nb"),
        ("0.3334", "0.3333"),
        ("10000000001", "10000000000"),
        ("3.00001", "3"),
        ("7", "007"),
        ("0007", "007"),
        ("12:5", "12:05"),
        ("5", "05"),
        ("0.5", "00.5"),
        ("0.0001", "0.0"),
        ("-0.5", "0.5"),
        ("nan", "0.5"),
        ("sNaN", "1.0"),
        ("inf", "1e999"),
        ("1e999999999", "1.0"),
        ("1_0", "10.0"),
        ("\u0661", "1.0"),
        ("0x10", "16.0"),
        ("9" * 5000 + ".0", "9" * 5000),
    ],
)
def test_output_does_not_match(actual: str, expected: str) -> None:
    assert not outputs_match(split_lines(actual), split_lines(expected))
    assert first_difference(split_lines(actual), split_lines(expected))


def test_first_different_line_is_reported() -> None:
    assert first_difference(split_lines("1.0\n2"), split_lines("1\n3")) == "line 2: got '2', expected '3'"
