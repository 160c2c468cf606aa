"""Further cases computed by hand (see `reward_cases`): partly passed tests, one agent, and three agents."""

from __future__ import annotations

from tests.environments.code_generation.reward_cases import ALONE, AUX, MAIN, OK, ONE, TWO, RewardCase, body, helper

PARTLY = (
    RewardCase(
        "A M S 1/4",
        1.75,
        (*OK, "tests: 1 of 4 passed", "failed: assert f(1) == 3 -> AssertionError", "failed: assert f(2) == 5"),
        "implementation: OK",
        False,
        ((AUX, body("return 1")), (AUX, body("return x + 1")), (AUX, body("return 1 if x < 2 else 0"))),
    ),
    RewardCase(
        "A M S 1/4 C W",
        3.25,
        (*OK, "tests: 1 of 4 passed"),
        "implementation: OK",
        False,
        ((AUX, body("return aux(x) * x + 1 if x != 1 else 0")), (AUX, body("return aux(x) - 1 if x else 1"))),
    ),
    RewardCase(
        "A M S 2/4 C W",
        3.5,
        (*OK, "tests: 2 of 4 passed", "failed: assert f(2) == 5 -> AssertionError", "failed: assert f(10) == 21"),
        "implementation: OK",
        False,
        ((AUX, body("return aux(x) + 1 if x < 2 else 0")), (helper("return x * 2 if x < 2 else x"), MAIN)),
    ),
    RewardCase(
        "A M S 3/4 C W",
        3.75,
        (*OK, "tests: 3 of 4 passed", "failed: assert f(10) == 21 -> "),
        "implementation: OK",
        False,
        (
            (AUX, body("if x > 5:", "    return 0", "return aux(x) + 1")),
            (AUX, body("if x > 5:", "    raise ValueError(x)", "return aux(x) + 1")),
            (AUX, body("return min(aux(x), 8) + 1")),
            (helper("return [0, 2, 4][x]"), MAIN),
        ),
    ),
    RewardCase(
        "A M S 3/4 C",
        2.75,
        (*OK, "tests: 3 of 4 passed", "failed: assert f(10) == 21 -> ", "aux use: thin wrapper"),
        "implementation: OK",
        False,
        ((helper("return [1, 3, 5][x]"), body("return aux(x)")),),
    ),
    RewardCase(
        "A M S 0/4",
        1.5,
        (*OK, "tests: 0 of 4 passed", "failed: assert f(0) == 1 -> "),
        "implementation: OK",
        False,
        (
            (AUX, body("return aux(x)")),
            (AUX, body("aux(x)", "return 0")),
            (AUX, body("raise ValueError(aux(x))", "return 0")),
            (AUX, body("return str(aux(x) + 1)")),
            (AUX, body("return f(x)")),
            (AUX, body("import sys", "sys.exit(0)", "return aux(x) + 1")),
            (AUX, body("while True:", "    pass", "return aux(x) + 1")),
            (helper("return 2 / 0"), MAIN),
            (AUX, body("return undefined + aux(x)")),
        ),
    ),
)

SINGLE = (
    RewardCase(
        "M S 4/4",
        2.1,
        ("f: found", "syntax: OK", "tests: 4 of 4 passed"),
        "implementation: OK",
        True,
        (
            (ALONE,),
            (f"```python\n{ALONE}\n```",),
            (f"{AUX}\n\n{ALONE}",),
            (body("return (lambda y: y + 1)(2 * x)"),),
            (f"{ALONE}\n\nassert f(1) == 3",),
        ),
    ),
    RewardCase(
        "M S 1/4",
        1.35,
        ("f: found", "syntax: OK", "tests: 1 of 4"),
        "implementation: OK",
        False,
        ((body("return 1"),),),
    ),
    RewardCase(
        "M",
        0.6,
        ("f: found", "syntax: error in f line 2"),
        "implementation: OK",
        False,
        ((body("break", "return 1"),),),
    ),
    RewardCase("", 0.0, ("f: missing",), "implementation: missing f", False, (("",), ("f(x) = 2x + 1",), (AUX,))),
    # main's own helper is not the function asked for, so it is not in the program
    RewardCase(
        "M S 0/4",
        1.1,
        ("f: found", "syntax: OK", "tests: 0 of 4"),
        "implementation: OK",
        False,
        ((f"{AUX}\n\n{MAIN}",),),
    ),
)

THREE_OK = ("aux_1: found", "aux_2: found", "f: found", "syntax: OK", "tests: 4 of 4 passed")
BOTH = body("return aux_2(aux_1(x))")
THREE = (
    RewardCase(
        "both helpers: A M S 4/4 C W",
        4.0,
        (*THREE_OK, "aux use: OK"),
        "implementation: OK",
        True,
        (
            (ONE, TWO, body("return aux_1(x) + aux_2(0)")),
            (ONE, TWO, body("y = aux_1(x)", "return y * 1 + aux_2(x) - x")),
        ),
    ),
    # 0.4 + 0.6 + 0.5 + 1.0, and half of 0.5 and of 1.0
    RewardCase(
        "one of them called: A M S 4/4 C/2 W/2",
        3.25,
        (*THREE_OK, "aux use: aux_2 not called"),
        "implementation: OK",
        True,
        ((ONE, TWO, body("return aux_1(x) + 1")),),
    ),
    # 0.2 + 0.6 + 0.5 + 1.0 + 0.25 + 0.5
    RewardCase(
        "one of them missing: A/2 M S 4/4 C/2 W/2",
        3.05,
        (
            "aux_1: found",
            "aux_2: missing",
            "f: found",
            "syntax: OK",
            "tests: 4 of 4 passed",
            "aux use: aux_2 not called",
        ),
        "implementation: missing aux_2",
        True,
        ((ONE, "", body("return aux_1(x) + 1")), (ONE, ONE, body("return 1 + aux_1(x)"))),
    ),
    # 0.4 + 0.6 + 0.5 + 1.0 + 0.5 + 1.0 - 0.25
    RewardCase(
        "both called, one thrown away: A M S 4/4 C W X/2",
        3.75,
        (*THREE_OK, "aux use: result thrown away"),
        "implementation: OK",
        True,
        ((ONE, TWO, body("aux_2(x)", "return aux_1(x) + 1")),),
    ),
    RewardCase(
        "both called, a thin wrapper: A M S 4/4 C",
        3.0,
        (*THREE_OK, "aux use: thin wrapper"),
        "implementation: OK",
        True,
        ((ONE, TWO, BOTH),),
    ),
)
