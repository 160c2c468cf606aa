"""The prompts of solvers and verifiers. The bundled policy was trained on this exact text."""

from __future__ import annotations

import re

SOLVER = "solver"
SOLVE = "Solve the problem step by step. End with a line `#### ANSWER`."
SOLVE_AGAIN = "Solve the problem again. End with a line `#### ANSWER`."
CHECK = {
    "judges": "Check the solver's answer step by step. End with a line `Verdict: right` or `Verdict: wrong`.",
    "corrects": "Check the solver's answer step by step and correct it. End with a line `#### ANSWER`.",
}
"""The verifier's instruction by `math.verifier`."""
MAX_SHOWN_CHARS = 4000
"""Maximum characters of another agent's response in a prompt: its end, which has the answer."""
_VERDICT = re.compile(r"\bverdict:[\s*`]*(right|wrong)\b", re.IGNORECASE)


def first_prompt(problem: str, instruction: str) -> str:
    """Return an agent's prompt of the first turn."""
    return f"{problem.strip()}\n\n{instruction}\n"


def shown_response(response: str) -> str:
    """Return another agent's response as a prompt shows it."""
    return response.strip()[-MAX_SHOWN_CHARS:] or "(empty)"


def quoted(name: str, response: str) -> list[str]:
    """Return lines of feedback with another agent's response."""
    return [f"{name}:", *shown_response(response).splitlines()]


def read_verdict(response: str) -> bool | None:
    """Return whether a response's last verdict is `right`, None without a verdict.

    Example:
        >>> read_verdict("Verdict: right? No, 3 * 4 = 12.\\nVerdict: wrong")
        False
    """
    verdict = None
    for match in _VERDICT.finditer(response):
        verdict = match[1].lower() == "right"
    return verdict
