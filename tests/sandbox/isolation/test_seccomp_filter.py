"""The seccomp filters, evaluated as in the kernel, for every call number and against the sets in `syscalls`."""

from __future__ import annotations

import struct

import pytest

from marl_ray.sandbox.inside.isolation import seccomp, syscalls

pytestmark = pytest.mark.skipif(not syscalls.supported(), reason="no seccomp filter for this machine")
ALLOW, EPERM, KILL = 0x7FFF0000, 0x00050001, 0x80000000
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def evaluate(code: bytes, number: int, architecture: int | None = None, arguments: tuple[int, ...] = (0,) * 6) -> int:
    """Return the action of a filter for a call."""
    program = list(struct.iter_unpack("=HBBI", code))
    data = struct.pack("<IIQ6Q", number, architecture or ARCHITECTURE[syscalls.MACHINE], 0, *arguments)
    value = position = 0
    while True:
        operation, if_true, if_false, constant = program[position]
        position += 1
        if operation == 0x06:
            return int(constant)
        if operation == 0x20:
            (value,) = struct.unpack_from("<I", data, constant)
        elif operation == 0x54:
            value &= constant
        else:
            holds = {0x15: value == constant, 0x35: value >= constant, 0x45: value & constant != 0}[operation]
            position += if_true if holds else if_false


@pytest.mark.parametrize("may_open", [True, False])
@pytest.mark.parametrize("extra", [frozenset(), syscalls.JUDGE_ONLY])
def test_exactly_the_listed_calls_are_allowed(may_open: bool, extra: frozenset[str]) -> None:
    code = seccomp.build_filter(may_open=may_open, extra=extra)
    names = (syscalls.GUEST_ALLOWED | extra) - (frozenset() if may_open else syscalls.READS_LINKS)
    allowed = {syscalls.number(name) for name in names}
    checked = {syscalls.number(name) for name in syscalls.CHECKED - (frozenset() if may_open else {"open", "openat"})}
    for number in set(range(2000)) - checked:
        assert evaluate(code, number) == (ALLOW if number in allowed else EPERM), number


def test_calls_of_other_abis_kill_the_process() -> None:
    code = seccomp.build_filter(may_open=True)
    assert evaluate(code, 0, architecture=0x40000003) == KILL
    if syscalls.MACHINE == "x86_64":
        assert evaluate(code, 0x40000000) == KILL


@pytest.mark.parametrize(("name", "position"), [("sendto", 3), ("recvfrom", 3), ("recvmsg", 2)])
def test_unusual_message_flags_are_denied(name: str, position: int) -> None:
    code = seccomp.build_filter(may_open=True)
    number = syscalls.number(name)
    assert number is not None
    for bit in range(32):
        arguments = tuple(1 << bit if index == position else 0 for index in range(6))
        usual = bit in (1, 5, 6, 8, 14, 15, 30)
        assert evaluate(code, number, arguments=arguments) == (ALLOW if usual else EPERM), hex(1 << bit)


def test_the_thread_filter_asks_about_thread_start_and_end_only() -> None:
    code = seccomp.build_thread_filter()
    asked = {number for number in range(2000) if evaluate(code, number) != ALLOW}
    assert asked == {syscalls.number("clone"), syscalls.number("exit")}
    assert {evaluate(code, number) for number in asked} == {0x7FC00000}
    assert evaluate(code, 0, architecture=0x40000003) == KILL
