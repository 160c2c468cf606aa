"""Programs that abuse what judge and guest share: numbered objects, stand-ins, exceptions, types that cross by name."""

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
        "share_numbers", "objects that the judge never gave", '[nonce, "ok", [{"@": n} for n in range(-2, 50)], None]'
    ),
    forged("share_number_types", "numbers that are none", '[nonce, "ok", [{"@": True}, {"@": 10**30}], None]'),
    forged(
        "share_changes",
        "changes of objects that were not given",
        '[nonce, "ok", 0, [[n, ["x"]] for n in range(1, 50)]]',
        tests=ARGUMENT,
    ),
    forged(
        "share_change_types",
        "changes into content of another kind",
        '[nonce, "ok", 0, [[0, {"d": []}]]]',
        tests=ARGUMENT,
    ),
    forged("share_change_shape", "changes in the wrong shape", '[nonce, "ok", 0, {"0": ["x"]}]', tests=ARGUMENT),
    forged(
        "share_change_unhashable",
        "keys that cannot be keys",
        '[nonce, "ok", 0, [[0, [[[], 1]]]]]',
        tests=("a = {}\nf(a)\nassert a == {1: '@WANTED@'}",),
    ),
    forged(
        "share_change_floods",
        "an argument that grows to the largest answer",
        '[nonce, "ok", 0, [[0, ["x"] * 100000]]]',
        tests=ARGUMENT,
    ),
    forged(
        "share_change_twice",
        "one object changed a thousand times in one answer",
        '[nonce, "ok", {"@": 0}, [[0, [n]] for n in range(1000)]]',
        tests=ARGUMENT,
    ),
    forged(
        "share_itself",
        "an argument that contains itself, and is the answer",
        '[nonce, "ok", {"@": 0}, [[0, [{"@": 0}] * 9]]]',
        tests=ARGUMENT,
    ),
    Attack(
        "share_laughs",
        "an argument of lists of the same lists, endless to compare",
        "def f(x):\n    y = x\n    for _ in range(30):\n        y = [y] * 10\n    return y\n",
        tests=(
            "assert f([1]) == f([1])",
            "a = [1]\nassert f(a) == [f(a)] * 10",
            "x = f([1])\nassert str(x) == '@WANTED@'",
        ),
        statuses=("error", "fail", "crash", "skipped", "timeout"),
    ),
    Attack(
        "share_laughs_by_changes",
        "the same by changes of the arguments, a little each time",
        "last = None\ndef f(x):\n    global last\n    x[:] = [last] * 10\n    last = x\n    return x\n",
        tests=(
            "xs = [[] for _ in range(40)]\nfor x in xs:\n    f(x)\nassert xs[-1] == [xs[-2]] * 10 and xs[-1] == '@WANTED@'",
        ),
    ),
    forged(
        "handle_mask", "abilities that do not exist", f'[nonce, "ok", {{"h": [0, "T", {ALL_METHODS + 1}, None]}}, None]'
    ),
    forged(
        "handle_all",
        "an object with all abilities",
        f'[nonce, "ok", {{"h": [0, "T", {ALL_METHODS}, 5]}}, None]',
        tests=SWALLOWED,
    ),
    forged(
        "handle_types",
        "a hundred thousand types",
        '[nonce, "ok", [{"h": [n, str(n), 0, None]} for n in range(20000)], None]',
    ),
    forged(
        "handle_collisions",
        "a set of objects that all have the same hash",
        f'[nonce, "ok", {{"s": [{{"h": [n, "T", {HASHED}, 1]}} for n in range(N)]}}, None]',
    ),
    forged(
        "handle_hash", "a hash that is none", f'[nonce, "ok", {{"s": [{{"h": [1, "T", {HASHED}, {1 << 70}]}}]}}, None]'
    ),
    forged(
        "handle_endless",
        "an iterator that always has more, in answers of the right shape",
        f'[nonce, "ok", {{"h": [0, "T", {ITERATOR}, None]}}, None] if not answered.append(1) and len(answered) == 1'
        ' else [nonce, "ok", {"t": [{"t": [1]}, False, None]}, None]',
        tests=("assert [y for y in f(1)] == ['@WANTED@']", "assert all(y == '@WANTED@' for y in f(1))"),
    ),
    forged(
        "handle_ends_early",
        "an iterator that has nothing to be compared",
        f'[nonce, "ok", {{"h": [0, "T", {ITERATOR}, None]}}, None] if not answered.append(1) and len(answered) == 1'
        ' else [nonce, "ok", {"t": [{"t": [1, 2]}, True, None]}, None]',
        tests=("assert [y for y in f(1)] == ['@WANTED@']",),
    ),
    forged(
        "names_modules",
        "functions of the judge's own modules",
        '[nonce, "ok", {"n": "os:system"}, None]',
        tests=("assert f(1)('true') == '@WANTED@'",),
    ),
    forged(
        "names_builtins",
        "builtins that do something",
        '[nonce, "ok", {"n": "builtins:eval"}, None]',
        tests=("assert f(1)('1') == '@WANTED@'",),
    ),
    forged(
        "names_towards_the_guest", "an exception object by value", '[nonce, "ok", {"e": ["SystemExit", [0]]}, None]'
    ),
    forged(
        "tuple_fields",
        "a namedtuple whose fields are source",
        '[nonce, "ok", {"N": ["T", ["x=__import__(\'os\')"], [1], 0, None]}, None]',
    ),
    forged(
        "tuple_specials",
        "a namedtuple that defines equality",
        '[nonce, "ok", {"N": ["T", ["__eq__", "_fields"], [1, 2], 0, None]}, None]',
    ),
    forged("subclass_of_bool", "a subclass of what has none", '[nonce, "ok", {"S": ["T", True, 0, None]}, None]'),
    forged(
        "subclass_mask",
        "a subclass that overrides what does not exist",
        '[nonce, "ok", {"S": ["T", "x", -1, None]}, None]',
    ),
    forged(
        "subclass_homeless",
        "a subclass whose methods are nowhere",
        '[nonce, "ok", {"S": ["T", "x", 65535, None]}, None]',
        tests=("assert f(1) + 'x' == '@WANTED@'", "assert str(f(1)) == '@WANTED@'"),
    ),
    forged(
        "raise_details",
        "an exception with arguments of the wrong kind",
        '[nonce, "raise", "E", "x", 1, ["ValueError"], [True, 5, 6, None], None]',
        tests=SWALLOWED[:2],
    ),
    forged(
        "raise_causes",
        "an exception that is caused by itself, a thousand times",
        '[nonce, "raise", "E", "x", 1, [], (lambda f: f(f, 300))(lambda f, n: [False, {"t": []}, {"d": []}, ["E", "x", 1, [], f(f, n - 1) if n else None]]), None]',
        tests=SWALLOWED[:2],
    ),
    forged(
        "raise_attributes",
        "attributes that the judge goes by",
        '[nonce, "raise", "AssertionError", "x", 1, ["AssertionError"], [True, {"t": []}, {"d": [["remote", None], ["__class__", 1], ["args", 2], ["__traceback__", 3]]}, None], None]',
        tests=SWALLOWED[:2],
    ),
    forged(
        "raise_stop",
        "the end of an iteration, as builtin itself",
        '[nonce, "raise", "StopIteration", "", 1, ["StopIteration"], [True, {"t": []}, {"d": []}, None], None]',
        tests=(
            "assert all(map(f, [1, 2])) and f(1) == '@WANTED@'",
            "assert [f(x) for x in [1]] == ['@WANTED@']",
            "assert list(map(f, [1])) == []",
        ),
    ),
    forged(
        "decoder_stops",
        "a value on which the judge's decoder might run into the end of an iteration",
        '[nonce, "ok", {"S": ["T", {}, 0, None]}, None]',
        tests=("assert all(map(f, [1, 2])) and [f(x) for x in [1]] == []", "assert list(map(f, [1])) == []"),
    ),
    forged(
        "raise_exit",
        "the end of the judge, as builtin itself",
        '[nonce, "raise", "SystemExit", "", 1, ["SystemExit"], [True, {"t": [0]}, {"d": []}, None], None]',
        tests=SWALLOWED[:2],
    ),
    forged(
        "raise_refused",
        "the judge's own kinds of exceptions",
        '[nonce, "raise", "Refused", "x", 1, ["TypeError"], [False, {"t": []}, {"d": []}, None], None]',
        tests=SWALLOWED[:2],
    ),
    Attack(
        "answers_change",
        "an object that gives another answer to each question",
        "class T:\n    n = 0\n    def __float__(self):\n        T.n += 1\n        return float(T.n)\n    def __len__(self):\n        T.n += 1\n        return T.n\n"
        "    def __bool__(self):\n        T.n += 1\n        return T.n % 2 == 0\n    def __str__(self):\n        T.n += 1\n        return str(T.n)\ndef f(x): return T()\n",
        tests=(
            "x = f(1)\nassert (float(x) > 1.5) != (float(x) > 1.5) or float(x) == '@WANTED@'",
            "x = f(1)\nassert len(x) != len(x) or bool(x) != bool(x) or str(x) != str(x)",
        ),
    ),
    Attack(
        "objects_outlive",
        "objects of a process that has died, used by later tests",
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
        "moved_into_the_guest",
        "answers that cannot be handed back, so that the tests might run where they can be forged",
        "import sys\ndef f(x):\n    frame = sys._getframe(1)\n    while frame is not None:\n        frame.f_globals['exec'] = lambda *a: None\n        frame = frame.f_back\n"
        "    return lambda: 0\n",
        tests=("assert f(f(1)) == '@WANTED@'", "x = [f(1)]\nassert f(x) == '@WANTED@'", "assert f(2) == '@WANTED@'"),
    ),
    Attack(
        "comparisons_borrowed",
        "objects that are equal to everything, where a test compares values of the program with data",
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
