"""Functions that return functions, take functions or keep state; coroutines."""

from tests.sandbox.honest.program_set import ProgramSet

FUNCTIONS = ProgramSet("functions")
ASYNC = ProgramSet("async")

FUNCTIONS.asserts(
    "closure",
    "def f(n):\n    def add(x):\n        return x + n\n    return add\n",
    "assert f(2)(3) == 5",
    "add = f(10)\nassert [add(1), add(2)] == [11, 12]",
    "assert f(1) is not f(1)",
)
FUNCTIONS.asserts(
    "counter_closure",
    "def f():\n    n = 0\n    def step():\n        nonlocal n\n        n += 1\n        return n\n    return step\n",
    "s = f()\ns()\nassert s() == 2",
    "a, b = f(), f()\na()\nassert b() == 1",
)
FUNCTIONS.asserts(
    "takes_a_function",
    "def f(g, xs):\n    return [g(x) for x in xs]\n",
    "assert f(lambda x: x * 2, [1, 2]) == [2, 4]",
    "assert f(str, [1]) == ['1']",
    "assert f(len, ['abc']) == [3]",
    "def double(x):\n    return 2 * x\nassert f(double, [4]) == [8]",
)
FUNCTIONS.asserts(
    "compose",
    "def f(*gs):\n    def run(x):\n        for g in gs:\n            x = g(x)\n        return x\n    return run\n",
    "assert f(abs, str)(-3) == '3'",
    "assert f()(7) == 7",
    "assert f(lambda x: x + 1, lambda x: x * 2)(3) == 8",
)
FUNCTIONS.asserts(
    "sort_by_key",
    "def f(xs, key=None):\n    return sorted(xs, key=key)\n",
    "assert f(['bb', 'a'], key=len) == ['a', 'bb']",
    "assert f([3, 1]) == [1, 3]",
    "assert f([1, -2, 3], key=lambda x: -x) == [3, 1, -2]",
)
FUNCTIONS.asserts(
    "caches",
    "import functools\ncalls = 0\n@functools.lru_cache(maxsize=None)\ndef f(n):\n    global calls\n    calls += 1\n"
    "    return n if n < 2 else f(n - 1) + f(n - 2)\ndef count():\n    return calls\n",
    "assert f(80) == 23416728348467685",
    "before = count()\nf(80)\nassert count() == before",
    "assert f.cache_info().currsize == 81",
    "f.cache_clear()\nassert f.cache_info().hits == 0",
)
FUNCTIONS.asserts(
    "decorator",
    """
    import functools
    def twice(g):
        @functools.wraps(g)
        def run(*a):
            return g(g(*a))
        return run
    @twice
    def f(x):
        "adds three"
        return x + 3
    """,
    "assert f(1) == 7",
    "assert f.__name__ == 'f' and f.__doc__ == 'adds three'",
    "assert twice(lambda x: x * x)(3) == 81",
)
FUNCTIONS.asserts(
    "partial_and_reduce",
    "import functools\ndef f(base):\n    return functools.partial(int, base=base)\n"
    "def g(xs):\n    return functools.reduce(lambda a, b: a * b, xs, 1)\n",
    "assert f(2)('101') == 5",
    "assert g([2, 3, 4]) == 24",
    "assert f(16).keywords == {'base': 16}",
)
FUNCTIONS.asserts(
    "signatures",
    "def f(a, /, b, *args, c=3, **rest):\n    return [a, b, args, c, rest]\n",
    "assert f(1, 2) == [1, 2, (), 3, {}]",
    "assert f(1, 2, 5, 6, c=4, d=7) == [1, 2, (5, 6), 4, {'d': 7}]",
    "assert f(*[1], **{'b': 2}) == [1, 2, (), 3, {}]",
    "try:\n    f(1)\n    ok = False\nexcept TypeError:\n    ok = True\nassert ok",
    "import inspect\nassert list(inspect.signature(f).parameters) == ['a', 'b', 'args', 'c', 'rest']",
)
FUNCTIONS.asserts(
    "annotations_and_docs",
    "def f(x: int) -> str:\n    '''Text of x.'''\n    return str(x)\n",
    "assert f.__doc__ == 'Text of x.'",
    "assert f.__annotations__ == {'x': int, 'return': str}",
    "assert callable(f) and f.__name__ == 'f'",
)
FUNCTIONS.asserts(
    "dispatch",
    "import functools\n@functools.singledispatch\ndef f(x):\n    return 'other'\n@f.register\ndef _(x: int):\n"
    "    return 'int'\n@f.register(list)\ndef _(x):\n    return 'list'\n",
    "assert [f(1), f([]), f('a')] == ['int', 'list', 'other']",
    "assert f(True) == 'int'",
)
FUNCTIONS.asserts(
    "dict_of_functions",
    "def f():\n    return {'add': lambda a, b: a + b, 'neg': lambda a: -a}\n",
    "assert f()['add'](1, 2) == 3",
    "ops = f()\nassert sorted(ops) == ['add', 'neg'] and ops['neg'](2) == -2",
)
FUNCTIONS.asserts(
    "late_binding",
    "def f(n):\n    return [lambda: i for i in range(n)]\n",
    "assert [g() for g in f(3)] == [2, 2, 2]",
)
FUNCTIONS.asserts(
    "pattern_matching",
    "def f(x):\n    match x:\n        case {'op': 'add', 'args': [a, b]}:\n            return a + b\n"
    "        case [first, *rest]:\n            return first\n        case str() as s if s:\n"
    "            return s.upper()\n"
    "        case _:\n            return None\n",
    "assert f({'op': 'add', 'args': [1, 2]}) == 3",
    "assert [f([7, 8]), f('ab'), f('')] == [7, 'AB', None]",
)

ASYNC.asserts(
    "run_inside",
    "import asyncio\nasync def work(x):\n    await asyncio.sleep(0)\n    return x * 2\ndef f(xs):\n"
    "    async def main():\n        return await asyncio.gather(*map(work, xs))\n    return asyncio.run(main())\n",
    "assert f([1, 2, 3]) == [2, 4, 6]",
    "assert f([]) == []",
)
ASYNC.asserts(
    "run_by_the_test",
    "import asyncio\nasync def f(x):\n    await asyncio.sleep(0.001)\n    return x + 1\n",
    "import asyncio\nassert asyncio.run(f(1)) == 2",
    "import asyncio\nassert asyncio.iscoroutinefunction(f)",
)
ASYNC.asserts(
    "queue",
    """
    import asyncio
    async def producer(q, n):
        for i in range(n):
            await q.put(i)
        await q.put(None)
    async def consumer(q):
        total = 0
        while (x := await q.get()) is not None:
            total += x
        return total
    async def main(n):
        q = asyncio.Queue(2)
        _, total = await asyncio.gather(producer(q, n), consumer(q))
        return total
    def f(n):
        return asyncio.run(main(n))
    """,
    "assert f(5) == 10",
)
ASYNC.asserts(
    "timeout",
    "import asyncio\nasync def slow():\n    await asyncio.sleep(5)\ndef f():\n    async def main():\n        try:\n"
    "            await asyncio.wait_for(slow(), 0.01)\n        except asyncio.TimeoutError:\n"
    "            return 'late'\n"
    "    return asyncio.run(main())\n",
    "assert f() == 'late'",
)
ASYNC.asserts(
    "generator",
    "import asyncio\nasync def gen(n):\n    for i in range(n):\n        yield i\ndef f(n):\n    async def main():\n"
    "        return [x async for x in gen(n)]\n    return asyncio.run(main())\n",
    "assert f(3) == [0, 1, 2]",
    "import asyncio\nasync def collect():\n    return [x async for x in gen(2)]\n"
    "assert asyncio.run(collect()) == [0, 1]",
)
ASYNC.stdio(
    "script",
    "import asyncio\nasync def main():\n    n = int(input())\n    async with asyncio.timeout(5):\n"
    "        await asyncio.sleep(0)\n    print(n + 1)\nasyncio.run(main())\n",
    ("4\n", "5\n"),
)
ASYNC.asserts(
    "to_thread",
    "import asyncio, time\ndef slow(x):\n    time.sleep(0.001)\n    return x\ndef f():\n    async def main():\n"
    "        return await asyncio.gather(*(asyncio.to_thread(slow, i) for i in range(5)))\n"
    "    return asyncio.run(main())\n",
    "assert f() == [0, 1, 2, 3, 4]",
)
