"""Draw the diagrams of README and the documentation, docs/images/NAME-light.svg and NAME-dark.svg.

    python -m tools.make_diagrams

Each function below draws one diagram. Positions are pixels at the width of a page, so every text is read at the size
that is given here. The two files of a diagram differ in their colours only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDTH = 700

Point = tuple[float, float]

# Fill, line and text of each kind of thing. Text has at least 4.5:1 on its fill.
LIGHT = {
    "page": ("#ffffff", "#d1d9e0", "#1f2328"),
    "plain": ("#f6f8fa", "#818b98", "#1f2328"),
    "agent_0": ("#ddf4ff", "#0969da", "#0a3069"),
    "agent_1": ("#ffeef0", "#b3314b", "#7d1d33"),
    "check": ("#dafbe1", "#1a7f37", "#044f1e"),
    "muted": ("#ffffff", "#59636e", "#59636e"),
}
DARK = {
    "page": ("#0d1117", "#3d444d", "#f0f6fc"),
    "plain": ("#212830", "#9198a1", "#f0f6fc"),
    "agent_0": ("#0c2d6b", "#58a6ff", "#cae8ff"),
    "agent_1": ("#5c1425", "#ff7b93", "#ffd6de"),
    "check": ("#04260f", "#3fb950", "#aff5b4"),
    "muted": ("#0d1117", "#9198a1", "#9198a1"),
}
THEMES = {"light": LIGHT, "dark": DARK}


@dataclass
class Drawing:
    """An SVG picture in the colours of one theme."""

    title: str
    height: int
    colours: dict[str, tuple[str, str, str]]
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, kind: str = "plain") -> None:
        """Draw a rounded rectangle."""
        fill, line, _ = self.colours[kind]
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" stroke="{line}" '
            f'stroke-width="1.5"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        kind: str = "plain",
        *,
        size: int = 15,
        anchor: str = "middle",
        style: str = "",
    ) -> None:
        """Write one line. `style` is "bold", "code" or empty."""
        family = "monospace" if style == "code" else "sans-serif"
        weight = ' font-weight="600"' if style == "bold" else ""
        self.parts.append(
            f'<text x="{x}" y="{y}" font-family="{family}" font-size="{size}"{weight} text-anchor="{anchor}" '
            f'fill="{self.colours[kind][2]}" xml:space="preserve">{escape(words)}</text>'
        )

    def arrow(self, *points: Point, kind: str = "muted", dashed: bool = False, head: bool = True) -> None:
        """Draw a line through points, with an arrow head at its end."""
        line = self.colours[kind][1]
        path = " ".join(f"{x},{y}" for x, y in points)
        dashes = ' stroke-dasharray="6 5"' if dashed else ""
        marker = f' marker-end="url(#{kind})"' if head else ""
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{line}" stroke-width="1.8" stroke-linejoin="round"'
            f"{dashes}{marker}/>"
        )

    def dot(self, x: float, y: float, kind: str, radius: float = 7) -> None:
        """Draw a filled circle."""
        fill, line, _ = self.colours[kind]
        self.parts.append(f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{fill}" stroke="{line}" stroke-width="1.8"/>')

    def svg(self) -> str:
        """Return the file's text."""
        fill, line, _ = self.colours["page"]
        heads = []
        for kind, (_, colour, _) in self.colours.items():
            heads.append(
                f'<marker id="{kind}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
                f'orient="auto"><path d="M0,0 L10,5 L0,10 z" fill="{colour}"/></marker>'
            )
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" '
            f'height="{self.height}" role="img">',
            f"<title>{escape(self.title)}</title>",
            f"<defs>{''.join(heads)}</defs>",
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{self.height - 1}" rx="10" fill="{fill}" '
            f'stroke="{line}"/>',
            *self.parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def idea(colours: dict[str, tuple[str, str, str]]) -> Drawing:
    """Draw a task, two agents, one joint check, the reward and a second turn."""
    drawing = Drawing("Two agents answer one task, one check rewards both, and a second turn follows", 396, colours)
    drawing.box(20, 128, 150, 104)
    drawing.text(95, 152, "one task", style="bold")
    for line, words in enumerate(("Start with n:", "add 3, then sum", "the digits.")):
        drawing.text(95, 177 + 20 * line, words, size=14)
    agents = (
        (56, "agent_0", "agent 0, own weights", ("def aux(n):", "    return n + 3")),
        (206, "agent_1", "agent 1, own weights", ("def main(n):", "    ... aux(n) ...")),
    )
    for y, kind, name, code in agents:
        drawing.box(220, y, 220, 98, kind)
        drawing.text(330, y + 25, name, kind, style="bold")
        drawing.text(240, y + 55, code[0], kind, size=14, anchor="start", style="code")
        drawing.text(240, y + 77, code[1], kind, size=14, anchor="start", style="code")
    drawing.arrow((170, 165), (195, 165), (195, 105), (218, 105))
    drawing.arrow((170, 195), (195, 195), (195, 255), (218, 255))
    drawing.box(500, 128, 180, 104, "check")
    drawing.text(590, 152, "one joint check", "check", style="bold")
    for line, words in enumerate(("a sandbox runs both", "parts together:", "3 of 4 tests pass")):
        drawing.text(590, 177 + 20 * line, words, "check", size=14)
    drawing.arrow((440, 105), (470, 105), (470, 165), (498, 165), kind="agent_0")
    drawing.arrow((440, 255), (470, 255), (470, 195), (498, 195), kind="agent_1")
    # One reward, to both agents.
    drawing.arrow((560, 126), (560, 30), (330, 30), (330, 54), kind="check")
    drawing.text(445, 22, "one reward", "check", style="bold")
    drawing.arrow((560, 234), (560, 330), (330, 330), (330, 306), kind="check")
    drawing.text(445, 322, "the same reward", "check", style="bold")
    drawing.arrow((640, 234), (640, 360), (95, 360), (95, 234), dashed=True)
    drawing.text(330, 384, "turn 2: the result of the check is part of the next prompts", "muted", size=14)
    return drawing


def turns(colours: dict[str, tuple[str, str, str]]) -> Drawing:
    """Draw the groups of two turns and the joint action that is continued."""
    drawing = Drawing("Two turns with a group of four joint actions each", 300, colours)
    rewards = (("0.4", "1.6", "0.4", "2.6"), ("2.6", "4.0", "1.6", "4.0"))
    for turn, x in enumerate((20, 385)):
        drawing.box(x, 20, 295, 200, "page")
        drawing.text(x + 147, 45, f"node of turn {turn + 1}", style="bold")
        for row, (kind, words) in enumerate((("agent_0", "agent 0"), ("agent_1", "agent 1"))):
            y = 80 + 36 * row
            drawing.text(x + 15, y + 5, words, kind, size=14, anchor="start")
            for column in range(4):
                drawing.dot(x + 115 + 48 * column, y, kind, 9)
        drawing.text(x + 15, 195, "reward", "check", size=14, anchor="start")
        for column, reward in enumerate(rewards[turn]):
            drawing.arrow((x + 115 + 48 * column, 128), (x + 115 + 48 * column, 174), kind="check")
            drawing.text(x + 115 + 48 * column, 195, reward, "check", size=14, style="bold")
    drawing.arrow((183, 205), (183, 250), (360, 250), (360, 120), (383, 120), dashed=True)
    drawing.text(
        350, 278, "the handoff picks a joint action; its feedback and code are in the next prompts", "muted", size=14
    )
    return drawing


def joint_modes(colours: dict[str, tuple[str, str, str]]) -> Drawing:
    """Draw which answers are executed together."""
    drawing = Drawing("Joint modes: aligned executes the g-th answers together, cross all combinations", 256, colours)
    modes = (
        (20, "aligned", "g-th with g-th: 4 joint actions"),
        (360, "cross", "each with each: 16 joint actions"),
    )
    for x, name, words in modes:
        drawing.box(x, 20, 320, 216, "page")
        drawing.text(x + 160, 45, name, style="bold")
        drawing.text(x + 30, 90, "agent 0", "agent_0", size=14, anchor="start")
        drawing.text(x + 30, 180, "agent 1", "agent_1", size=14, anchor="start")
        for first in range(4):
            for second in range(4):
                if name == "cross" or first == second:
                    drawing.arrow((x + 120 + 52 * first, 94), (x + 120 + 52 * second, 166), kind="check", head=False)
        for column in range(4):
            drawing.dot(x + 120 + 52 * column, 85, "agent_0", 9)
            drawing.dot(x + 120 + 52 * column, 175, "agent_1", 9)
        drawing.text(x + 160, 220, words, "muted", size=14)
    return drawing


def handoffs(colours: dict[str, tuple[str, str, str]]) -> Drawing:
    """Draw which joint actions of a turn are continued."""
    drawing = Drawing("Handoffs: one joint action at random, the best one, or all are continued", 240, colours)
    rewards = ("0.4", "1.6", "4.0", "0.4")
    continued = (
        ("random", "one, drawn", (1,)),
        ("best", "the highest reward", (2,)),
        ("all", "every one: a tree", (0, 1, 2, 3)),
    )
    for panel, (name, words, columns) in enumerate(continued):
        x = 20 + 225 * panel
        drawing.box(x, 20, 210, 200, "page")
        drawing.text(x + 105, 45, name, style="bold")
        for column, reward in enumerate(rewards):
            place = x + 39 + 44 * column
            chosen = column in columns
            drawing.text(place, 78, reward, "check" if chosen else "muted", size=14)
            drawing.dot(place, 97, "check" if chosen else "muted", 9)
            if chosen:
                drawing.arrow((place, 108), (place, 146), kind="check")
                drawing.box(place - 17, 149, 34, 26, "check")
        drawing.text(x + 105, 204, words, "muted", size=14)
    return drawing


def architecture(colours: dict[str, tuple[str, str, str]]) -> Drawing:
    """Draw the processes of a run and the data between them."""
    drawing = Drawing("The trainer, and generation actors, sandbox workers and learners", 372, colours)
    drawing.box(20, 20, 660, 76)
    drawing.text(350, 47, "Trainer: the driver process", style="bold")
    drawing.text(350, 75, "episodes, rewards, advantages, records; no model and no model-written code", size=14)
    places = (
        (
            20,
            "plain",
            "generation actors",
            ("vLLM, one or more", "replicas per policy:", "G completions with", "log-probabilities"),
        ),
        (
            250,
            "check",
            "sandbox workers",
            ("zygote, judge, guest:", "one report per program:", "which tests passed,", "and why others failed"),
        ),
        (
            480,
            "plain",
            "learner actors",
            ("one per policy, on one", "or several devices:", "loss, gradient,", "optimizer step"),
        ),
    )
    for x, kind, name, words in places:
        drawing.box(x, 150, 200, 132, kind)
        drawing.text(x + 100, 176, name, kind, style="bold")
        for line, text in enumerate(words):
            drawing.text(x + 100, 202 + 21 * line, text, kind, size=14)
    arrows = ((85, "prompts", 155, "answers"), (315, "programs", 385, "reports"), (545, "groups", 615, "metrics"))
    for down, first, up, second in arrows:
        drawing.arrow((down, 96), (down, 148))
        drawing.text(down - 6, 126, first, "muted", size=13, anchor="end")
        drawing.arrow((up, 150), (up, 98))
        drawing.text(up + 6, 126, second, "muted", size=13, anchor="start")
    drawing.arrow((580, 282), (580, 318), (120, 318), (120, 284))
    drawing.text(350, 310, "weights, their version and a checksum", "muted", size=14)
    drawing.text(350, 346, "through the object store (CPU), NCCL or CUDA IPC (GPU)", "muted", size=14)
    return drawing


def sandbox(colours: dict[str, tuple[str, str, str]]) -> Drawing:
    """Draw the processes of the sandbox and their descent."""
    drawing = Drawing("The host starts a zygote, which forks the judge and the guests", 384, colours)
    drawing.box(20, 20, 660, 62)
    drawing.text(350, 44, "host process", style="bold")
    drawing.text(350, 68, "a Ray worker; holds secrets", size=14)
    drawing.arrow((150, 82), (150, 124))
    drawing.text(162, 109, "exec: an empty environment, two descriptors", "muted", size=14, anchor="start")
    drawing.box(20, 126, 260, 66)
    drawing.text(150, 151, "zygote", style="bold")
    drawing.text(150, 176, "only forks", size=14)
    drawing.arrow((150, 192), (150, 228))
    drawing.text(162, 217, "fork", "muted", size=14, anchor="start")
    drawing.box(20, 230, 260, 66, "check")
    drawing.text(150, 255, "judge", "check", style="bold")
    drawing.text(150, 280, "holds the tests, runs no guest code", "check", size=13)
    drawing.arrow((150, 296), (150, 320))
    drawing.text(162, 314, "fork", "muted", size=14, anchor="start")
    drawing.box(20, 322, 260, 46, "check")
    drawing.text(150, 350, "process of one problem", "check", size=14)
    drawing.arrow((280, 159), (560, 159), (560, 228))
    drawing.text(420, 150, "fork", "muted", size=14)
    drawing.box(440, 230, 240, 88, "agent_1")
    drawing.text(560, 255, "guests", "agent_1", style="bold")
    drawing.text(560, 280, "run the program's code;", "agent_1", size=14)
    drawing.text(560, 301, "never shared by programs", "agent_1", size=14)
    drawing.arrow((440, 262), (282, 262))
    drawing.text(361, 253, "plain data", "muted", size=14)
    drawing.arrow((560, 318), (560, 346), (282, 346))
    drawing.text(421, 338, "plain data", "muted", size=14)
    return drawing


STEPS = (
    ("dataset row to task", "data/"),
    ("scheduling gate: may batch b start? (weight versions, max_staleness)", "trainer/batch_scheduling.py"),
    ("TurnPlayer: one prompt per agent and node", "rollout/turn_player.py"),
    ("generators: G completions per agent, by vLLM", "actors/generation_actor.py, engine.py"),
    ("Scorer: joint actions to programs to outcomes", "rollout/scorer.py"),
    ("sandbox workers execute the programs", "actors/sandbox_pool.py, sandbox/"),
    ("reward; feedback for the prompts of the next turn", "environments/, external/"),
    ("BatchBuilder: returns, advantages, one Group per agent", "trainer/batch_builder.py, credit/"),
    ("GroupQueue per policy, in the batch's order", "core/batch.py"),
    ("Learner: micro-batches, loss, gradient", "learning/"),
    ("wait until the complete batch is in the batch log", "storage/batch_log.py"),
    ("optimizer step, then weights with version and checksum", "weights/, actors/"),
    ("StepRecorder: metrics of the step, checkpoint", "trainer/step_recorder.py, telemetry/"),
)
TURN_STEPS = range(2, 7)
"""Steps that are repeated in every turn."""


def dataflow(colours: dict[str, tuple[str, str, str]]) -> Drawing:
    """Draw one training step, from a task to new weights."""
    height, top = 54, 24
    drawing = Drawing("One training step, from a task to new weights", 36 + height * len(STEPS), colours)
    for number, (words, files) in enumerate(STEPS):
        y = top + height * number
        kind = "agent_0" if number in TURN_STEPS else "plain"
        drawing.box(60, y, 620, 42, kind)
        drawing.text(74, y + 18, words, kind, size=14, anchor="start", style="bold")
        drawing.text(74, y + 35, files, kind, size=12, anchor="start", style="code")
        if number + 1 < len(STEPS):
            drawing.arrow((370, y + 42), (370, y + height))
    first = top + height * TURN_STEPS[0] + 21
    last = top + height * TURN_STEPS[-1] + 21
    drawing.arrow((60, last), (34, last), (34, first), (58, first), kind="agent_0", dashed=True)
    drawing.text(12, 0, "next turn", "agent_0", size=14)
    # The label stands beside the arrow, turned by a quarter.
    drawing.parts[-1] = drawing.parts[-1].replace(
        'x="12" y="0"', f'transform="translate(24 {(first + last) / 2}) rotate(-90)" x="0" y="0"'
    )
    return drawing


DIAGRAMS = {
    "idea": idea,
    "turns": turns,
    "joint_modes": joint_modes,
    "handoffs": handoffs,
    "architecture": architecture,
    "sandbox": sandbox,
    "dataflow": dataflow,
}


def main() -> None:
    """Write both files of every diagram."""
    for name, draw in DIAGRAMS.items():
        for theme, colours in THEMES.items():
            (FOLDER / f"{name}-{theme}.svg").write_text(draw(colours).svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
