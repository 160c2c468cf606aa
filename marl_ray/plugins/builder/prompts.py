"""The prompts of building tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

ALONE = "builder"


def roles(num_agents: int) -> list[str]:
    """Return the names of the agents."""
    if num_agents == 1:
        return [ALONE]
    return [f"builder {number}" for number in range(1, num_agents + 1)]


def word_task(rows: Sequence[str]) -> str:
    """Return the description of a drawing on a wall."""
    drawing = "\n".join(rows)
    return (
        f"Build this drawing from blocks. Rows are listed from top to bottom, and # stands for a block:\n{drawing}\n"
        f"x goes from 0 at the left to {len(rows[0]) - 1}, y from 0 at the bottom to {len(rows) - 1}, and z is 0."
    )


def house_task(layers: Sequence[Sequence[str]], inventory: Sequence[tuple[str, str]]) -> str:
    """Return the description of a house."""
    legend = ", ".join(f"{letter} = {block}" for letter, block in inventory)
    lines = []
    for y, rows in enumerate(layers):
        lines += [f"y = {y}:", *rows]
    floors = "\n".join(lines)
    return (
        f"Build this house from blocks. Every layer shows the house from above at one height y. In a layer, x goes "
        f"from 0 at the left, and z from 0 in the first row. {legend}.\n{floors}"
    )


def word_prompt(task: str, role: str, blocks: Sequence[str], limit: int, num_agents: int) -> str:
    """Return the first prompt of a builder of words."""
    return (
        f"{task.strip()}\n\n{_team(role, num_agents)}Use your blocks alone, and each of them: {', '.join(blocks)}. "
        "Blocks that touch at a side must be different, and positions without # stay empty (air removes a block).\n"
        f"Write at most {limit} commands, one per line, and nothing else: /setblock x y z block. The first one could "
        f"be:\n/setblock 0 0 0 {blocks[0]}\n"
    )


def house_prompt(task: str, role: str, stock: Mapping[str, int], limit: int, num_agents: int, attack: bool) -> str:
    """Return the first prompt of a builder of houses."""
    owned = ", ".join(f"{count} {block}" for block, count in stock.items())
    spiders = ""
    if attack:
        spiders = "Spiders attack the builders until one of you writes /kill.\n"
    return (
        f"{task.strip()}\n\n{_team(role, num_agents)}You have {owned}. {spiders}"
        f"Write at most {limit} commands, one per line, and nothing else: /fill x y z x y z block. A command fills the "
        f"space between two corners. The first one could be:\n/fill 0 0 0 1 0 1 {next(iter(stock))}\n"
    )


def revision(role: str) -> str:
    """Return the closing instruction of later turns."""
    return f"The site is empty again. Write all commands of {role}, one per line, and nothing else."


def _team(role: str, num_agents: int) -> str:
    if num_agents == 1:
        return ""
    return (
        f"You are {role} of {num_agents}, and all of you write at the same time. Commands are carried out builder by "
        "builder, and a later block replaces an earlier one. Build your part and leave the rest to your partners.\n"
    )
