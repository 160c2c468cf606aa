"""Building tasks: agents place blocks that together should equal a drawing or a house, over several turns.

Commands and rewards follow CoMLRL's Minecraft environments (StrBuild and HouseBuild), without the game.
docs/reference/environments/builder.md describes them and the differences.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments.text_environment import TextAttempt, TextEnvironment
from marl_ray.plugins.builder import prompts
from marl_ray.plugins.builder.commands import AIR, FILL, SETBLOCK, Command, Commands, Position, build, read_commands
from marl_ray.plugins.builder.glyphs import FULL

PALETTES = (("oak_planks", "stone"), ("white_concrete", "obsidian"))
"""The blocks of each builder of words."""
# Weights of the levels; UNUSED counts per builder.
COVERED = 2.0
OUTSIDE = 1.5
TOUCHING = 1.0
UNUSED = 0.25
ATTACK = 0.1
MAX_LISTED = 20
"""Maximum positions in the feedback of one agent."""


@dataclass(frozen=True)
class Building(TextAttempt):
    """The blocks of one joint action. `wanted` are the blocks of the target; of a drawing, any block but air is right
    there."""

    commands: tuple[Commands, ...]
    blocks: Mapping[Position, str]
    wanted: Mapping[Position, str]
    size: Position
    attack: float = 0.0

    @property
    def positions(self) -> int:
        """The number of positions of the site."""
        return math.prod(self.size)

    @property
    def outside(self) -> list[Position]:
        """The positions with a block where the target has none."""
        return sorted(self.blocks.keys() - self.wanted.keys())

    def share(self, positions: Sequence[Position], agent: int) -> list[Position]:
        """Return the positions that feedback assigns to an agent: every N-th along each axis."""
        return [position for position in positions if sum(position) % len(self.answers) == agent]


class Builder(TextEnvironment[Building]):
    """A building whose parts the agents place at the same time, on an empty site in every turn."""

    max_commands: int
    """Maximum commands of all agents; the first one gets the remainder."""

    def roles(self, task: Task) -> list[str]:
        return prompts.roles(self.num_agents)

    def revisions(self, task: Task) -> list[str]:
        return [prompts.revision(role) for role in self.roles(task)]

    def limits(self) -> list[int]:
        """Return the maximum number of commands of each agent."""
        each, more = divmod(self.max_commands, self.num_agents)
        limits = [each] * self.num_agents
        limits[0] += more
        return limits

    def facts(self, attempt: Building, outcome: Outcome, mode: str, agent: int) -> list[str]:
        lines = self._summary(attempt, outcome)
        if mode == "level_passed":
            return lines
        details = self._details(attempt, agent)
        shown = [*lines, *details[:MAX_LISTED]]
        if len(details) > MAX_LISTED:
            shown.append(f"and {len(details) - MAX_LISTED} more")
        if rejected := attempt.commands[agent].rejected:
            shown.append(f"lines of your answer that are no allowed command: {rejected}")
        return shown

    @abstractmethod
    def _summary(self, attempt: Building, outcome: Outcome) -> list[str]:
        """Return the score, one fact per line."""

    @abstractmethod
    def _details(self, attempt: Building, agent: int) -> list[str]:
        """Return the agent's share of the positions that are not right, one per line."""


class WordBuilder(Builder):
    """A drawing on a wall. Tasks have the field `target`: rows from top to bottom, `#` for a block. Neighbours should
    be different blocks, of which each agent has two."""

    max_commands = 300

    def __init__(self, num_agents: int) -> None:
        super().__init__(num_agents)
        if num_agents > len(PALETTES):
            raise UserError(f"environment word_builder has blocks for {len(PALETTES)} agents: set num_agents to 1 or 2")

    def first_prompts(self, task: Task) -> list[str]:
        parts = zip(self.roles(task), PALETTES, self.limits(), strict=False)
        return [prompts.word_prompt(task.prompt, *part, self.num_agents) for part in parts]

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Building:
        wanted, size = drawn_blocks(task.fields["target"])
        commands = []
        for response, palette, limit in zip(responses, PALETTES, self.limits(), strict=False):
            commands.append(read_commands(response, SETBLOCK, palette, size, limit))
        return Building(tuple(responses), tuple(commands), _built(commands), wanted, size)

    def outcome(self, attempt: Building, report: None) -> Outcome:
        blocks = attempt.blocks
        wanted = attempt.wanted
        covered = len(wanted.keys() & blocks.keys()) / len(wanted)
        background = attempt.positions - len(wanted)
        outside = 0.0
        if background:
            outside = len(attempt.outside) / background
        are_equal: list[bool] = []
        for position, block in blocks.items():
            are_equal += [blocks[other] == block for other in _neighbours(position) if other in blocks]
        touching = 0.0
        if are_equal:
            touching = sum(are_equal) / len(are_equal)
        used = set(blocks.values())
        unused = sum(not used.issuperset(palette) for palette in PALETTES[: self.num_agents])
        levels = {
            "covered": COVERED * covered,
            "outside": -OUTSIDE * outside,
            "touching": -TOUCHING * touching,
            "unused": -UNUSED * unused,
        }
        reward = math.fsum(levels.values())
        metrics = {
            "covered": covered,
            "outside": outside,
            "touching": touching,
            "iou": len(wanted.keys() & blocks.keys()) / (len(wanted) + len(attempt.outside)),
            "rejected_lines": float(sum(own.rejected for own in attempt.commands)),
            "all_passed": float(reward == COVERED),
        }
        return Outcome(reward, levels, metrics)

    def _summary(self, attempt: Building, outcome: Outcome) -> list[str]:
        return [
            f"covered: {len(attempt.wanted.keys() & attempt.blocks.keys())} of {len(attempt.wanted)} positions",
            f"blocks outside of the drawing: {len(attempt.outside)}",
            f"neighbours that are the same block: {outcome.metrics['touching']:.0%}",
        ]

    def _details(self, attempt: Building, agent: int) -> list[str]:
        blocks = attempt.blocks
        missing = sorted(attempt.wanted.keys() - blocks.keys())
        touching = []
        for position in sorted(blocks):
            if blocks[position] in map(blocks.get, _neighbours(position)):
                touching.append(position)
        lines = [f"{position}: no block yet" for position in attempt.share(missing, agent)]
        lines += [f"{position}: outside of the drawing" for position in attempt.share(attempt.outside, agent)]
        for position in attempt.share(touching, agent):
            lines.append(f"{position}: the same block as a neighbour, {blocks[position]}")
        return lines


class HouseBuilder(Builder):
    """A house of layers. Tasks have the fields `layers`: rows of letters by height; `inventory`: pairs of letter and
    block; `attack`: share of the builders' health that spiders take unless an agent writes `/kill`."""

    max_commands = 600

    def first_prompts(self, task: Task) -> list[str]:
        stock = self._stock(task)
        attack = task.fields["attack"] > 0
        parts = zip(self.roles(task), self.limits(), strict=True)
        return [prompts.house_prompt(task.prompt, role, stock, limit, self.num_agents, attack) for role, limit in parts]

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Building:
        wanted, size = house_blocks(task.fields["layers"], task.fields["inventory"])
        stock = self._stock(task)
        attack = task.fields["attack"]
        commands = []
        for response, limit in zip(responses, self.limits(), strict=True):
            commands.append(read_commands(response, FILL, stock, size, limit, stock))
            if commands[-1].kills:
                attack = 0.0
        return Building(tuple(responses), tuple(commands), _built(commands), wanted, size, attack)

    def outcome(self, attempt: Building, report: None) -> Outcome:
        blocks, wanted = attempt.blocks, attempt.wanted
        wrong = len(_wrong(attempt))
        levels = {"match": 1 - wrong / attempt.positions, "attack": -ATTACK * attempt.attack}
        both = len(wanted.keys() & blocks.keys())
        union = len(wanted) + len(attempt.outside)
        metrics = {
            "match": levels["match"],
            "iou": both / union if union else 0.0,
            "rejected_lines": float(sum(own.rejected for own in attempt.commands)),
            "all_passed": float(not wrong and not attempt.attack),
        }
        return Outcome(math.fsum(levels.values()), levels, metrics)

    def _summary(self, attempt: Building, outcome: Outcome) -> list[str]:
        right = attempt.positions - len(_wrong(attempt))
        spiders = ["spiders are attacking"] if attempt.attack else []
        return [f"right: {right} of {attempt.positions} positions", *spiders]

    def _details(self, attempt: Building, agent: int) -> list[str]:
        blocks, wanted = attempt.blocks, attempt.wanted
        positions = attempt.share(_wrong(attempt), agent)
        return [f"{p}: should be {wanted.get(p, AIR)}, is {blocks.get(p, AIR)}" for p in positions]

    def _stock(self, task: Task) -> dict[str, int]:
        """Return the number of blocks that each agent has: its share, rounded up, and half of its share."""
        wanted, _ = house_blocks(task.fields["layers"], task.fields["inventory"])
        counts = Counter(wanted.values())
        names = (block for _, block in task.fields["inventory"] if block != AIR)
        return {name: -(-counts[name] // self.num_agents) + counts[name] // (2 * self.num_agents) for name in names}


@lru_cache(maxsize=1024)
def drawn_blocks(rows: tuple[str, ...]) -> tuple[dict[Position, str], Position]:
    """Return the positions of a drawing's blocks, and the size of the site."""
    blocks = {}
    for y, row in zip(reversed(range(len(rows))), rows, strict=True):  # rows from top to bottom
        for x, mark in enumerate(row):
            if mark == FULL:
                blocks[x, y, 0] = FULL
    return blocks, (len(rows[0]), len(rows), 1)


@lru_cache(maxsize=1024)
def house_blocks(
    layers: tuple[tuple[str, ...], ...], inventory: tuple[tuple[str, str], ...]
) -> tuple[dict[Position, str], Position]:
    """Return the blocks of a house without air, and the size of the site."""
    names = dict(inventory)
    blocks = {}
    for y, rows in enumerate(layers):
        for z, row in enumerate(rows):
            for x, letter in enumerate(row):
                if names[letter] != AIR:
                    blocks[x, y, z] = names[letter]
    return blocks, (len(layers[0][0]), len(layers), len(layers[0]))


def _built(commands: Sequence[Commands]) -> dict[Position, str]:
    placed: list[Command] = []
    for agent_commands in commands:
        placed += agent_commands.placed
    return build(placed)


def _neighbours(position: Position) -> tuple[Position, Position]:
    """Return the positions to the right and above."""
    x, y, z = position
    return (x + 1, y, z), (x, y + 1, z)


def _wrong(attempt: Building) -> list[Position]:
    """Return the positions whose block is not the wanted one."""
    blocks, wanted = attempt.blocks, attempt.wanted
    return sorted(p for p in blocks.keys() | wanted.keys() if blocks.get(p) != wanted.get(p))
