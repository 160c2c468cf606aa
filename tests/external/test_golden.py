"""Exact text of later prompts, on which the bundled policies were trained."""

from __future__ import annotations

from marl_ray.external.modes import Message
from marl_ray.external.transition import next_prompt


def test_a_later_prompt_with_every_part() -> None:
    text = next_prompt(
        "PROBLEM\n\nWrite.\n",
        "def aux(n):\n    return n\n",
        Message(("aux: found", "syntax: OK"), "Return n + 5."),
        "Revise.",
    )
    assert text == (
        "PROBLEM\n\nWrite.\n\n"
        "Your previous answer:\ndef aux(n):\n    return n\n\n"
        "Feedback:\naux: found\nsyntax: OK\n\n"
        "An expert suggests:\nReturn n + 5.\n\n"
        "Revise.\n"
    )


def test_a_later_prompt_with_no_part() -> None:
    assert next_prompt(None, None, Message(), "Revise.") == "Revise.\n"
    empty = next_prompt(None, "\n", Message(), "Revise.")
    assert empty == "Your previous answer:\n(empty)\n\nRevise.\n"
