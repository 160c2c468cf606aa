"""How main uses its helpers: calls, shadowing, thin wrappers, results thrown away."""

from __future__ import annotations

import textwrap

import pytest

from marl_ray.environments.extraction import contribution
from marl_ray.environments.usage import HelperUse, helper_use


def use(body: str, head: str = "def f(x, xs=()):", before: str = "") -> HelperUse:
    code = before + head + "\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    main = contribution(code, "f")
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
        "return [aux for aux in xs] + [aux(1)]",  # a comprehension's variable is its own
        "return (lambda aux: aux)(1) + aux(x)",
        "class C:\n    def m(self):\n        return aux(1)\nreturn C",
    ],
)
def test_calls(body: str) -> None:
    assert use(body).called == {"aux"}


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
    ],
)
def test_what_is_no_call_of_the_helper(body: str, head: str, before: str) -> None:
    assert use(body, head, before).called == set()


@pytest.mark.parametrize(
    "body",
    [
        "return aux(x)",
        '"""Doc."""\npass\nreturn aux(x)',
        "return aux(aux(x))",
        "y = aux(x)\nreturn y",
        "y: int = aux(x)\nreturn y",
        "return (y := aux(x))",
    ],
)
def test_thin_wrappers(body: str) -> None:
    found = use(body)
    assert found.thin_wrapper
    assert not found.misused


@pytest.mark.parametrize(
    "body",
    [
        "return aux(x) + 1",
        "y = aux(x)\nreturn y + 1",
        "y = aux(x)\nreturn x",
        "x = x + 1\nreturn aux(x)",
        "if x:\n    return aux(x)\nreturn 0",
        "return other(x)",
        "return",
        "return [aux(x)]",
    ],
)
def test_no_thin_wrappers(body: str) -> None:
    assert not use(body).thin_wrapper


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
        "return x\naux(x)",
    ],
)
def test_results_thrown_away(body: str) -> None:
    found = use(body)
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
        "y = 0\nfor i in xs:\n    print(y)\n    y = aux(i)\nreturn 1",
        "y = 0\nwhile y < 3:\n    y = aux(y)\nreturn 1",
        "try:\n    y = aux(x)\nfinally:\n    print(y)\nreturn 1",
        "y = aux(x)\ndef inner():\n    return y\nreturn inner()",
        "d = {}\nd[x] = aux(x)\nreturn d",
        "x.y = aux(x)\nreturn x",
        "print(aux(x))\nreturn 1",
        "global y\ny = aux(x)\nreturn 1",
        "y = 0\ndef inner():\n    nonlocal y\n    y = aux(x)\ninner()\nreturn y",
        "xs.append(aux(x))\nreturn xs",
        "total = 0\nfor i in xs:\n    total += aux(i)\nreturn total",
        "for y in aux(x):\n    print(y)\nreturn 1",
        "if (y := aux(x)) > 1:\n    return y\nreturn 1",
        "with open(x):\n    y = aux(x)\nreturn y",
        "match x:\n    case 1:\n        y = aux(x)\n    case _:\n        y = 3\nreturn y",
    ],
)
def test_results_used(body: str) -> None:
    found = use(body)
    assert found.called == {"aux"}
    assert not found.misused


def test_no_main_uses_nothing() -> None:
    assert helper_use(contribution("x = 1", "f"), ["aux"]) == HelperUse()
