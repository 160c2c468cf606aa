"""Writing against the clock: a pair that writes side by side, and one agent that writes as many tokens in a row.

Every arm is asked for ten words in all. An answer under a smaller limit is the beginning of an answer under a larger
one, so words by tokens are counted in the beginnings of the recorded answers of the last evaluation.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from benchmarks.learning.primary import Comparison, primary_table
from benchmarks.learning.study import JOINT, Arm, Study
from benchmarks.markdown import markdown
from benchmarks.tags.arms import TAGS
from benchmarks.tags.measures import measured, played_texts, reading_rule
from marl_ray.core.statistics import student_interval

LIMITS = (8, 14, 20, 28)
"""Tokens per answer."""
SINGLE = {"magrpo.num_agents": 1, "tags.words": 10}
PAIR_ARMS = (JOINT, "joint_28")
SINGLE_ARMS = ("single_14", "single_28")
TWICE = "single_14_twice"
"""Name of the comparison's arm of one agent with 14 tokens that is asked twice."""
LABEL_WIDTH = 11
"""Characters in a line of an arm's label in the figure."""
Line = Mapping[str, Any]


def words_by_tokens(run: Path, step: int, last: int) -> dict[str, float]:
    """Return the different words in the first 8, 14, ... tokens of each answer of an evaluation, up to the limit of the
    run: `words_8` of one answer of each agent, `twice_8` of two answers of one agent. Texts are tokenised again, so a
    beginning may differ from the sampled tokens by a token."""
    from transformers import AutoTokenizer

    from marl_ray.models.smollm2 import smollm2

    tokenizer = AutoTokenizer.from_pretrained(smollm2())
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))

    def beginning(text: str, tokens: int) -> str:
        return str(tokenizer.decode(tokenizer.encode(text)[:tokens]))

    rule = reading_rule(run)
    played = played_texts(run)["eval"][step]
    found = {}
    for limit in LIMITS:
        if limit > config["magrpo"]["max_new_tokens"]:
            break
        cut = []
        for task, answers in played:
            cut.append((task, [[beginning(text, limit) for text in own] for own in answers]))
        metrics = measured(cut, rule)
        found[f"words_{limit}"] = metrics["partners"]
        found[f"twice_{limit}"] = metrics["twice"]
    return found


CLOCK = Study(
    name="tags-clock",
    config=TAGS.config,
    common={
        "tags.words": 5,
        # Without commas 14 tokens hold ten words, and the clock would not matter.
        "tags.commas": True,
        # Two of the later texts have fewer than ten words that count.
        "dataset.train_split": "train[:198]",
        "magrpo.max_steps": 20,
    },
    groups={
        "side by side": {
            JOINT: Arm("a pair, 14 tokens each", {}),
            "shared": Arm("one policy for both, 14 tokens each", {"magrpo.policy": 0}),
        },
        "in a row": {
            "single_14": Arm("one agent, 14 tokens", SINGLE),
            "single_28": Arm("one agent, 28 tokens", {**SINGLE, "magrpo.max_new_tokens": 28}),
        },
        "longer answers": {"joint_28": Arm("a pair, 28 tokens each", {"magrpo.max_new_tokens": 28})},
    },
    files=TAGS.files,
    columns=TAGS.columns,
    compared=(),
    drawn=("reward_mean", "different words of ten"),
    extra_metrics=words_by_tokens,
)

COMPARISONS = (
    Comparison("a pair, less one agent asked twice, 14 tokens each", JOINT, TWICE, "words"),
    Comparison("exploratory: a pair, less one agent, 14 tokens", JOINT, "single_14", "words", exploratory=True),
    Comparison("exploratory: a pair, less one agent, 28 tokens", JOINT, "single_28", "words", exploratory=True),
    Comparison("exploratory: a pair, less one policy for both", JOINT, "shared", "words", exploratory=True),
)


def report(lines: Sequence[Line], path: Path) -> str:
    """Return the comparisons and the words by tokens as Markdown, and draw the figure."""
    compared = comparable(lines)
    parts = [
        primary_table(compared, COMPARISONS),
        limits_table(lines),
        catch_up(lines),
    ]
    draw(lines, path)
    return "\n\n".join(parts)


def comparable(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the words of each run after training. One agent asked twice is an arm of its own."""
    compared = []
    for line in lines:
        last = line["evaluations"][-1]
        compared.append({"arm": line["arm"], "seed": line["seed"], "after": {"words": last["partners"]}})
        if line["arm"] == "single_14":
            compared.append({"arm": TWICE, "seed": line["seed"], "after": {"words": last["twice"]}})
    return compared


def words_of(lines: Sequence[Line], arms: Sequence[str], limit: int, kind: str = "words") -> list[float]:
    """Return each seed's words in the first `limit` tokens of an answer, of the arm with the highest mean; none without
    rows. `kind` twice: in two answers of one agent."""
    by_arm = []
    for arm in arms:
        lasts = [line["evaluations"][-1] for line in lines if line["arm"] == arm]
        words = [last[f"{kind}_{limit}"] for last in lasts if f"{kind}_{limit}" in last]
        if words:
            by_arm.append(words)
    return max(by_arm, key=fmean, default=[])


def limits_table(lines: Sequence[Line]) -> str:
    """Return a Markdown table of the words of pair and single agent by tokens per answer."""
    rows = [["tokens per answer", *map(str, LIMITS)]]
    for title, arms, kind in (
        ("a pair", PAIR_ARMS, "words"),
        ("one agent", SINGLE_ARMS, "words"),
        ("one agent asked twice", SINGLE_ARMS, "twice"),
    ):
        cells = []
        for limit in LIMITS:
            words = words_of(lines, arms, limit, kind)
            if not words:
                cells.append("")
                continue
            mean, half = student_interval(words)
            interval = "" if half is None else f" ± {half:.2f}"
            cells.append(f"{mean:.2f}{interval}")
        rows.append([title, *cells])
    return markdown(rows)


def catch_up(lines: Sequence[Line]) -> str:
    """Return a sentence with the tokens at which one agent has as many words as the pair with 14 tokens each, between
    two limits by linear interpolation."""
    pair = words_of(lines, PAIR_ARMS, 14)
    points = []
    for limit in LIMITS:
        words = words_of(lines, SINGLE_ARMS, limit)
        if words:
            points.append((limit, fmean(words)))
    if not pair or not points:
        return ""
    target = fmean(pair)
    earlier, fewer = 0, 0.0
    for limit, mean in points:
        if mean >= target:
            tokens = earlier + (limit - earlier) * (target - fewer) / (mean - fewer)
            return f"One agent has the pair's {target:.2f} words after {tokens:.0f} tokens."
        earlier = limit
        fewer = mean
    return f"One agent has {fewer:.2f} words after {earlier} tokens, fewer than the pair's {target:.2f} after 14."


def draw(lines: Sequence[Line], path: Path) -> None:
    """Draw words by tokens per answer, mean and range over seeds, and the words of each arm after training, with a dot
    per seed. Nothing without rows of the pair."""
    if not any(line["arm"] == JOINT for line in lines):
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[1.0, 1.25])
    _draw_by_tokens(left, lines)
    _draw_arms(right, comparable(lines))
    for axis in (left, right):
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _draw_by_tokens(axis: Any, lines: Sequence[Line]) -> None:
    for label, arms, kind, colour in (
        ("a pair", PAIR_ARMS, "words", "#1b6ca8"),
        ("one agent asked twice", SINGLE_ARMS, "twice", "#2e8b57"),
        ("one agent", SINGLE_ARMS, "words", "#d1495b"),
    ):
        by_limit = {limit: words_of(lines, arms, limit, kind) for limit in LIMITS}
        by_limit = {limit: words for limit, words in by_limit.items() if words}
        lows = list(map(min, by_limit.values()))
        highs = list(map(max, by_limit.values()))
        axis.fill_between(list(by_limit), lows, highs, color=colour, alpha=0.15, linewidth=0)
        means = list(map(fmean, by_limit.values()))
        axis.plot(list(by_limit), means, "o-", color=colour, linewidth=2, label=label)
    axis.set_xticks(LIMITS)
    axis.set_xlabel("tokens one after the other", fontsize=11)
    axis.set_ylabel("different words, of ten asked for", fontsize=11)
    axis.legend(frameon=False, loc="lower right", fontsize=11)


def _draw_arms(axis: Any, compared: Sequence[Line]) -> None:
    titles = {name: arm.title for name, arm in CLOCK.arms.items()} | {TWICE: "one agent twice, 14 tokens each"}
    order = [JOINT, TWICE, "single_14", "single_28", "shared", "joint_28"]
    shown = [name for name in order if any(line["arm"] == name for line in compared)]
    for place, name in enumerate(shown):
        words = [line["after"]["words"] for line in compared if line["arm"] == name]
        axis.plot([place] * len(words), words, "o", color="#555555", alpha=0.5, markersize=5)
        axis.plot([place - 0.25, place + 0.25], [fmean(words)] * 2, color="black", linewidth=2)
    labels = [textwrap.fill(titles[name], LABEL_WIDTH) for name in shown]
    axis.set_xticks(range(len(shown)), labels, fontsize=10)
