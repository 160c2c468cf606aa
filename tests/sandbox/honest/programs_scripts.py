"""Programs that read standard input and print."""

from tests.sandbox.honest.program_set import ProgramSet

SCRIPTS = ProgramSet("scripts")
ENDINGS = ProgramSet("endings")

SCRIPTS.stdio("sum", "print(sum(map(int, input().split())))", ("1 2 3\n", "6\n"), ("4\n", "4"), ("1 1\n", "3\n"))
SCRIPTS.stdio(
    "read_all",
    "import sys\ndata = sys.stdin.read().split()\nprint(len(data))\nprint(*sorted(data))\n",
    ("b a\nc\n", "3\na b c\n"),
    ("", "0\n\n"),
)
SCRIPTS.stdio(
    "stderr_is_apart",
    "import sys\nprint('debug', file=sys.stderr)\nprint(int(input()) * 2)\nprint('done', file=sys.stderr)\n",
    ("4\n", "8\n"),
    ("5\n", "10\n"),
)
SCRIPTS.stdio(
    "logging_and_warnings",
    "import logging, warnings\nlogging.warning('careful')\nwarnings.warn('old')\nprint('ok')\n",
    ("", "ok\n"),
)
SCRIPTS.stdio("argv", "import sys\nprint(len(sys.argv), sys.argv[1:])\n", ("", "1 []\n"))
SCRIPTS.stdio(
    "argparse_without_arguments",
    "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n', type=int, default=3)\n"
    "print(p.parse_args().n)\n",
    ("", "3\n"),
)
SCRIPTS.stdio(
    "main_guard",
    "def main():\n    n = int(input())\n    print(n + 1)\n\nif __name__ == '__main__':\n    main()\n",
    ("1\n", "2\n"),
    ("x\n", "2\n"),
)
SCRIPTS.stdio(
    "until_end_of_file",
    "total = 0\nwhile True:\n    try:\n        total += int(input())\n    except EOFError:\n        break\n"
    "print(total)\n",
    ("1\n2\n3\n", "6\n"),
    ("", "0\n"),
    ("5", "5\n"),
)
SCRIPTS.stdio(
    "stdin_as_lines",
    "import sys\nfor number, line in enumerate(sys.stdin, 1):\n    print(number, line.rstrip('\\n'))\n",
    ("a\nb\n", "1 a\n2 b\n"),
)
SCRIPTS.stdio(
    "open_descriptor_zero",
    "data = open(0).read()\nprint(data.upper(), end='')\n",
    ("abc\nd\n", "ABC\nD\n"),
)
SCRIPTS.stdio(
    "buffers",
    "import sys\nread = sys.stdin.buffer.readline\nn = int(read())\nsys.stdout.buffer.write(b'%d\\n' % (n * n))\n",
    ("12\n", "144\n"),
)
SCRIPTS.stdio("os_read_write", "import os\nos.write(1, os.read(0, 100)[::-1])\n", ("abc", "cba"))
SCRIPTS.stdio("fileinput", "import fileinput\nprint(sum(int(x) for x in fileinput.input()))\n", ("1\n2\n", "3\n"))
SCRIPTS.stdio(
    "prompt_goes_to_stdout",
    "name = input('Name? ')\nprint('Hi', name)\n",
    ("Bo\n", "Name? Hi Bo\n"),
)
SCRIPTS.stdio("unicode", "print(input()[::-1], 'ä€𝄞')\n", ("čaj\n", "jač ä€𝄞\n"))
SCRIPTS.stdio(
    "many_lines",
    "n = int(input())\nfor i in range(n):\n    print(i)\n",
    ("20000\n", "".join(f"{i}\n" for i in range(20000))),
)
SCRIPTS.stdio("wrong_answer", "print(int(input()) + 2)\n", ("1\n", "2\n"), ("0\n", "2\n"))
SCRIPTS.stdio("raises", "print(10 // int(input()))\n", ("5\n", "2\n"), ("0\n", "2\n"), ("x\n", "2\n"))
SCRIPTS.stdio("carriage_returns", "print(repr(input()))\nprint(repr(input()))\n", ("a\r\nb\r\n", "'a'\n'b'\n"))
SCRIPTS.stdio(
    "class_and_recursion",
    "import sys\nsys.setrecursionlimit(10000)\ndef depth(n):\n    return 0 if n == 0 else 1 + depth(n - 1)\n"
    "print(depth(int(input())))\n",
    ("5000\n", "5000\n"),
)
SCRIPTS.stdio(
    "stdout_is_replaced",
    "import io, sys\nout = io.StringIO()\nold, sys.stdout = sys.stdout, out\nprint('inside')\nsys.stdout = old\n"
    "print(out.getvalue().strip(), 'was caught')\n",
    ("", "inside was caught\n"),
)
SCRIPTS.stdio(
    "own_text_stream",
    "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8', line_buffering=True)\n"
    "print('é', input())\n",
    ("x\n", "é x\n"),
)
SCRIPTS.stdio("own_file", "print(__file__.endswith('.py'), __name__)\n", ("", "True __main__\n"))
SCRIPTS.stdio(
    "pickles_its_own_class",
    "import pickle\nclass A:\n    def __init__(self, x):\n        self.x = x\n"
    "print(pickle.loads(pickle.dumps(A(int(input())))).x)\n",
    ("7\n", "7\n"),
)

ENDINGS.stdio("exit_zero", "import sys\nprint(input())\nsys.exit(0)\n", ("a\n", "a\n"))
ENDINGS.stdio("exit_without_status", "print(input())\nexit()\n", ("a\n", "a\n"))
ENDINGS.stdio("exit_one", "import sys\nprint(input())\nsys.exit(1)\n", ("a\n", "a\n"))
ENDINGS.stdio("exit_with_words", "import sys\nprint(input())\nsys.exit('bad')\n", ("a\n", "a\n"))
ENDINGS.stdio("exit_false", "import sys\nprint(input())\nsys.exit(False)\n", ("a\n", "a\n"))
ENDINGS.stdio("raise_system_exit", "print(input())\nraise SystemExit\n", ("a\n", "a\n"))
ENDINGS.stdio(
    "exit_at_once", "import os, sys\nprint(input())\nsys.stdout.flush()\nos._exit(0)\n", ("a\n", "a\n"), ("b\n", "c\n")
)
ENDINGS.stdio("exit_at_once_unflushed", "import os\nprint(input())\nos._exit(0)\n", ("a\n", "a\n"))
ENDINGS.stdio("exit_at_once_with_status", "import os\nprint(input(), flush=True)\nos._exit(3)\n", ("a\n", "a\n"))
ENDINGS.stdio(
    "thread_not_joined",
    "import threading, time\ndef work():\n    time.sleep(0.05)\n    print('thread', flush=True)\n"
    "threading.Thread(target=work).start()\nprint('main', flush=True)\n",
    ("", "main\nthread\n"),
)
ENDINGS.stdio(
    "daemon_thread_is_left",
    "import threading, time\ndef work():\n    time.sleep(30)\n    print('never')\n"
    "threading.Thread(target=work, daemon=True).start()\nprint('main')\n",
    ("", "main\n"),
)
ENDINGS.stdio(
    "atexit",
    "import atexit\natexit.register(print, 'first registered')\natexit.register(print, 'bye')\nprint(input())\n",
    ("a\n", "a\nbye\nfirst registered\n"),
)
ENDINGS.stdio(
    "file_not_flushed",
    "out = open(1, 'w', closefd=False)\nout.write('kept in a buffer\\n')\n",
    ("", "kept in a buffer\n"),
)
ENDINGS.stdio(
    "descriptor_not_flushed",
    "import os\nout = os.fdopen(os.dup(1), 'w')\nfor i in range(3):\n    out.write(f'{i}\\n')\n",
    ("", "0\n1\n2\n"),
)
ENDINGS.stdio(
    "deleted_at_the_end",
    "class A:\n    def __del__(self):\n        print('deleted')\na = A()\nprint('end')\n",
    ("", "end\ndeleted\n"),
)
ENDINGS.stdio(
    "stdout_closed_by_the_program",
    "import sys\nprint('last words')\nsys.stdout.close()\n",
    ("", "last words\n"),
)
ENDINGS.stdio("raises_after_output", "print(input())\nraise ValueError('after')\n", ("a\n", "a\n"))
ENDINGS.stdio(
    "pool_of_threads",
    "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(3)\n"
    "results = pool.map(lambda x: x * x, range(4))\nprint(*results)\n",
    ("", "0 1 4 9\n"),
)
ENDINGS.stdio(
    "thread_fails",
    "import threading\ndef work():\n    raise ValueError('in a thread')\n"
    "t = threading.Thread(target=work)\nt.start()\nt.join()\nprint('main goes on')\n",
    ("", "main goes on\n"),
)
ENDINGS.stdio(
    "excepthook",
    "import sys\ndef hook(kind, error, trace):\n    print('hooked', kind.__name__)\n"
    "    sys.__excepthook__(kind, error, trace)\n"
    "sys.excepthook = hook\n1 / 0\n",
    ("", "hooked ZeroDivisionError\n"),
)
ENDINGS.stdio("keyboard_interrupt", "print('a')\nraise KeyboardInterrupt\n", ("", "a\n"))
