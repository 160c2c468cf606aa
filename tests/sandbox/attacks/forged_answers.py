"""Programs that know this sandbox and answer the judge with the right nonce and hostile contents.

They find the guest's framing module through the calling frames and replace the body of the frame that is sent. Every answer
must be rejected or decoded to harmless data; no test may pass.
"""

from __future__ import annotations

# ruff: noqa: E501 (lines of the hostile programs)
from tests.sandbox.attacks.attack import Attack

ANSWER = r'''
import json, struct, sys

def answer(make):
    """Replace every later answer of this guest by `make(nonce)`: JSON text or a value, correctly framed."""
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
    """Return an attack that answers with `body`, an expression over `nonce`, `N` and the list `answered`."""
    source = f"{ANSWER}\nN = 30000\nanswered = []\ndef f(x):\n    answer(lambda nonce: {body})\n    return 0\n"
    options.setdefault("statuses", ("fail", "error", "crash", "timeout", "skipped"))
    return Attack(name, purpose, source, **options)  # type: ignore[arg-type]


ATTACKS = (
    forged("answer_is_a_verdict", "Answer that the test has passed.", '[nonce, "ok", ["pass", None, None]]'),
    forged("answer_kind_unknown", "Answer with an unknown kind.", '[nonce, "pass"]'),
    forged("answer_kind_not_text", "Answer with a kind that is not a string.", '[nonce, {"ok": 1}, [None]]'),
    forged("answer_without_kind", "Answer without a kind.", "[nonce]"),
    forged("answer_is_an_object", "Answer with a JSON object instead of a list.", '{"0": nonce, "1": "ok", "2": True}'),
    forged("answer_is_a_number", "Answer with a number instead of a list.", "17"),
    forged("nonce_in_a_list", "Answer with the nonce wrapped in a list.", '[[nonce], "ok", 1, None]'),
    forged("nonce_constant", "Answer with a constant nonce.", '["0" * len(str(nonce)), "ok", 1, None]'),
    forged(
        "nonce_similar", "Answer with a nonce that is almost right.", '[str(nonce).swapcase() + " ", "ok", 1, None]'
    ),
    forged("answer_too_many_parts", "Answer with more parts than the kind has.", '[nonce, "ok"] + [None] * 1000'),
    forged("tag_unknown", "Answer with an unknown tag.", '[nonce, "ok", {"pickle": "gASV"}, None]'),
    forged("tag_twice", "Answer with an object that has two tags.", '[nonce, "ok", {"t": [], "s": []}, None]'),
    forged("tag_missing", "Answer with an object without a tag.", '[nonce, "ok", {}, None]'),
    forged(
        "tag_payload_types",
        "Answer with tags whose payloads have the wrong type.",
        '[nonce, "ok", [{"t": 1}, {"d": [[1]]}, {"i": 5}], None]',
    ),
    forged(
        "set_of_lists",
        "Answer with a set of lists.",
        '[nonce, "ok", {"s": [[1]]}, None]',
    ),
    forged(
        "json_infinities",
        "Answer with NaN and infinities, which JSON does not define.",
        "'[\"' + str(nonce) + '\", \"ok\", [NaN, Infinity, -1e999], null]'",
    ),
    forged(
        "integer_million_digits",
        "Answer with a plain integer of a million digits.",
        "'[\"' + str(nonce) + '\", \"ok\", ' + '9' * 10**6 + ', null]'",
    ),
    forged(
        "integer_million_hex_digits",
        "Answer with an integer of a million hexadecimal digits.",
        '[nonce, "ok", {"i": "0x" + "f" * 10**6}, None]',
    ),
    forged(
        "integer_odd_notation",
        "Answer with an integer in a notation that only int() accepts.",
        '[nonce, "ok", {"i": " -0X_f_f\\n"}, None]',
    ),
    forged(
        "decimal_odd",
        "Answer with signalling NaN and huge exponents as Decimals.",
        '[nonce, "ok", [{"D": "sNaN"}, {"D": "1e-999999999"}], None]',
    ),
    forged(
        "decimal_million_digits",
        "Answer with a Decimal of a million digits.",
        '[nonce, "ok", {"D": "9" * 10**6}, None]',
    ),
    forged(
        "fraction_over_zero",
        "Answer with a Fraction over zero.",
        '[nonce, "ok", {"F": ["1", "0"]}, None]',
    ),
    forged(
        "range_too_long",
        "Answer with a range of an astronomic length.",
        '[nonce, "ok", {"r": ["0", "f" * 300, "1"]}, None]',
    ),
    forged("range_step_zero", "Answer with a range of step zero.", '[nonce, "ok", {"r": ["0", "5", "0"]}, None]'),
    forged(
        "dates_invalid",
        "Answer with dates and durations that do not exist.",
        '[nonce, "ok", [{"dt": "9999-99-99"}, {"td": [10**18, 0, 0]}], None]',
    ),
    forged(
        "depth_unbalanced",
        "Answer with ninety thousand open brackets.",
        '[nonce, "ok", None, None, None] and "[" * 90000',
    ),
    forged(
        "depth_of_tags",
        "Answer with tuples nested to the limit of the JSON parser.",
        "'[\"' + str(nonce) + '\", \"ok\", ' + '{\"t\":[' * 400 + ']}' * 400 + ', null]'",
    ),
    forged(
        "hash_collisions_in_set",
        "Answer with a set of integers with equal hashes.",
        '[nonce, "ok", {"s": [{"i": hex(n * (2**61 - 1))} for n in range(N)]}, None]',
    ),
    forged(
        "hash_collisions_in_dict",
        "Answer with a dict of integers with equal hashes.",
        '[nonce, "ok", {"d": [[{"i": hex(n * (2**61 - 1))}, 0] for n in range(N)]}, None]',
    ),
    forged(
        "repeated_json_keys",
        "Answer with a JSON object that repeats one key.",
        "'[\"' + str(nonce) + '\", \"ok\", {' + ','.join('\"t\": []' for _ in range(N)) + '}, null]'",
    ),
    forged(
        "reference_not_a_number",
        "Answer with a reference that is not a number.",
        '[nonce, "ok", {"h": [{"x": 1}, "T", 0, None]}, None]',
    ),
    forged(
        "reference_to_nothing",
        "Answer with a reference to no object.",
        '[nonce, "ok", {"h": [-(10**30), "T", 0, None]}, None]',
    ),
    forged(
        "reference_name_huge",
        "Answer with a reference whose class name has 200 kilobytes and newlines.",
        '[nonce, "ok", {"h": [0, "A\\n" * 10**5, 0, None]}, None]',
    ),
    forged(
        "reference_iterates_endlessly",
        "Answer with an iterator that always has more items.",
        '[nonce, "ok", {"h": [0, "T", 3, None]}, None] if answered.append(1) or len(answered) == 1 else [nonce, "ok", [0] * 4, False]',
        tests=("assert list(f(1)) == ['@WANTED@']", "assert [y for y in f(1)] == ['@WANTED@']"),
    ),
    forged(
        "changes_not_a_list", "Answer with changes of the arguments that are a set.", '[nonce, "ok", 0, {"s": [1]}]'
    ),
    forged(
        "changes_too_many",
        "Answer with changes of more arguments than were sent.",
        '[nonce, "ok", 0, [["x"], ["y"], ["z"]]]',
    ),
    forged(
        "changes_of_other_types", "Answer with changes of arguments to other types.", '[nonce, "ok", 0, [{"d": []}]]'
    ),
    forged(
        "exception_malformed",
        "Answer with an exception in the wrong shape.",
        '[nonce, "raise", 5, None, "x", {"a": 1}, 7, None]',
    ),
    forged(
        "exception_stops_iteration",
        "Answer with StopIteration, which would end the judge's loops.",
        '[nonce, "raise", "StopIteration", "x", 1, ["StopIteration"], None, None]',
    ),
    forged(
        "exception_exits",
        "Answer with SystemExit, which would end the judge.",
        '[nonce, "raise", "SystemExit", "0", 1, ["SystemExit", "BaseException"], None, None]',
    ),
    forged(
        "exception_named_like_builtin",
        "Answer with an exception named like other builtins.",
        '[nonce, "raise", "print", "x", 1, ["print", "exec", "__import__"], None, None]',
    ),
    forged(
        "exception_line_huge",
        "Answer with an exception on an impossible line.",
        '[nonce, "raise", "ValueError", "x", 10**30, ["ValueError"], None, None]',
    ),
    forged(
        "exception_message_huge",
        "Answer with an exception of a hundred thousand control characters.",
        '[nonce, "raise", "E" * 10**5, "\\x1b" * 10**5, 1, [], None, None]',
    ),
    forged(
        "syntax_error_during_test",
        "Answer with a syntax error in the middle of a test.",
        '[nonce, "syntax", "x", 1, 1]',
    ),
    forged(
        "answer_not_utf8",
        "Answer with text that is not UTF-8.",
        '\'["\' + str(nonce) + \'", "ok", "\\udc80\\ud800", null]\'',
    ),
)
