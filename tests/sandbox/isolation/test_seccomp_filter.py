"""The seccomp filters, evaluated as in the kernel, for every call number and against the sets in `syscalls`."""

from __future__ import annotations

import struct

import pytest

from marl_ray.sandbox.inside.isolation import seccomp, syscalls

pytestmark = pytest.mark.skipif(not syscalls.supported(), reason="no seccomp filter for this machine")
ALLOW, ANSWER_0, KILL = 0x7FFF0000, 0x00050000, 0x80000000
EPERM, EACCES, EINVAL = 0x00050001, 0x0005000D, 0x00050016
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
@pytest.mark.parametrize("own_mounts", [True, False])
@pytest.mark.parametrize("judge", [True, False])
def test_exactly_the_listed_calls_are_allowed(may_open: bool, own_mounts: bool, judge: bool) -> None:
    code = seccomp.build_filter(may_open=may_open, own_mounts=own_mounts, judge=judge)
    names = syscalls.ALLOWED | (syscalls.ABOUT_LINKS if own_mounts else frozenset())
    names |= (syscalls.JUDGE_ONLY | syscalls.PROCESS_NUMBERS | syscalls.CLOCKS) if judge else frozenset()
    allowed = {syscalls.number(name) for name in names}
    checked = {syscalls.number(name) for name in syscalls.CHECKED - (frozenset() if may_open else {"open", "openat"})}
    checked |= set() if judge else {syscalls.number(name) for name in syscalls.PROCESS_NUMBERS | syscalls.CLOCKS}
    for number in set(range(2000)) - checked:
        assert evaluate(code, number) == (ALLOW if number in allowed else EPERM), number


def decision(name: str, *arguments: int, **options: bool) -> int:
    """Return the action of a guest's filter for a call with these first arguments."""
    code, number = seccomp.build_filter(may_open=True, **options), syscalls.number(name)
    assert number is not None
    return evaluate(code, number, arguments=(*arguments, *(0,) * (6 - len(arguments))))


@pytest.mark.parametrize("name", sorted(syscalls.PROCESS_NUMBERS - {"getpgrp"}))
def test_process_numbers_answer_0_in_guests(name: str) -> None:
    assert decision(name) == ANSWER_0
    assert decision(name, judge=True) == ALLOW


@pytest.mark.parametrize("name", sorted(syscalls.CLOCKS))
def test_a_guest_reads_no_clock_of_another_process(name: str) -> None:
    assert [decision(name, clock) for clock in range(16)] == [ALLOW] * 16
    for process in (0, 1, 1 << 20):
        clock = (~process << 3 | 2) & 0xFFFFFFFF
        assert decision(name, clock) == EINVAL
        assert decision(name, clock, judge=True) == ALLOW


def test_a_guest_reads_its_own_limits_only() -> None:
    assert decision("prlimit64", 0, 7, 0) == ALLOW
    assert {decision("prlimit64", 1), decision("prlimit64", 0, 7, 1), decision("prlimit64", 0, 7, 1 << 40)} == {EPERM}


@pytest.mark.parametrize(("name", "position"), [("wait4", 3), ("waitid", 4)])
def test_no_usage_of_resources_is_read(name: str, position: int) -> None:
    usage = [0] * 6
    assert decision(name, *usage) == ALLOW
    for pointer in (1, 1 << 40):
        usage[position] = pointer
        assert decision(name, *usage) == EPERM
    assert decision("getrusage") == EPERM
    assert decision("getrusage", judge=True) == ALLOW


def test_a_guest_wakes_no_thread_of_another_process() -> None:
    private, realtime = 128, 256
    for command in range(14):
        assert decision("futex", 0, command | private) == ALLOW
        waits = command in (0, 9)
        assert decision("futex", 0, command | realtime) == (ALLOW if waits else EPERM)


def test_locks_are_set_and_never_read() -> None:
    get, put, wait = 5, 6, 7
    assert [decision("fcntl", 3, command, may_write=True) for command in (get, put, wait)] == [EPERM, ALLOW, EPERM]
    assert decision("fcntl", 3, put) == EPERM


def test_links_are_not_told_apart_on_shared_mounts() -> None:
    nofollow, path_only = 0x100, 0o10000000
    for own_mounts, expected in ((True, ALLOW), (False, EPERM)):
        assert decision("newfstatat", 0, 0, 0, nofollow, own_mounts=own_mounts) == expected
        assert decision("statx", 0, 0, nofollow, own_mounts=own_mounts) == expected
        assert decision("openat", 0, 0, path_only, own_mounts=own_mounts) == (ALLOW if own_mounts else EACCES)


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


def test_the_judge_forks_and_the_processes_that_it_forks_do_not() -> None:
    thread, child, namespace = 0x00010000 | 0x100, 0x01000000 | 17, 0x10000000 | 17
    assert [decision("clone", flags) for flags in (thread, child, namespace)] == [ALLOW, EPERM, EPERM]
    assert [decision("clone", flags, judge=True) for flags in (thread, child, namespace)] == [ALLOW, ALLOW, EPERM]
    code, number = seccomp.build_no_fork_filter(), syscalls.number("clone")
    assert number is not None
    decisions = [evaluate(code, number, arguments=(flags, 0, 0, 0, 0, 0)) for flags in (thread, child, namespace)]
    assert decisions == [ALLOW, EPERM, EPERM]
    assert evaluate(code, syscalls.number("read") or 0) == ALLOW
    assert evaluate(code, number, architecture=0x40000003) == KILL
    die_with_parent = 1
    assert decision("prctl", die_with_parent, judge=True) == ALLOW
    assert decision("prctl", die_with_parent) == EPERM
