"""Probes: variants of a joint program that show by execution whether main needs a helper, and whether it adds anything.

A helper is needed if no stand-in without its work passes the tests that the joint program passes. A helper suffices if
its own result, in place of main's, passes them. Each probe is a statement after all definitions of the program.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence

REPLACE = """
def _replace(name, replacement):
    function = globals()[name]
    def stand_in(*args, **kwargs):
        globals()[name] = function  # a recursive call is a part of the function's own work
        try:
            return replacement(function, args, kwargs)
        finally:
            globals()[name] = stand_in
    from functools import update_wrapper
    update_wrapper(stand_in, function, updated=())  # main cannot recognise a stand-in by its name
    del stand_in.__wrapped__
    globals()[name] = stand_in
"""
STAND_IN = """
def _stand_in(function, args, kwargs):
    from copy import deepcopy
    {body}
"""
NOTHING = "return None"
ARGUMENT = "return next(iter((*args, *kwargs.values())), None)"
SAME_TYPE = """value = function(*deepcopy(args), **deepcopy(kwargs))
    return next((other for kind, other in {values} if isinstance(value, kind)), None)"""
EMPTY = """((bool, False), (int, 0), (float, 0.0), (str, ""), (list, []), (tuple, ()), (dict, {}), (set, set()))"""
FILLED = """((bool, True), (int, 97), (float, 97.0), (str, "?"), (list, [97]), (tuple, (97,)), (dict, {97: 97}), \
(set, {97}))"""
OTHER_ARGUMENTS = """
def _stand_in(function, args, kwargs, known=[]):
    from copy import deepcopy
    def copied(value):
        try:
            return deepcopy(value)
        except Exception:  # for example an iterator
            return value
    def equal(one, other):
        try:
            return bool(one == other)
        except Exception:  # for example arrays
            return repr(one) == repr(other)
    given = copied((args, kwargs))
    if len(known) < 2 and not any(equal(given, arguments) for arguments in known):
        known.append(given)
    others = [arguments for arguments in known if not equal(given, arguments)]
    if others:
        args, kwargs = copied(others[0])
    elif {none_at_first}:
        args, kwargs = (None,) * len(args), dict.fromkeys(kwargs)
    return function(*args, **kwargs)
"""
RESULT = """
def _result(main, args, kwargs, helper={helper!r}):
    from copy import deepcopy
    given, own = deepcopy((args, kwargs)), globals()[helper]
    results = []
    def recorded(function, args, kwargs):
        value = function(*args, **kwargs)
        results.append(deepcopy(value))
        return value
    _replace(helper, recorded)
    try:
        returned = main(*args, **kwargs)
    finally:
        globals()[helper] = own
    if not results or any(result != results[0] for result in results):
        return own(*given[0], **given[1])
    value = results[0]
    inner = list(value.values()) if isinstance(value, dict) else value
    return inner[0] if isinstance(inner, (list, tuple)) and len(inner) == 1 and inner[0] == returned else value
"""
PROBES = 8
"""Probes of a helper: seven stand-ins, of which equal ones are executed once, and the helper's own result."""


def probe_statements(
    helper: str, main: ast.FunctionDef, conditions: Sequence[ast.AST], script: bool, passed: int
) -> list[str]:
    """Return the probes of a helper. `conditions` are main's conditions on the helper's result, and `passed` is the
    number of tests that the joint program passes. The main function of a script reads the input, which no helper does
    for it, so a helper of a script hardly suffices.

    The stand-ins return:

    1. None;
    2. the first argument;
    3. an empty value of the result's type;
    4. an unusual value of the result's type;
    5. the helper's result for other arguments, which it received earlier in the same process;
    6. and 7. the empty value, with these conditions replaced by True and by False, which shows whether main only
       compares the result with its own.

    Of 5, the first call of a process gets the helper's own result, so that an honest helper fails from the second test
    on. A single test, or a process per test as in a script, has no second test: there the first call gets the result
    for None in place of every argument.
    """
    empty = SAME_TYPE.format(values=EMPTY)
    filled = SAME_TYPE.format(values=FILLED)
    definitions = [STAND_IN.format(body=body) for body in (NOTHING, ARGUMENT, empty, filled)]
    definitions.append(OTHER_ARGUMENTS.format(none_at_first=script or passed == 1))
    probes = []
    for definition in definitions:
        probes.append(f"{REPLACE}{definition}\n_replace({helper!r}, _stand_in)\n")
    empty_value = probes[2]
    for constant in (True, False):
        probes.append(_forced(main, conditions, constant) + empty_value)
    if script:
        result = f"{main.name} = {helper}"
    else:
        result = f"{REPLACE}{RESULT.format(helper=helper)}\n_replace({main.name!r}, _result)\n"
    return [*probes, result]


def needed_and_sufficient(passed: frozenset[int], probes: Sequence[frozenset[int]]) -> list[tuple[bool, bool]]:
    """Return for each helper whether main needs it and whether it suffices, from the tests that the joint program
    passes and the tests that each probe passes."""
    found = []
    for start in range(0, len(probes), PROBES):
        *stand_ins, result = probes[start : start + PROBES]
        is_needed = not any(passed <= by_stand_in for by_stand_in in stand_ins)
        found.append((is_needed, passed <= result))
    return found


def _forced(main: ast.FunctionDef, conditions: Sequence[ast.AST], value: bool) -> str:
    """Return main with these conditions replaced by a constant, or an empty string without conditions."""
    if not conditions:
        return ""
    # The memo of `deepcopy` names the nodes that are copied already: here, as the constant.
    constants = {id(condition): ast.Constant(value) for condition in conditions}
    forced = ast.fix_missing_locations(copy.deepcopy(main, constants))
    return f"\n\n{ast.unparse(forced)}\n"
