"""Names on the metrics page, for tests that compare the page with metric rows."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.factories import ROOT

PAGE = ROOT / "docs" / "reference" / "metrics.md"


def documented_metrics() -> list[str]:
    """Return the names in the metric tables of docs/reference/metrics.md, such as `turn_k/reward_mean`."""
    tables = PAGE.read_text(encoding="utf-8").split("## episodes.jsonl")[0]
    return re.findall(r"^\| `([^`]+)` \|", tables, re.MULTILINE)


def undocumented(keys: Iterable[str]) -> list[str]:
    """Return the keys of metric rows that the page does not document."""
    documented = set(documented_metrics())
    return [key for key in keys if key not in documented and page_name(key) not in documented]


def page_name(key: str) -> str:
    """Return the name under which the page documents the key of a row.

    Example:
        >>> page_name("eval/turn_2/level/tests")
        'turn_k/level/...'
    """
    name = re.sub(r"^eval/(?=turn_|agent_|expert/|cooperation/|tokens/|reward_per_token/)", "", key)
    name = re.sub(r"\bturn_\d+/", "turn_k/", name)
    name = re.sub(r"\b(agent|policy)_\d+/", "agent_i/", name)
    name = re.sub(r"\bagent_\d+_contribution", "agent_i_contribution", name)
    name = re.sub(r"\bdevice_\d+/", "device_i/", name)
    return re.sub(r"/level/.*", "/level/...", name)
