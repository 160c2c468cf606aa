"""Programs that know this sandbox: they answer with the right nonce and hostile contents, from inside the guest.

They find the guest's own framing module through the frames that called them, and put their own body in place
of the one that is being sent.
"""

from __future__ import annotations

# ruff: noqa: E501 (lines of the hostile programs)
from tests.sandbox.attacks.attack import Attack

ANSWER = r'''
import json, struct, sys

def answer(make):
    """Makes every later answer of this guest `make(nonce)`: JSON text or a value, framed as an honest one."""
    frame = sys._getframe(1)
    while frame is not None:
        for module in list(frame.f_globals.values()):
            if callable(getattr(module, "pack", None)) and hasattr(module, "HEADER"):
                def pack(message, dumps=json.dumps, module=module):
                    body = make(message[0])
                    body = (body if isinstance(body, str) else dumps(body)).encode("utf-8", "surrogatepass")
                    return module.HEADER.pack(len(body)) + body
                module.pack = pack
                return
        frame = frame.f_back
    raise RuntimeError("the framing module was not found: this attack has to be adapted to the guest")
'''


def forged(name: str, purpose: str, body: str, **options: object) -> Attack:
    """An attack whose answers are all `body`, an expression over `nonce`, `N`, and the list `answered`."""
    source = f"{ANSWER}\nN = 30000\nanswered = []\ndef f(x):\n    answer(lambda nonce: {body})\n    return 0\n"
    options.setdefault("statuses", ("fail", "error", "crash", "timeout", "skipped"))
    return Attack(name, purpose, source, **options)  # type: ignore[arg-type]


ATTACKS = (
    forged("wire_verdicts", "say that the test has passed", '[nonce, "ok", ["pass", None, None]]'),
    forged("wire_kinds", "kinds of answer that do not exist", '[nonce, "pass"]'),
    forged("wire_kind_typed", "a kind that is not a word", '[nonce, {"ok": 1}, [None]]'),
    forged("wire_no_kind", "an answer without a kind", "[nonce]"),
    forged("wire_not_a_list", "an answer that is an object", '{"0": nonce, "1": "ok", "2": True}'),
    forged("wire_scalar", "an answer that is a number", "17"),
    forged("wire_nonce_list", "a nonce that contains the nonce", '[[nonce], "ok", 1, None]'),
    forged("wire_nonce_old", "a nonce of an earlier request", '["0" * len(str(nonce)), "ok", 1, None]'),
    forged("wire_nonce_case", "a nonce that is almost right", '[str(nonce).swapcase() + " ", "ok", 1, None]'),
    forged("wire_too_long", "an answer with more parts than its kind has", '[nonce, "ok"] + [None] * 1000'),
    forged("wire_unknown_tag", "a tag that does not exist", '[nonce, "ok", {"pickle": "gASV"}, None]'),
    forged("wire_two_tags", "an object with two tags", '[nonce, "ok", {"t": [], "s": []}, None]'),
    forged("wire_no_tag", "an object without a tag", '[nonce, "ok", {}, None]'),
    forged(
        "wire_tag_types",
        "tags whose contents have the wrong type",
        '[nonce, "ok", [{"t": 1}, {"d": [[1]]}, {"i": 5}], None]',
    ),
    forged(
        "wire_unhashable",
        "a set of lists and a dict with keys that cannot be keys",
        '[nonce, "ok", {"s": [[1]]}, None]',
    ),
    forged(
        "wire_infinite",
        "numbers that JSON does not have",
        "'[\"' + str(nonce) + '\", \"ok\", [NaN, Infinity, -1e999], null]'",
    ),
    forged(
        "wire_digits",
        "a plain number of a million digits",
        "'[\"' + str(nonce) + '\", \"ok\", ' + '9' * 10**6 + ', null]'",
    ),
    forged(
        "wire_big_int", "a number of a million hexadecimal digits", '[nonce, "ok", {"i": "0x" + "f" * 10**6}, None]'
    ),
    forged("wire_underscores", "numbers in notations that int() takes", '[nonce, "ok", {"i": " -0X_f_f\\n"}, None]'),
    forged(
        "wire_decimal",
        "decimals that are names, huge, or not numbers",
        '[nonce, "ok", [{"D": "sNaN"}, {"D": "1e-999999999"}], None]',
    ),
    forged("wire_decimal_digits", "a decimal of a million digits", '[nonce, "ok", {"D": "9" * 10**6}, None]'),
    forged(
        "wire_fraction",
        "fractions over zero, and with parts that are no numbers",
        '[nonce, "ok", {"F": ["1", "0"]}, None]',
    ),
    forged("wire_range", "a range of more steps than atoms", '[nonce, "ok", {"r": ["0", "f" * 300, "1"]}, None]'),
    forged("wire_range_zero", "a range of step zero", '[nonce, "ok", {"r": ["0", "5", "0"]}, None]'),
    forged(
        "wire_dates", "dates that do not exist", '[nonce, "ok", [{"dt": "9999-99-99"}, {"td": [10**18, 0, 0]}], None]'
    ),
    forged("wire_depth", "tags nested deeper than any honest value", '[nonce, "ok", None, None, None] and "[" * 90000'),
    forged(
        "wire_depth_tags",
        "tuples in tuples, just few enough for the JSON parser",
        "'[\"' + str(nonce) + '\", \"ok\", ' + '{\"t\":[' * 400 + ']}' * 400 + ', null]'",
    ),
    forged(
        "wire_collisions_set",
        "a set of numbers that all have the same hash",
        '[nonce, "ok", {"s": [{"i": hex(n * (2**61 - 1))} for n in range(N)]}, None]',
    ),
    forged(
        "wire_collisions_dict",
        "a dict of numbers that all have the same hash",
        '[nonce, "ok", {"d": [[{"i": hex(n * (2**61 - 1))}, 0] for n in range(N)]}, None]',
    ),
    forged(
        "wire_collisions_keys",
        "a JSON object with the same key many times",
        "'[\"' + str(nonce) + '\", \"ok\", {' + ','.join('\"t\": []' for _ in range(N)) + '}, null]'",
    ),
    forged(
        "wire_reference_type", "references that are not numbers", '[nonce, "ok", {"h": [{"x": 1}, "T", 0, None]}, None]'
    ),
    forged("wire_reference_wrong", "references to nothing", '[nonce, "ok", {"h": [-(10**30), "T", 0, None]}, None]'),
    forged(
        "wire_reference_name",
        "a reference with a type name of a megabyte",
        '[nonce, "ok", {"h": [0, "A\\n" * 10**5, 0, None]}, None]',
    ),
    forged(
        "wire_reference_endless",
        "an iterator that always has more",
        '[nonce, "ok", {"h": [0, "T", 3, None]}, None] if answered.append(1) or len(answered) == 1 else [nonce, "ok", [0] * 4, False]',
        tests=("assert list(f(1)) == ['@WANTED@']", "assert [y for y in f(1)] == ['@WANTED@']"),
    ),
    forged("wire_arguments", "arguments afterwards that are something else", '[nonce, "ok", 0, {"s": [1]}]'),
    forged(
        "wire_arguments_more", "more arguments afterwards than there were", '[nonce, "ok", 0, [["x"], ["y"], ["z"]]]'
    ),
    forged("wire_arguments_types", "arguments afterwards of other types", '[nonce, "ok", 0, [{"d": []}]]'),
    forged("wire_raise_shapes", "an exception in a wrong shape", '[nonce, "raise", 5, None, "x", {"a": 1}, 7, None]'),
    forged(
        "wire_raise_control",
        "exceptions that would end the judge's loops",
        '[nonce, "raise", "StopIteration", "x", 1, ["StopIteration"], None, None]',
    ),
    forged(
        "wire_raise_exit",
        "exceptions that would end the judge",
        '[nonce, "raise", "SystemExit", "0", 1, ["SystemExit", "BaseException"], None, None]',
    ),
    forged(
        "wire_raise_named",
        "exceptions named like other builtins",
        '[nonce, "raise", "print", "x", 1, ["print", "exec", "__import__"], None, None]',
    ),
    forged(
        "wire_raise_line",
        "an exception on a line of no file",
        '[nonce, "raise", "ValueError", "x", 10**30, ["ValueError"], None, None]',
    ),
    forged(
        "wire_raise_text",
        "an exception with a message of a megabyte of escapes",
        '[nonce, "raise", "E" * 10**5, "\\x1b" * 10**5, 1, [], None, None]',
    ),
    forged("wire_syntax", "a syntax error in the middle of a test", '[nonce, "syntax", "x", 1, 1]'),
    forged("wire_not_utf8", "text that is not UTF-8", '\'["\' + str(nonce) + \'", "ok", "\\udc80\\ud800", null]\''),
)
