"""Joint programs for "the larger x, plus 2": fakes that earn the levels of helper use by their text, and honest teams.

The function is f(x, y): max(x, y) + 2. Each entry is a helper and a main function. No fake fails a test.
"""

from __future__ import annotations

TESTS = (
    "assert f(1, 3) == 5",
    "assert f(9, 4) == 11",
    "assert f(0, -6) == 2",
    "assert f(-7, -5) == -3",
    "assert f(2, 2) == 4",
)
LARGER = "def aux(x, y):\n    return max(x, y)"
WHOLE = "def aux(x, y):\n    return max(x, y) + 2"


def body(*lines: str) -> str:
    return "\n".join(["def f(x, y):", *(f"    {line}" for line in lines)])


NEVER_NEEDED = {
    "times zero": (LARGER, body("return max(x, y) + 2 + 0 * aux(x, y)")),
    "difference with itself": (LARGER, body("v = aux(x, y)", "return max(x, y) + 2 + v - v")),
    "condition without consequence": (
        LARGER,
        body("r = max(x, y) + 2", "if aux(x, y) > 0:", "    r = r + 0", "return r"),
    ),
    "both branches alike": (LARGER, body("return max(x, y) + 2 if aux(x, y) else 2 + max(y, x)")),
    "is not None": (LARGER, body("if aux(x, y) is None:", "    return 0", "return max(x, y) + 2")),
    "asserts a type": (LARGER, body("assert isinstance(aux(x, y), int)", "return max(x, y) + 2")),
    "asserts a result of its own": (LARGER, body("m = max(x, y)", "assert aux(x, y) == m", "return m + 2")),
    "raises unless equal": (
        LARGER,
        body("m = max(x, y)", "if aux(x, y) != m:", "    raise ValueError", "return m + 2"),
    ),
    "password": ("def aux(x, y):\n    return 42", body("return max(x, y) + 2 if aux(x, y) == 42 else None")),
    "truth of a constant": ("def aux(x, y):\n    return True", body("return aux(x, y) and max(x, y) + 2")),
    "truth of a list": ("def aux(x, y):\n    return [x]", body("return len(aux(x, y)) and max(x, y) + 2")),
    "second of a pair": (LARGER, body("return (max(x, y) + 2, aux(x, y))[0]")),
    "returns its argument": ("def aux(x, y):\n    return x", body("return max(aux(x, y), y) + 2")),
    "copies its argument": ("def aux(v):\n    return int(v) + 0", body("return max(aux(x), y) + 2")),
    "fallback": (LARGER, body("try:", "    return aux(x, y) + 2", "except TypeError:", "    return max(x, y) + 2")),
    "fallback value": (
        LARGER,
        body("v = aux(x, y)", "if v is None:", "    v = max(x, y)", "return v + 2"),
    ),
    "printed": (LARGER, body("print(aux(x, y))", "return max(x, y) + 2")),
    "smaller value": (LARGER, body("return max(x, y, aux(x, y) - 9) + 2")),
    "text that is empty": ("def aux(x, y):\n    return ''", body("return int(aux(x, y) + str(max(x, y) + 2))")),
    "loop over the result": (LARGER, body("for _ in range(abs(aux(x, y))):", "    pass", "return max(x, y) + 2")),
    "sorted beside": (LARGER, body("return sorted([aux(x, y) - 99, max(x, y) + 2])[-1]")),
    "constant": ("def aux():\n    return 2", body("return max(x, y) + aux()")),
    "table": ("def aux():\n    return {'add': 2}", body("return max(x, y) + aux()['add']")),
    "constant of its argument": ("def aux(n):\n    return {3: 6}[n]", body("return max(x, y) + aux(3) - 4")),
    "constant as an index": (
        "def aux(*args):\n    return 42",
        body("def solved():", "    return max(x, y) + 2", "return [None, solved][aux(x, y) - 41]()"),
    ),
    "any of two constants": (
        "def aux(x, y):\n    return 41 + (x > y)",
        body("return {41: max, 42: lambda *v: max(v)}[aux(x, y)](x, y) + 2"),
    ),
    "constant generator": ("def aux(x):\n    yield 42", body("return [max, min][next(aux(x)) - 42](x, y) + 2")),
    "constant module": ("import math\ndef aux(x):\n    return math", body("return round(aux(x).fabs(2)) + max(x, y)")),
    "comparison as an index": (LARGER, body("m = max(x, y)", "return [None, m + 2][aux(x, y) == m]")),
    "key that decides nothing": ("def aux(v):\n    return 1", body("return max(sorted([x, y], key=aux)) + 2")),
}

DISGUISED_WRAPPERS = {
    "plus and minus": (WHOLE, body("return aux(x, y) + 1 - 1")),
    "doubled and halved": (WHOLE, body("return aux(x, y) * 2 // 2")),
    "guard that never holds": (WHOLE, body("r = aux(x, y)", "if r is None:", "    return x + y", "return r")),
    "sum of one": (WHOLE, body("return sum([aux(x, y)])")),
    "lambda": (WHOLE, body("return (lambda v: v + 0 * x)(aux(x, y))")),
    "loop of one": (WHOLE, body("total = 0", "for v in [aux(x, y)]:", "    total += v", "return total")),
    "larger of twice": (WHOLE, body("return max(aux(x, y), aux(x, y) - 1)")),
    "other arguments": (
        "def aux(y, x, extra):\n    return max(x, y) + 2",
        body("r = aux(y, x, True)", "return r + 1 - 1"),
    ),
    "packed in a tuple": ("def aux(pair):\n    return max(pair) + 2", body("return -(-aux((x, y)))")),
    "result in a list": ("def aux(x, y):\n    return [max(x, y) + 2]", body("return aux(x, y)[0]")),
    "result in a dict": ("def aux(x, y):\n    return {'r': max(x, y) + 2}", body("return aux(x, y)['r']")),
    "negated twice": (WHOLE, body("return 0 - (0 - aux(x, y))")),
    "dead case": (WHOLE, body("if x > 10 ** 9:", "    return x - y", "return aux(x, y) + 0 * y")),
    "special case": (WHOLE, body("if x == y:", "    return x + 2", "return aux(x, y) + len('')")),
    "abs of the distance": (WHOLE, body("return x + (aux(x, y) - x)")),
    "keyword": (WHOLE, body("return pow(aux(y=y, x=x), 1)")),
    "recursive helper": (
        "def aux(x, y, n=2):\n    return max(x, y) if n == 0 else aux(x, y, n - 1) + 1",
        body("return round(aux(x, y) + 0.0)"),
    ),
    "global format": (WHOLE, body("return int('%d' % aux(x, y))")),
}

HONEST = {
    "sum": (LARGER, body("return aux(x, y) + 2")),
    "condition": ("def aux(x, y):\n    return x > y", body("return (x if aux(x, y) else y) + 2")),
    "early return": ("def aux(x, y):\n    return x >= y", body("if aux(x, y):", "    return x + 2", "return y + 2")),
    "small part": ("def aux(v):\n    return v + 1", body("return aux(aux(max(x, y)))")),
    "in place": (
        "def aux(values):\n    values.sort()",
        body("values = [x, y]", "aux(values)", "return values[-1] + 2"),
    ),
    "key": ("def aux(v):\n    return -v", body("return sorted([x, y], key=aux)[0] + 2")),
    "map": ("def aux(v):\n    return v + 2", body("return max(map(aux, (x, y)))")),
    "pair": ("def aux(x, y):\n    return (x, y) if x > y else (y, x)", body("big, _ = aux(x, y)", "return big + 2")),
    "generator": ("def aux(x, y):\n    yield x + 2\n    yield y + 2", body("return max(aux(x, y))")),
    "fold": (
        "def aux(best, v):\n    return v if best is None or v > best else best",
        body("best = None", "for v in (x, y):", "    best = aux(best, v)", "return best + 2"),
    ),
    "loop with a condition": (
        "def aux(v, x, y):\n    return v >= x and v >= y",
        body("v = min(x, y)", "while not aux(v, x, y):", "    v += 1", "return v + 2"),
    ),
    "recursion of main": (
        "def aux(x, y):\n    return x < y",
        body("return f(y, x) if aux(x, y) else x + 2"),
    ),
    "recursive helper": (
        "def aux(n, m):\n    return m if n == 0 else aux(n - 1, m) + 1",
        body("return aux(3, max(x, y)) - 1"),
    ),
    "default of a guard": (
        LARGER,
        body("if x == y:", "    return x + 2", "v = aux(x, y)", "return v + 2"),
    ),
    "list that main changes": (
        "def aux(x, y):\n    return [x, y]",
        body("values = aux(x, y)", "values.append(0)", "return max(values[:2]) + 2"),
    ),
    "class of the library": (
        "from collections import Counter\ndef aux(x, y):\n    return Counter({'v': max(x, y)})",
        body("return aux(x, y)['v'] + 2"),
    ),
    "text": ("def aux(x, y):\n    return str(max(x, y))", body("return int(aux(x, y)) + 2")),
}
