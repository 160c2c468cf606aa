"""The static analysis of helper use, compared with executions of random functions."""

from __future__ import annotations

import textwrap

from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.environments.code_generation.extraction import extract_function
from marl_ray.environments.code_generation.usage import helper_use


def expressions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        inner.map("aux({})".format),
        inner.map("g({})".format),
        inner.map("(not {})".format),
        inner.map("[{}][0]".format),
        inner.map("sum([aux(k) for k in (1, {})])".format),
        inner.map("sum(map(aux, (1, {})))".format),
        inner.map("(lambda k: aux(k))({})".format),
        pairs.map("({0[0]} + {0[1]})".format),
        pairs.map("({0[0]} or {0[1]})".format),
        pairs.map("({0[0]} and {0[1]})".format),
        pairs.map("({0[0]} if x else {0[1]})".format),
        pairs.map("({0[0]} == {0[1]})".format),
    )


EXPRESSIONS = st.recursive(st.sampled_from("x y z 0 1 True False".split()), expressions, max_leaves=4)  # noqa: SIM905


def without_recursion(body: list[str]) -> list[str]:
    """Return a body of `g` that does not call `g`."""
    own = any("def g(" in line or "g = aux" in line for line in body)
    return body if own else [line.replace("g(", "int(") for line in body]


def blocks(inner: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    def under(head: str, body: list[str]) -> list[str]:
        return [head, *(f"    {line}" for line in body)]

    one, several = EXPRESSIONS, inner
    return st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: [line for part in parts for line in part] or ["pass"]),
        st.tuples(one, several).map(lambda t: under(f"if {t[0]}:", t[1])),
        st.tuples(one, several, several).map(lambda t: [*under(f"if {t[0]}:", t[1]), *under("else:", t[2])]),
        st.tuples(several, several).map(lambda t: [*under("for y in (0, x):", t[0]), *under("else:", t[1])]),
        several.map(lambda body: under("for _ in range(2):", [*body, "if z: break", "continue"])),
        several.map(lambda body: [*under("while z < 3:", ["rounds.append(z)", "if len(rounds) > 5: break", *body])]),
        st.tuples(several, several).map(lambda t: [*under("try:", t[0]), *under("except ValueError:", t[1])]),
        st.tuples(several, several).map(lambda t: [*under("try:", t[0]), *under("finally:", t[1])]),
        several.map(lambda body: [*under("def g(k):", ["y = z = k", *without_recursion(body)]), "g(x)"]),
        st.tuples(one, several).map(lambda t: [f"match {t[0]}:", *under("    case 1:", [f"    {b}" for b in t[1]])]),
    )


SIMPLE = EXPRESSIONS.flatmap(
    lambda e: st.sampled_from(
        [f"y = {e}", f"z = {e}", f"y += {e}", f"return {e}", f"{e}", "raise ValueError", "g = aux", f"assert {e}"]
    )
)
BLOCKS = st.recursive(SIMPLE.map(lambda line: [line]), blocks, max_leaves=8)


@settings(max_examples=200, deadline=None)
@given(BLOCKS)
def test_the_analysis_agrees_with_execution(body: list[str]) -> None:
    """Check that every executed helper call is found, and that the result of a misused call changes no outcome."""
    code = "def f(x):\n    y = z = 0\n    g = int\n" + textwrap.indent("\n".join([*body, "return y"]), "    ")
    main = extract_function(code, "f")
    assert main.code == code
    use = helper_use(main, ["aux"])
    outcomes = []
    for answer in (0, 1, 7):
        calls = []
        names = {"aux": lambda k, answer=answer, calls=calls: calls.append(k) or answer}
        exec(code, names)
        for x in (0, 1, 2):
            names["rounds"] = []
            try:
                outcomes.append((x, repr(names["f"](x))))
            except (ValueError, AssertionError, UnboundLocalError, TypeError, RecursionError) as error:
                outcomes.append((x, type(error).__name__))
        assert not calls or use.called, code
    if not use.called or (use.misused and code.count("aux") == 1):
        assert len(set(outcomes)) == 3, (code, outcomes)
