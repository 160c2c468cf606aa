"""Tables of a comparison, as Markdown and as LaTeX with booktabs."""

from __future__ import annotations

import math

from marl_ray.evaluation.statistics import Estimate
from marl_ray.plugins.report.comparison.seed_statistics import MethodComparison


def table_rows(comparison: MethodComparison) -> list[list[str]]:
    """Return the header and one row per metric: the methods, then the differences from the first method."""
    first = next(iter(comparison.methods))
    seeds = {name: len(seeds) for name, seeds in comparison.seeds.items()}
    header = [f"{name} ({seeds[name]} seed{'s' * (seeds[name] > 1)})" for name in comparison.methods]
    rows = [["metric", *header, *(f"{name} - {first}" for name in comparison.differences)]]
    for metric in dict.fromkeys(metric for block in comparison.methods.values() for metric in block):
        cells = [_cell(block.get(metric), False) for block in comparison.methods.values()]
        cells += [_cell(block.get(metric), True) for block in comparison.differences.values()]
        rows.append([metric, *cells])
    return rows


def markdown_table(comparison: MethodComparison) -> str:
    """Return the table as Markdown. A star marks a difference whose interval excludes zero."""
    header, *rows = [" | ".join(row) for row in table_rows(comparison)]
    rule = "|".join(["---"] * len(table_rows(comparison)[0]))
    return (
        "\n".join(f"| {row} |" for row in [header]) + f"\n|{rule}|\n" + "\n".join(f"| {row} |" for row in rows) + "\n"
    )


def latex_table(comparison: MethodComparison) -> str:
    """Return the table as a LaTeX `tabular`, which needs the package booktabs."""
    header, *rows = [" & ".join(map(_escape, row)) + r" \\" for row in table_rows(comparison)]
    columns = "l" + "r" * (len(table_rows(comparison)[0]) - 1)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule", *rows, r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}"]) + "\n"


def _escape(text: str) -> str:
    for character in "\\&%$#_{}":
        text = text.replace(character, r"\textbackslash " if character == "\\" else f"\\{character}")
    return text.replace(" - ", " $-$ ").replace("*", "$^*$")


def _cell(estimate: Estimate | None, signed: bool) -> str:
    if estimate is None:
        return ""
    sign = "+" if signed else ""
    text = f"{estimate.mean:{sign}.3f}"
    if not math.isnan(estimate.low):
        text += f" [{estimate.low:{sign}.3f}, {estimate.high:{sign}.3f}]"
    return text + (" *" if signed and estimate.excludes_zero else "")
