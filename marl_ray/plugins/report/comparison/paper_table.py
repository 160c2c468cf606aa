"""Tables of a comparison, as Markdown and as LaTeX with booktabs."""

from __future__ import annotations

from marl_ray.core.statistics import Estimate, MethodComparison, describe_estimate
from marl_ray.core.text import pluralize


def table_rows(comparison: MethodComparison) -> list[list[str]]:
    """Return the header and one row per metric: the methods, then the differences from the first method."""
    first = next(iter(comparison.methods))
    header = ["metric"]
    metrics: dict[str, None] = {}  # in order of first appearance
    for name, estimates in comparison.methods.items():
        header.append(f"{name} ({pluralize(len(comparison.seeds[name]), 'seed')})")
        metrics.update(dict.fromkeys(estimates))
    header += [f"{name} - {first}" for name in comparison.differences]
    rows = [header]
    for metric in metrics:
        row = [metric]
        for estimates in comparison.methods.values():
            row.append(_cell(estimates.get(metric), signed=False))
        for estimates in comparison.differences.values():
            row.append(_cell(estimates.get(metric), signed=True))
        rows.append(row)
    return rows


def markdown_table(comparison: MethodComparison) -> str:
    """Return the table as Markdown. A star marks a difference whose interval excludes zero."""
    header, *rows = table_rows(comparison)
    rule = "|".join(["---"] * len(header))
    lines = [f"| {' | '.join(header)} |", f"|{rule}|"]
    for row in rows:
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def latex_table(comparison: MethodComparison) -> str:
    """Return the table as a LaTeX `tabular`, which needs the package booktabs."""
    table = table_rows(comparison)
    columns = "l" + "r" * (len(table[0]) - 1)
    header, *rows = [" & ".join(map(_escape, row)) + r" \\" for row in table]
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", header, r"\midrule", *rows, r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}"]) + "\n"


def _escape(text: str) -> str:
    # The backslash comes first: the other characters are escaped with one.
    text = text.replace("\\", r"\textbackslash ")
    for character in "&%$#_{}":
        text = text.replace(character, f"\\{character}")
    return text.replace(" - ", " $-$ ").replace("*", "$^*$")


def _cell(estimate: Estimate | None, signed: bool) -> str:
    if estimate is None:
        return ""
    star = " *" if signed and estimate.excludes_zero else ""
    return describe_estimate(estimate, signed) + star
