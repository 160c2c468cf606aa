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

    @property
    def covered(self) -> int:
        """The number of positions with a block where the target has one."""
        return len(self.blocks.keys() & self.wanted.keys())

    @property
    def rejected_lines(self) -> float:
        """The number of rejected lines of all agents."""
        return float(sum(commands.rejected for commands in self.commands))

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
        return list(map(prompts.revision, self.roles(task)))

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
        rejected = attempt.commands[agent].rejected
        if rejected:
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
        texts = []
        for role, palette, limit in zip(self.roles(task), PALETTES, self.limits(), strict=False):
            texts.append(prompts.word_prompt(task.prompt, role, palette, limit, self.num_agents))
        return texts

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Building:
        wanted, size = drawn_blocks(task.fields["target"])
        commands = []
        for response, palette, limit in zip(responses, PALETTES, self.limits(), strict=False):
            commands.append(read_commands(response, SETBLOCK, palette, size, limit))
        return Building(tuple(responses), tuple(commands), _built(commands), wanted, size)

    def outcome(self, attempt: Building, report: None) -> Outcome:
        blocks = attempt.blocks
        wanted = attempt.wanted
        covered = attempt.covered / len(wanted)
        background = attempt.positions - len(wanted)
        outside = 0.0
        if background:
            outside = len(attempt.outside) / background
        pairs = 0
        equal_pairs = 0
        for position, block in blocks.items():
            for neighbour in _neighbours(position):
                if neighbour in blocks:
                    pairs += 1
                    equal_pairs += blocks[neighbour] == block
        touching = 0.0
        if pairs:
            touching = equal_pairs / pairs
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
            "iou": attempt.covered / (len(wanted) + len(attempt.outside)),
            "rejected_lines": attempt.rejected_lines,
            "all_passed": float(reward == COVERED),
        }
        return Outcome(reward, levels, metrics)

    def _summary(self, attempt: Building, outcome: Outcome) -> list[str]:
        return [
            f"covered: {attempt.covered} of {len(attempt.wanted)} positions",
            f"blocks outside of the drawing: {len(attempt.outside)}",
            f"neighbours that are the same block: {outcome.metrics['touching']:.0%}",
        ]

    def _details(self, attempt: Building, agent: int) -> list[str]:
        blocks = attempt.blocks
        missing = sorted(attempt.wanted.keys() - blocks.keys())
        touching = []
        for position, block in sorted(blocks.items()):
            if block in map(blocks.get, _neighbours(position)):
                touching.append(position)
        lines = []
        for position in attempt.share(missing, agent):
            lines.append(f"{position}: no block yet")
        for position in attempt.share(attempt.outside, agent):
            lines.append(f"{position}: outside of the drawing")
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
        texts = []
        for role, limit in zip(self.roles(task), self.limits(), strict=True):
            texts.append(prompts.house_prompt(task.prompt, role, stock, limit, self.num_agents, attack))
        return texts

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
        wrong = len(_wrong(attempt))
        match = 1 - wrong / attempt.positions
        levels = {"match": match, "attack": -ATTACK * attempt.attack}
        union = len(attempt.wanted) + len(attempt.outside)
        iou = 0.0
        if union:
            iou = attempt.covered / union
        metrics = {
            "match": match,
            "iou": iou,
            "rejected_lines": attempt.rejected_lines,
            "all_passed": float(not wrong and not attempt.attack),
        }
        return Outcome(math.fsum(levels.values()), levels, metrics)

    def _summary(self, attempt: Building, outcome: Outcome) -> list[str]:
        right = attempt.positions - len(_wrong(attempt))
        lines = [f"right: {right} of {attempt.positions} positions"]
        if attempt.attack:
            lines.append("spiders are attacking")
        return lines

    def _details(self, attempt: Building, agent: int) -> list[str]:
        lines = []
        for position in attempt.share(_wrong(attempt), agent):
            wanted = attempt.wanted.get(position, AIR)
            found = attempt.blocks.get(position, AIR)
            lines.append(f"{position}: should be {wanted}, is {found}")
        return lines

    def _stock(self, task: Task) -> dict[str, int]:
        """Return the number of blocks that each agent has: its share, rounded up, and half of its share."""
        wanted, _ = house_blocks(task.fields["layers"], task.fields["inventory"])
        counts = Counter(wanted.values())
        stock = {}
        for _, block in task.fields["inventory"]:
            if block != AIR:
                share = math.ceil(counts[block] / self.num_agents)
                stock[block] = share + counts[block] // (2 * self.num_agents)
        return stock


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
    blocks = attempt.blocks
    wanted = attempt.wanted
    positions = blocks.keys() | wanted.keys()
    return sorted(position for position in positions if blocks.get(position) != wanted.get(position))
