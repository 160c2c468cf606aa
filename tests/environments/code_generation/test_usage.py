"""How main uses the helpers: calls, shadowing, thin wrappers, discarded results."""

from __future__ import annotations

import resource
import textwrap
import time

import pytest

from marl_ray.environments.code_generation.extraction import extract_function
from marl_ray.environments.code_generation.usage import HelperUse, helper_use


def usage_of(body: str, head: str = "def f(x, xs=()):", before: str = "") -> HelperUse:
    code = before + head + "\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    main = extract_function(code, "f")
    assert main.function is not None, code
    return helper_use(main, ["aux"])


@pytest.mark.parametrize(
    "body",
    [
        "return aux(x) + 1",
        "return [aux(i) for i in xs]",
        "return max(xs, key=lambda i: aux(i))",
        "def inner(y):\n    return aux(y) + 1\nreturn inner(x)",
        "if aux(x):\n    return 1\nreturn 2",
        "return list(map(aux, xs))",
        "return sorted(xs, key=aux)",
        "xs.sort(key=aux)\nreturn xs",
        "return x.apply(aux)",
        "return reduce(aux, xs)",
        "g = aux\nreturn g(x) + 1",
        "g = h = aux\nreturn h(x) + 1",
        "return partial(aux, 1)(x) + 1",
        "g = partial(aux, 1)\nreturn [g(i) for i in xs]",
        "def inner(g):\n    return g(x) + 1\nreturn inner(aux)",
        "g = lambda y: aux(y)\nreturn g(x) + 1",
        "try:\n    return int(x)\nexcept ValueError:\n    return aux(x)",
        "with suppress(ValueError):\n    return int(x)\nreturn aux(x)",
        "while True:\n    x = aux(x)\n    if x:\n        break\nreturn x",
        "match x:\n    case 1:\n        return aux(x) + 1\n    case _:\n        return 2",
    ],
)
def test_calls_of_the_helper_are_found(body: str) -> None:
    assert usage_of(body).called == {"aux"}


@pytest.mark.parametrize(
    ("body", "head", "before"),
    [
        ("return x + 1", "def f(x):", ""),
        ("return 'aux(x)'", "def f(x):", ""),
        ("# aux(x)\nreturn x", "def f(x):", ""),
        ("return aux", "def f(x):", ""),
        ("return x.aux(1)", "def f(x):", ""),
        ("return aux(x)", "def f(x, aux=abs):", ""),
        ("return aux(x)", "def f(x, *aux):", ""),
        ("return aux(x)", "def f(x, **aux):", ""),
        ("return aux(x)", "def f(aux, /):", ""),
        ("aux = abs\nreturn aux(x)", "def f(x):", ""),
        ("def aux(y):\n    return y\nreturn aux(x)", "def f(x):", ""),
        ("import math as aux\nreturn aux(x)", "def f(x):", ""),
        ("for aux in x:\n    aux(1)\nreturn 1", "def f(x):", ""),
        ("with open(x) as aux:\n    return aux(1)", "def f(x):", ""),
        ("try:\n    return 1\nexcept E as aux:\n    return aux(1)", "def f(x):", ""),
        ("match x:\n    case [*aux]:\n        return aux(1)\nreturn 2", "def f(x):", ""),
        ("match x:\n    case {**aux}:\n        return aux(1)\nreturn 2", "def f(x):", ""),
        ("match x:\n    case aux:\n        return aux(1)", "def f(x):", ""),
        ("if (aux := abs):\n    return aux(x)\nreturn 1", "def f(x):", ""),
        ("[aux := i for i in x]\nreturn aux(1)", "def f(x):", ""),
        ("return [aux(1) for aux in x]", "def f(x):", ""),
        ("def inner(y):\n    return aux(y)\naux = abs\nreturn inner(x)", "def f(x):", ""),
        ("return aux(x)", "def f(x):", "from math import floor as aux\n"),
        ("return aux(x)", "def f(x):", "import aux.tools\n"),
        # Unreachable.
        ("return x\naux(x)", "def f(x):", ""),
        ("raise ValueError\nreturn aux(x)", "def f(x):", ""),
        ("if False:\n    return aux(x)\nreturn 1", "def f(x):", ""),
        ("if 0:\n    return aux(x)\nreturn 1", "def f(x):", ""),
        ("if True:\n    return 1\nelse:\n    return aux(x)", "def f(x):", ""),
        ("for i in x:\n    break\n    aux(i)\nreturn 1", "def f(x):", ""),
        ("for i in x:\n    continue\n    aux(i)\nreturn 1", "def f(x):", ""),
        ("if x:\n    return 1\nelse:\n    return 2\nreturn aux(x)", "def f(x):", ""),
        ("try:\n    return 1\nfinally:\n    x = 2\nreturn aux(x)", "def f(x):", ""),
        ("def unused(y):\n    return aux(y)\nreturn x", "def f(x):", ""),
        ("class Unused:\n    def m(self):\n        return aux(1)\nreturn x", "def f(x):", ""),
        ("def g():\n    return h()\ndef h():\n    return aux(1)\nreturn x", "def f(x):", ""),
        # Read, but not called.
        ("g = aux\nreturn x", "def f(x):", ""),
        ("return x if aux else 1", "def f(x):", ""),
        ("print(aux)\nreturn x", "def f(x):", ""),
        ("return x + callable(aux)", "def f(x):", ""),
        ("fs = [aux, abs]\nreturn fs[1](x)", "def f(x):", ""),
        ("return x", "def f(x, g=aux):", ""),
        ("global aux\naux = abs\nreturn aux(x)", "def f(x):", ""),
    ],
)
def test_shadowed_unreachable_and_uncalled_helpers_do_not_count_as_called(body: str, head: str, before: str) -> None:
    assert usage_of(body, head, before).called == set()


@pytest.mark.parametrize(
    "body",
    [
        "return aux(x)",
        '"""Doc."""\npass\nreturn aux(x)',
        "return aux(aux(x))",
        "y = aux(x)\nreturn y",
        "y: int = aux(x)\nreturn y",
        "return (y := aux(x))",
        "x = x + 1\nreturn aux(x)",  # work on the argument is not work on the result
        "return int(aux(x))",
        "return list(set(aux(x)))",
        "return aux(x) + 0",
        "return 1 * aux(x) // 1",
        "return aux(x) + ''",
        "return [] + aux(x)",
        "return aux(x) == True",
        "return aux(x) is True",
        "return aux(x) or 0",
        "return aux(x)[:]",
        "return [*aux(x)]",
        "return [aux(x)][0]",
        "return (aux(x),)[-1]",
        "return [y for y in aux(x)]",
        "return f'{aux(x)}'",
        "y = aux(x)\nz = y\nreturn z",
        "print(x)\nreturn aux(x)",
        "y = aux(x)\nprint(y)\nreturn y",
        "y = x * 2 + 1\nreturn aux(x)",
        "if x:\n    return aux(x)\nelse:\n    return aux(x)",
        "if x > 2:\n    return aux(x)\nreturn aux(2)",
        "if not x:\n    return 0\nreturn aux(x)",
        "if not x:\n    return x\nreturn aux(x)",
        "return aux(x) if x else None",
        "y = aux(x)\nif y is None:\n    return 0\nreturn y",
        "return aux(x)\nreturn x + 1",
        "if False:\n    return x + 1\nreturn aux(x)",
        "try:\n    return aux(x)\nexcept Exception:\n    return None",
        "try:\n    y = aux(x)\nexcept Exception as error:\n    raise ValueError from error\nreturn y",
        "def inner(y):\n    return aux(y)\nreturn inner(x)",
        "g = aux\nreturn g(x)",
        "for _ in range(1):\n    return aux(x)",
        "with open(x):\n    return aux(x)",
        "while True:\n    return aux(x)",
    ],
)
def test_returning_the_unchanged_result_of_the_helper_is_a_thin_wrapper(body: str) -> None:
    found = usage_of(body)
    assert found.thin_wrapper
    assert not found.misused


@pytest.mark.parametrize(
    "body",
    [
        "return aux(x) + 1",
        "y = aux(x)\nreturn y + 1",
        "y = aux(x)\nreturn x",
        "return not aux(x)",
        "return -aux(x)",
        "return aux(x) * 2",
        "return aux(x) % 1000000007",
        "return aux(x) == 0",
        "return aux(x) + x",
        "return len(aux(x))",
        "return sorted(aux(x))",
        "return aux(x)[0]",
        "return aux(x).strip()",
        "return 'yes' if aux(x) else 'no'",
        "if aux(x):\n    return True\nreturn False",
        "return [aux(i) for i in xs]",
        "return [y + 1 for y in aux(x)]",
        "return [y for y in aux(x) if y > 2]",
        "return list(map(aux, xs))",
        "return max(aux(x), 0)",
        "a, b = aux(x)\nreturn b",
        "return aux(x), x",
        "total = 0\nfor i in xs:\n    total += aux(i)\nreturn total",
        "best = None\nfor i in xs:\n    y = aux(i)\n    if best is None or y > best:\n        best = y\nreturn best",
        "while x > 9:\n    x = aux(x)\nreturn x",
        "for i in xs:\n    if aux(i):\n        return i\nreturn None",
        "for y in aux(x):\n    if y > 2:\n        return y\nreturn 0",
        "a = aux(x)\nb = aux(2)\nreturn a if a > b else b",
        "y = aux(x)\nif y > x:\n    return y\nreturn x",
        "if x < 2:\n    return x * 2\nreturn aux(x)",
        "if x == 0:\n    return 1\nreturn f(x - 1) * aux(x)",
        "def inner(y):\n    return aux(y) + 1\nreturn inner(x)",
        "out = []\nfor i in xs:\n    out.append(aux(i))\nreturn out",
        "d = {}\nd[x] = aux(x)\nreturn d",
        "return f'<{aux(x)}>'",
        "yield aux(x)",
        "lo, hi = 0, x\nwhile lo < hi:\n    mid = (lo + hi) // 2\n    if aux(mid):\n        hi = mid\n"
        "    else:\n        lo = mid + 1\nreturn lo",
        "return other(x)",
        "return",
        "return [aux(x)]",
    ],
)
def test_further_work_on_the_result_is_not_a_thin_wrapper(body: str) -> None:
    assert not usage_of(body).thin_wrapper


@pytest.mark.parametrize(
    "body",
    [
        "aux(x)\nreturn x",
        "y = aux(x)\nreturn x",
        "y: int = aux(x)\nreturn x",
        "_ = aux(x)\nreturn x",
        "a, b = aux(x)\nreturn x",
        "y = z = aux(x)\nreturn x",
        "y = aux(x)\ny = x\nreturn y",
        "y = aux(x)\ndel y\nreturn x",
        "a, b = aux(x)\n(a, [b]) = 1, [2]\nreturn a + b",
        "y = 0\nz = y\ny = aux(x)\nreturn z",
        "y = 0\nif x:\n    y = aux(x)\n    return 1\nreturn y",
        "for i in xs:\n    y = aux(i)\n    y = i\n    print(y)\nreturn 1",
        "if x:\n    y = aux(x)\nelse:\n    y = 2\nreturn x",
        "y = aux(x)\ny = aux(x) + 1\nreturn y",
        "y = aux(x)\nz = aux(2)\nreturn z",
        "def inner():\n    aux(1)\n    return 2\nreturn inner()",
        "try:\n    aux(x)\nexcept ValueError:\n    return 1\nreturn 2",
        "match x:\n    case 1:\n        aux(x)\nreturn 2",
        "with open(x):\n    y = aux(x)\nreturn 2",
        "y = aux(x)\nz = y\nreturn x",
        "print(aux(x))\nreturn x",
        "y = aux(x) + 1\ny * 2\nreturn x",
        "len(aux(x))\nreturn x",
        "map(aux, xs)\nreturn x",
        "[aux(i) for i in xs]\nreturn x",
        "y = aux(x)\ndef unused():\n    return y\nreturn x",
        "g = aux\ng(x)\nreturn x",
    ],
)
def test_discarded_results_are_misuse(body: str) -> None:
    found = usage_of(body)
    assert found.called == {"aux"}
    assert found.misused == {"aux"}


@pytest.mark.parametrize(
    "body",
    [
        "y = aux(x)\nreturn y + 1",
        "y = aux(x)\ny = y + 1\nreturn y",
        "y = aux(x)\ny += 1\nreturn y",
        "a, b = aux(x)\nreturn b",
        "y = z = aux(x)\nreturn z",
        "y = 0\nif x:\n    y = aux(x)\nreturn y",
        "y = aux(x)\nif x:\n    y = 1\nreturn y",
        "y = 0\nfor i in xs:\n    log(y)\n    y = aux(i)\nreturn 1",
        "y = 0\nwhile y < 3:\n    y = aux(y)\nreturn 1",
        "try:\n    y = aux(x)\nfinally:\n    log(y)\nreturn 1",
        "y = aux(x)\ndef inner():\n    return y\nreturn inner()",
        "d = {}\nd[x] = aux(x)\nreturn d",
        "x.y = aux(x)\nreturn x",
        "log(aux(x))\nreturn 1",
        "global y\ny = aux(x)\nreturn 1",
        "y = 0\ndef inner():\n    nonlocal y\n    y = aux(x)\ninner()\nreturn y",
        "xs.append(aux(x))\nreturn xs",
        "total = 0\nfor i in xs:\n    total += aux(i)\nreturn total",
        "for y in aux(x):\n    log(y)\nreturn 1",
        "if (y := aux(x)) > 1:\n    return y\nreturn 1",
        "with open(x):\n    y = aux(x)\nreturn y",
        "y = aux(x)\nz = y\nreturn z + 1",
        "return sorted(xs, key=aux)",
        "xs.sort(key=aux)\nreturn xs",
        "if aux(x):\n    x = 2\nreturn x",
        "return xs[aux(x)]",
        "raise ValueError(aux(x))",
        "assert aux(x)\nreturn x",
        "try:\n    y = aux(x)\nexcept ValueError:\n    y = 2\nreturn y",
        "y = None\ntry:\n    y = aux(x)\n    z = int(x)\nexcept ValueError:\n    z = y\nreturn z",
        "y = [0]\ndef inner():\n    y[0] = aux(x)\ninner()\nreturn y",
        "a, *b = aux(x), 1\nreturn a",
        "y = aux(x)\nfor i in xs:\n    if i:\n        continue\n    return y\nreturn 1",
        "prev = 0\nfor i in xs:\n    log(prev)\n    prev, last = aux(i), prev\nreturn last",
        "match x:\n    case 1:\n        y = aux(x)\n    case _:\n        y = 3\nreturn y",
    ],
)
def test_results_that_reach_an_effect_or_a_result_are_used(body: str) -> None:
    found = usage_of(body)
    assert found.called == {"aux"}
    assert not found.misused


@pytest.mark.parametrize(
    "body",
    [
        "debug = False\nif debug:\n    print(aux(x))\nreturn 1",
        "return x + (1 or aux(x))",
        "assert False\nreturn aux(x)",
    ],
)
def test_constants_other_than_the_literal_condition_of_an_if_are_not_evaluated(body: str) -> None:
    assert usage_of(body).called == {"aux"}


@pytest.mark.parametrize("body", ["return aux(x) + 1 - 1", "return not not aux(x)", "y = 0\ny += aux(x)\nreturn y"])
def test_disguised_wrappers_that_count_as_work(body: str) -> None:
    assert not usage_of(body).thin_wrapper


def test_a_missing_main_uses_nothing() -> None:
    assert helper_use(extract_function("x = 1", "f"), ["aux"]) == HelperUse()


@pytest.mark.parametrize(
    "main",
    [
        "def f(x):\n" + "    for i in x:\n        x = aux(i)\n" * 300 + "    return x",
        "def f(x):\n    return " + "aux(" * 60 + "x" + ")" * 60,
        "def f(x):\n"
        + "".join(" " * (i + 1) + "for i in x:\n" for i in range(18))
        + " " * 19
        + "x = aux(x)\n return x",
        "def f(x):\n    a0 = lambda: aux(x)\n"
        + "".join(f"    a{i + 1} = lambda: a{i}() + a{i}()\n" for i in range(40))
        + "    return a40()",
        "def f(x):\n    return " + " + ".join(["aux(x)"] * 180),
        "def f(x):\n    def g(): return g() + aux(x)\n    return g()",
        "def f(x):\n    return x" + " * 1000" * 150 + " + aux(x)",
        "def f(x):\n    y = 'ab'\n" + "    y = y * 1000\n" * 500 + "    return aux(y)",
        "def f(x):\n    y = '%400000000d' % 1\n    return aux(y)",
        "def f(x):\n    y = b'%400000000d' % 1\n    return aux(y)",
    ],
)
def test_the_analysis_is_fast_on_hostile_functions(main: str) -> None:
    found = extract_function(main, "f")
    assert found.function is not None
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    helper_use(found, ["aux"])
    assert time.monotonic() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "KiB"
