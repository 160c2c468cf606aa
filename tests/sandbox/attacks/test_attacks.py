"""Every hostile program at every level of this machine: no escape, no forged pass, no leak, no process left."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.sandbox.attacks.all_attacks import ATTACKS, MODULES
from tests.sandbox.attacks.attack import REPORTING_LIMITS, SUITE_LIMITS, WANTED_PREFIX, Attack
from tests.sandbox.attacks.level_suite import VARIANTS, Variant, host_of, why_not

HONEST_SOURCE = "def f(x):\n    print('honest')\n    return x + x\n"
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


class AttackRunner:
    """Background execution of the selected attacks: two variants at a time, each on its own host, attacks in order.

    Most attacks wait for a limit, so two hosts can share two cores. Tests read their outcome from `answers`.
    """

    def __init__(self, selected: list[tuple[Variant, Attack]]) -> None:
        self.answers: dict[tuple[str, str], Future[AttackOutcome]] = {
            (variant.name, attack.name): Future() for variant, attack in selected
        }
        self.final_states: dict[str, Future[dict[str, Any] | None]] = {
            variant.name: Future() for variant, _ in selected
        }
        self.executor = ThreadPoolExecutor(2)
        for variant in dict.fromkeys(variant for variant, _ in selected):
            attacks = [attack for other, attack in selected if other is variant]
            self.executor.submit(self.run_variant, variant, attacks)

    def run_variant(self, variant: Variant, attacks: list[Attack]) -> None:
        last = self.final_states[variant.name]
        try:
            with host_of(variant) as host:
                if "unavailable" in host.startup and (reason := why_not(variant)):
                    raise LookupError(f"no {variant.name} on this machine: {reason}")
                assert host.startup.get("level") == variant.expected, host.startup
                for attack in attacks:
                    wanted = WANTED_PREFIX + secrets.token_hex(12)
                    answer = host.run(programs_of(attack, wanted))
                    self.answers[variant.name, attack.name].set_result(AttackOutcome(wanted, host.secret, answer))
                last.set_result(host.close())
        except BaseException as error:
            for future in (last, *(self.answers[variant.name, attack.name] for attack in attacks)):
                if not future.done():
                    future.set_exception(error)


@dataclass(frozen=True)
class AttackOutcome:
    """The wanted word of one attack, the host's secret, and the host's answer."""

    wanted: str
    secret: str
    answer: dict[str, Any]


@pytest.fixture(scope="module")
def runner(request: pytest.FixtureRequest) -> Iterator[AttackRunner]:
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    attack_runner = AttackRunner([(p["variant"], p["attack"]) for p in parameters if {"variant", "attack"} <= p.keys()])
    yield attack_runner
    attack_runner.executor.shutdown(cancel_futures=True)


def result_of(future: Future[Any]) -> Any:
    """Return the result within 240 s; skip the test if this machine lacks the level."""
    try:
        return future.result(timeout=240)
    except LookupError as error:
        pytest.skip(str(error))


def program_of(attack: Attack, wanted: str) -> dict[str, Any]:
    tests = attack.tests
    return {
        "program": attack.source,
        "tests": tests.replace("@WANTED@", wanted)
        if isinstance(tests, str)
        else [t.replace("@WANTED@", wanted) for t in tests],
        "entry_point": "f",
        "limits": {**(REPORTING_LIMITS if attack.contained else SUITE_LIMITS), **attack.limits},
        **attack.program,
    }


def programs_of(attack: Attack, wanted: str) -> list[dict[str, Any]]:
    """Return the attack, the program that searches for its traces if any, and an honest program."""
    after = Attack("after", "", attack.after, attack.tests, contained=True) if attack.after else None
    return [program_of(item, wanted) for item in (attack, after) if item] + [honest_program()]


def honest_program() -> dict[str, Any]:
    """Return a program that must pass, with limits that it meets on a busy machine too."""
    word = secrets.token_hex(8)
    tests = [f"assert f({word!r}) == {word + word!r}"]
    return {"program": HONEST_SOURCE, "tests": tests, "entry_point": "f", "limits": REPORTING_LIMITS}


def guest_text(report: dict[str, Any]) -> str:
    """Return the text of a report that a guest can influence."""
    return json.dumps(
        [report["stdout"], report["syntax_error"], [[t["error_type"], t["message"]] for t in report["tests"]]]
    )


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_attack_is_contained(runner: AttackRunner, variant: Variant, attack: Attack) -> None:
    outcome: AttackOutcome = result_of(runner.answers[variant.name, attack.name])
    answer, wanted = outcome.answer, outcome.wanted
    report, *middle, honest = answer["reports"]
    text = guest_text(report)
    rule = f"{attack.purpose} Required: {attack.expectation}"

    assert report["total"] >= 1, "the tests were lost"
    statuses = [test["status"] for test in report["tests"]]
    if "pass" in statuses:
        assert (attack.untrusted, report["trusted"]) == (True, False), f"forged pass; {rule}: {report}"
    assert "ESCAPED" not in text
    if attack.contained:
        assert "CONTAINED" in text, f"the attack did not reach its payload; {rule}: {text}"
    for seen in middle:
        assert "ESCAPED" not in guest_text(seen)
        assert "CONTAINED" in guest_text(seen), guest_text(seen)
        assert seen["passed"] == 0
    assert "JudgeDied" not in {test["error_type"] for test in report["tests"]}
    if attack.statuses:
        assert set(statuses) <= set(attack.statuses), f"{rule}: {text}"
    assert outcome.secret not in json.dumps(answer["reports"])
    assert wanted not in report["stdout"]
    for test in report["tests"]:
        written = (test["error_type"] or "") + (test["message"] or "")
        assert not CONTROL_CHARACTERS.search(written), repr(written)
        assert len(test["message"] or "") <= 2000
    assert len(report["stdout"]) <= 65536

    assert honest["passed"] == 1, f"the next program is affected: {honest}"
    assert honest["trusted"] is True
    assert honest.get("infra_error") is None
    assert honest["stdout"].strip() == "honest", "output of another program"
    assert answer["damage"] == []
    assert answer["processes"] <= 0, f"{answer['processes']} processes left over"
    assert answer["descriptors"] <= 0, f"{answer['descriptors']} descriptors left over"


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_no_process_or_damage_is_left_after_all_attacks(runner: AttackRunner, variant: Variant) -> None:
    if variant.name not in runner.final_states:
        pytest.skip("no attack was selected")
    last = result_of(runner.final_states[variant.name])
    assert last["processes"] == 0
    assert last["damage"] == []


def test_attacks_have_unique_names_and_a_purpose() -> None:
    names = [attack.name for attack in ATTACKS]
    assert len(set(names)) == len(names) >= 75
    assert all(len(module.ATTACKS) >= 10 for module in MODULES)
    assert all(attack.purpose.endswith(".") and "\n" not in attack.purpose for attack in ATTACKS)
