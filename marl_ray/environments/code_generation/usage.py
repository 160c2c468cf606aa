"""How main uses the helpers that other agents wrote, by the way values take through its live code.

- *Called*: live code calls the helper, or hands it to what may call it: `map(aux, xs)`, `key=aux`, `g = aux; g(x)`,
  `partial(aux)`. Scopes are respected: a parameter, a local variable or an import named like a helper is not it.
- *Misused*: the result of one of these calls reaches neither what main returns nor an effect: a condition, a loop, an
  exception, a store into an object, an argument of code that is not known.
- *Thin wrapper*: main may return the very result of a helper, and no result of work. Work is any operation or call,
  but for those that change nothing: conversions (`int(...)`, `list(...)`), neutral arithmetic (`+ 0`, `* 1`, `or None`,
  `== True`), copies, packing and unpacking (`[aux(x)][0]`). A condition is no work, and constants or arguments that
  another branch returns are none. But two things are: calling a helper in a loop, on values that change from round
  to round; and choosing, by what helpers returned, between values of different origin (`a if a > b else b`).

It is read, not run, so it can be deceived: `aux(x) + 1 - 1` counts as work. Where the flow cannot be followed, main
gets the benefit of the doubt.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from marl_ray.environments.code_generation.expressions import TooMuchWork
from marl_ray.environments.code_generation.extraction import Contribution
from marl_ray.environments.code_generation.flow import Flow


@dataclass(frozen=True, slots=True)
class HelperUse:
    """Helpers that main calls; those of which it throws a result away; whether it only wraps a helper."""

    called: frozenset[str] = frozenset()
    misused: frozenset[str] = frozenset()
    thin_wrapper: bool = False


def helper_use(main: Contribution, helpers: Collection[str]) -> HelperUse:
    """What main makes of the helpers; nothing, where main is more than can be followed."""
    if main.function is None:
        return HelperUse()
    flow = Flow(frozenset(helpers) - main.imported)
    try:
        flow.run(main.function)
    except (TooMuchWork, RecursionError):
        return HelperUse()
    sources = flow.result.direct
    passes_on = any(source in flow.calls for source in sources)
    chooses = flow.chosen and len(sources) > 1
    return HelperUse(
        called=frozenset(flow.calls.values()),
        misused=frozenset(name for number, name in flow.calls.items() if number not in flow.used),
        thin_wrapper=passes_on and not flow.result.worked and not chooses,
    )
