"""Programs that abuse shared objects, proxies, exceptions, and values that cross by name.

The judge must survive, and no test may pass.
"""

# ruff: noqa: E501 (lines of the hostile programs)
from __future__ import annotations

from marl_ray.sandbox.inside.protocol.references import ALL_METHODS, METHOD_BITS
from tests.sandbox.attacks.attack import Attack
from tests.sandbox.attacks.forged_answers import forged

ITERATOR = METHOD_BITS["iter"] | METHOD_BITS["next"] | METHOD_BITS["self"]
HASHED = METHOD_BITS["hash"] | METHOD_BITS["eq"]
ARGUMENT = (
    "a = [1]\nr = f(a)\nassert a == ['@WANTED@'] or r == '@WANTED@'",
    "want = ['@WANTED@']\nassert f(want[:0]) == want",
)
SWALLOWED = (
    "try:\n    r = f(1)\nexcept:\n    r = ''\nassert r == '@WANTED@'",
    "try:\n    f(1) == '@WANTED@'\nexcept:\n    ok = True\nelse:\n    ok = False\nassert ok and f(2) == '@WANTED@'",
    "try:\n    assert f(1) == '@WANTED@'\nexcept TypeError:\n    pass",
)
ATTACKS = (
    forged(
        "shared_unknown_numbers",
        "Refer to shared objects that the judge never sent.",
        '[nonce, "ok", [{"@": n} for n in range(-2, 50)], None]',
    ),
    forged(
        "shared_number_types",
        "Refer to shared objects by values that are not integers.",
        '[nonce, "ok", [{"@": True}, {"@": 10**30}], None]',
    ),
    forged(
        "changes_of_unknown_objects",
        "Change shared objects that the judge never sent.",
        '[nonce, "ok", 0, [[n, ["x"]] for n in range(1, 50)]]',
        tests=ARGUMENT,
    ),
    forged(
        "changes_of_content_type",
        "Change a list to the content of a dict.",
        '[nonce, "ok", 0, [[0, {"d": []}]]]',
        tests=ARGUMENT,
    ),
    forged("changes_malformed", "Send changes in the wrong shape.", '[nonce, "ok", 0, {"0": ["x"]}]', tests=ARGUMENT),
    forged(
        "changes_unhashable_keys",
        "Change a dict to have keys that cannot be hashed.",
        '[nonce, "ok", 0, [[0, [[[], 1]]]]]',
        tests=("a = {}\nf(a)\nassert a == {1: '@WANTED@'}",),
    ),
    forged(
        "changes_grow_argument",
        "Grow an argument to the size limit of an answer.",
        '[nonce, "ok", 0, [[0, ["x"] * 100000]]]',
        tests=ARGUMENT,
    ),
    forged(
        "changes_repeated",
        "Change one object a thousand times in one answer.",
        '[nonce, "ok", {"@": 0}, [[0, [n]] for n in range(1000)]]',
        tests=ARGUMENT,
    ),
    forged(
        "argument_contains_itself",
        "Make an argument contain itself and return it.",
        '[nonce, "ok", {"@": 0}, [[0, [{"@": 0}] * 9]]]',
        tests=ARGUMENT,
    ),
    Attack(
        "argument_expands_exponentially",
        "Return an argument nested in lists that expand exponentially.",
        "def f(x):\n    y = x\n    for _ in range(30):\n        y = [y] * 10\n    return y\n",
        tests=(
            "assert f([1]) == f([1])",
            "a = [1]\nassert f(a) == [f(a)] * 10",
            "x = f([1])\nassert str(x) == '@WANTED@'",
        ),
        statuses=("error", "fail", "crash", "skipped", "timeout"),
    ),
    Attack(
        "changes_expand_exponentially",
        "Build exponentially expanding lists by small changes of the arguments.",
        "last = None\ndef f(x):\n    global last\n    x[:] = [last] * 10\n    last = x\n    return x\n",
        tests=(
            "xs = [[] for _ in range(40)]\nfor x in xs:\n    f(x)\nassert xs[-1] == [xs[-2]] * 10 and xs[-1] == '@WANTED@'",
        ),
    ),
    forged(
        "proxy_unknown_methods",
        "Return a reference with undefined method bits.",
        f'[nonce, "ok", {{"h": [0, "T", {ALL_METHODS + 1}, None]}}, None]',
    ),
    forged(
        "proxy_all_methods",
        "Return a reference with every method bit.",
        f'[nonce, "ok", {{"h": [0, "T", {ALL_METHODS}, 5]}}, None]',
        tests=SWALLOWED,
    ),
    forged(
        "proxy_many_types",
        "Return references of twenty thousand types.",
        '[nonce, "ok", [{"h": [n, str(n), 0, None]} for n in range(20000)], None]',
    ),
    forged(
        "proxy_hash_collisions",
        "Return a set of references with equal hashes.",
        f'[nonce, "ok", {{"s": [{{"h": [n, "T", {HASHED}, 1]}} for n in range(N)]}}, None]',
    ),
    forged(
        "proxy_hash_too_large",
        "Return a reference whose hash exceeds 64 bits.",
        f'[nonce, "ok", {{"s": [{{"h": [1, "T", {HASHED}, {1 << 70}]}}]}}, None]',
    ),
    forged(
        "proxy_iterates_endlessly",
        "Return an iterator that always has more items, in well-formed answers.",
        f'[nonce, "ok", {{"h": [0, "T", {ITERATOR}, None]}}, None] if not answered.append(1) and len(answered) == 1'
        ' else [nonce, "ok", {"t": [{"t": [1]}, False, None]}, None]',
        tests=("assert [y for y in f(1)] == ['@WANTED@']", "assert all(y == '@WANTED@' for y in f(1))"),
    ),
    forged(
        "proxy_iterator_ends_early",
        "Return an iterator that ends before any item that could be compared.",
        f'[nonce, "ok", {{"h": [0, "T", {ITERATOR}, None]}}, None] if not answered.append(1) and len(answered) == 1'
        ' else [nonce, "ok", {"t": [{"t": [1, 2]}, True, None]}, None]',
        tests=("assert [y for y in f(1)] == ['@WANTED@']",),
    ),
    forged(
        "name_of_judge_module",
        "Return the judge's os.system by name.",
        '[nonce, "ok", {"n": "os:system"}, None]',
        tests=("assert f(1)('true') == '@WANTED@'",),
    ),
    forged(
        "name_of_eval",
        "Return the judge's eval by name.",
        '[nonce, "ok", {"n": "builtins:eval"}, None]',
        tests=("assert f(1)('1') == '@WANTED@'",),
    ),
    forged(
        "exception_by_value",
        "Return an exception in an encoding reserved for the judge.",
        '[nonce, "ok", {"e": ["SystemExit", [0]]}, None]',
    ),
    forged(
        "namedtuple_fields_are_code",
        "Return a namedtuple with source code as a field name.",
        '[nonce, "ok", {"N": ["T", ["x=__import__(\'os\')"], [1], 0, None]}, None]',
    ),
    forged(
        "namedtuple_special_fields",
        "Return a namedtuple with special method names as field names.",
        '[nonce, "ok", {"N": ["T", ["__eq__", "_fields"], [1, 2], 0, None]}, None]',
    ),
    forged(
        "subclass_of_bool",
        "Return an instance of a subclass of bool, which cannot exist.",
        '[nonce, "ok", {"S": ["T", True, 0, None]}, None]',
    ),
    forged(
        "subclass_unknown_overrides",
        "Return a subclass with undefined override bits.",
        '[nonce, "ok", {"S": ["T", "x", -1, None]}, None]',
    ),
    forged(
        "subclass_without_origin",
        "Return a subclass whose overridden methods have no object to be forwarded to.",
        '[nonce, "ok", {"S": ["T", "x", 65535, None]}, None]',
        tests=("assert f(1) + 'x' == '@WANTED@'", "assert str(f(1)) == '@WANTED@'"),
    ),
    forged(
        "exception_details_malformed",
        "Raise an exception with details of the wrong types.",
        '[nonce, "raise", "E", "x", 1, ["ValueError"], [True, 5, 6, None], None]',
        tests=SWALLOWED[:2],
    ),
    forged(
        "exception_many_causes",
        "Raise an exception with a chain of 300 causes.",
        '[nonce, "raise", "E", "x", 1, [], (lambda f: f(f, 300))(lambda f, n: [False, {"t": []}, {"d": []}, ["E", "x", 1, [], f(f, n - 1) if n else None]]), None]',
        tests=SWALLOWED[:2],
    ),
    forged(
        "exception_sets_attributes",
        "Raise an exception that sets attributes on which the judge relies.",
        '[nonce, "raise", "AssertionError", "x", 1, ["AssertionError"], [True, {"t": []}, {"d": [["remote", None], ["__class__", 1], ["args", 2], ["__traceback__", 3]]}, None], None]',
        tests=SWALLOWED[:2],
    ),
    forged(
        "stop_iteration_as_builtin",
        "Raise StopIteration marked as the exact builtin class.",
        '[nonce, "raise", "StopIteration", "", 1, ["StopIteration"], [True, {"t": []}, {"d": []}, None], None]',
        tests=(
            "assert all(map(f, [1, 2])) and f(1) == '@WANTED@'",
            "assert [f(x) for x in [1]] == ['@WANTED@']",
            "assert list(map(f, [1])) == []",
        ),
    ),
    forged(
        "decoder_raises_stop_iteration",
        "Return a value on which the decoder might raise StopIteration.",
        '[nonce, "ok", {"S": ["T", {}, 0, None]}, None]',
        tests=("assert all(map(f, [1, 2])) and [f(x) for x in [1]] == []", "assert list(map(f, [1])) == []"),
    ),
    forged(
        "system_exit_as_builtin",
        "Raise SystemExit marked as the exact builtin class.",
        '[nonce, "raise", "SystemExit", "", 1, ["SystemExit"], [True, {"t": [0]}, {"d": []}, None], None]',
        tests=SWALLOWED[:2],
    ),
    forged(
        "exception_named_like_refusal",
        "Raise an exception named like the judge's own refusal.",
        '[nonce, "raise", "Refused", "x", 1, ["TypeError"], [False, {"t": []}, {"d": []}, None], None]',
        tests=SWALLOWED[:2],
    ),
    Attack(
        "object_answers_change",
        "Return an object that answers the same question differently each time.",
        "class T:\n    n = 0\n    def __float__(self):\n        T.n += 1\n        return float(T.n)\n    def __len__(self):\n        T.n += 1\n        return T.n\n"
        "    def __bool__(self):\n        T.n += 1\n        return T.n % 2 == 0\n    def __str__(self):\n        T.n += 1\n        return str(T.n)\ndef f(x): return T()\n",
        tests=(
            "x = f(1)\nassert (float(x) > 1.5) != (float(x) > 1.5) or float(x) == '@WANTED@'",
            "x = f(1)\nassert len(x) != len(x) or bool(x) != bool(x) or str(x) != str(x)",
        ),
    ),
    Attack(
        "objects_of_dead_guest",
        "Use objects of a dead guest in later tests.",
        "import os\nclass T:\n    def __len__(self): return 1\n    def get(self): return 1\nimport time\n"
        "def f(x):\n    if x == 'die': os._exit(0)\n    return T()\n",
        tests=(
            "t = f(1)\nassert t.get() == '@WANTED@'",
            "f('die')\nassert t.get() == 1",
            "assert t.get() == 1 and len(t) == 1",
            "try:\n    assert t.get() == 2\nexcept:\n    pass",
        ),
        limits={"max_crashes": 3},
        statuses=("fail", "crash", "error"),
    ),
    Attack(
        "tests_moved_into_guest",
        "Return values that cannot be passed back, so that tests might be moved into the guest.",
        "import sys\ndef f(x):\n    frame = sys._getframe(1)\n    while frame is not None:\n        frame.f_globals['exec'] = lambda *a: None\n        frame = frame.f_back\n"
        "    return lambda: 0\n",
        tests=("assert f(f(1)) == '@WANTED@'", "x = [f(1)]\nassert f(x) == '@WANTED@'", "assert f(2) == '@WANTED@'"),
    ),
    Attack(
        "comparison_with_plain_data",
        "Return objects that equal everything where the test compares with plain data.",
        "class T:\n    def __eq__(self, other): return True\n    __hash__ = lambda self: 0\n    __sub__ = __rsub__ = __add__ = __radd__ = __abs__ = lambda self, *a: self\n"
        "    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__\ndef f(x):\n    if isinstance(x, list): x[:] = [T()]\n    return T()\n",
        tests=(
            "assert abs(f(1) - 0.5) < 1e-9 and f(1) == '@WANTED@'",
            "a = [1]\nf(a)\nassert a == ['@WANTED@']",
            "assert ['@WANTED@'] == [f(1)]",
            "assert {'@WANTED@': 1} == {f(1): 1}",
            "assert '@WANTED@' in [f(1)] or '@WANTED@' in f(1)",
            "assert sorted([f(1), f(2)]) == ['@WANTED@', '@WANTED@']",
        ),
    ),
)
