"""Labels of vLLM's tokens: the weight version of each adapter of an engine, such as `4,7`.

vLLM has one label per engine, which it records with every token. An engine without adapters, or with one, has labels
of one number.
"""

from __future__ import annotations

from collections.abc import Iterable

from marl_ray.core.episode import WeightVersion

NONE_YET = "-1"
"""Version of an adapter that no update has sent."""


def with_version(label: str, adapter: int, version: WeightVersion) -> str:
    """Return the label after an update of adapter number `adapter`. vLLM's first label is no version.

    Example:
        >>> with_version("4,7", 1, 8)
        '4,8'
        >>> with_version("default", 1, 0)
        '-1,0'
    """
    versions = label.split(",")
    if not versions[0].lstrip("-").isdecimal():
        versions = []  # "default"
    missing = adapter + 1 - len(versions)
    versions += [NONE_YET] * missing
    versions[adapter] = str(version)
    return ",".join(versions)


def version_of(label: str, adapter: int) -> WeightVersion:
    """Return the version of adapter number `adapter` in a label."""
    versions = label.split(",")
    if adapter >= len(versions):
        return int(NONE_YET)
    return int(versions[adapter])


def spans_of(labels: Iterable[tuple[str, int]], adapter: int) -> tuple[tuple[WeightVersion, int], ...]:
    """Return pairs (version of the adapter, number of tokens) from pairs (label, number of tokens). Neighbours with one
    version are joined: another adapter has changed between them.

    Example:
        >>> spans_of([("4,7", 3), ("4,8", 2), ("5,8", 6)], 0)
        ((4, 5), (5, 6))
    """
    spans: list[tuple[WeightVersion, int]] = []
    for label, tokens in labels:
        version = version_of(label, adapter)
        if spans and spans[-1][0] == version:
            tokens += spans.pop()[1]
        spans.append((version, tokens))
    return tuple(spans)
