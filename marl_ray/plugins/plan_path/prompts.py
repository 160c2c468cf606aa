"""The prompts of planners and checkers, and the moves in their answers. The bundled policy was trained on this text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from marl_ray.plugins.plan_path.rooms import STEPS

MAX_MOVES = 100
"""Maximum moves that are read of an answer."""
CONFIRMED = "ok"
"""The answer of a checker who keeps the plan."""
PATH = "Walk to the goal. @ you, . goal, # wall, - floor."
PUSH = (
    "Push every box onto a goal. @ you, + you on a goal, $ box, * box on a goal, . goal, # wall, - floor. "
    "A box moves when you walk into it and the cell behind it is free."
)
MOVES = "Moves: U D L R. All around is wall:"
PLAN = "Write all moves from the start in one line:"
CHECK = f"Write {CONFIRMED} if the plan is right, else all moves from the start in one line:"
_WORD = re.compile(r"[^\W_]+")


def description(rows: Sequence[str]) -> str:
    """Return the text of a task."""
    text = "".join(rows)
    task = PATH
    if "$" in text or "*" in text:
        task = PUSH
    picture = map(" ".join, rows)  # with spaces between the symbols, so that each is a token
    return "\n".join([f"{task} {MOVES}", *picture])


def instructions(agents: int) -> list[str]:
    """Return the agents' instructions: the first agent plans, the others check."""
    return [PLAN] + [CHECK] * (agents - 1)


def read_moves(response: str) -> tuple[str, ...] | None:
    """Return the moves of the last line that has nothing but moves after a colon or `#`; None without such a line.
    Moves are the letters U, D, L and R, alone or together, or the words up, down, left and right.

    Example:
        >>> read_moves("I walk around the wall.\\n#### [up, right] RD")
        ('U', 'R', 'R', 'D')
    """
    for line in reversed(response.splitlines()):
        moves: list[str] = []
        for word in _WORD.findall(re.split("[:#]", line)[-1]):
            if set(word) <= STEPS.keys():
                moves += word
            elif word.lower() in ("up", "down", "left", "right"):
                moves.append(word[0].upper())
            else:
                moves.clear()
                break
        if moves:
            return tuple(moves[:MAX_MOVES])
    return None
