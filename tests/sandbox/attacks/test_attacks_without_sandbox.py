"""Attacks succeed without a sandbox: run with their tests in one plain subprocess, they reach their goal.

Otherwise an attack that works nowhere would count as contained. Dangerous attacks are excluded.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.attacks.all_attacks import ATTACKS
from tests.sandbox.attacks.attack import SECRET_PREFIX, WANTED_PREFIX, Attack

BY_NAME = {attack.name: attack for attack in ATTACKS}

ESCAPES = (
    "environment",
    "process_files",
    "read_file",
    "read_system",
    "list_folders",
    "connect",
    "host_modules",
    "memory_outside_address_space",
    "memory_list",
    "memory_mmap",
    "raw_calls",
    "sockets",
    "descriptors_inherited",
)
"""Attacks that report ESCAPED in a plain process."""

FORGERIES = (
    "equal_object",
    "equal_int",
    "equal_str",
    "equal_list",
    "equal_nested",
    "contains_everything",
    "class_forged",
    "metaclass_forged",
    "answers_in_frames",
    "answers_in_objects",
    "answers_in_memory",
    "helper_equal",
)
"""Attacks that make a plain harness report a pass, or find the answer."""

HARNESS = r"""
import json, sys
request = json.load(open(sys.argv[1]))
names = {"__name__": "program"}
passed = 0
text = ""
try:
    exec(compile(request["program"], "<program>", "exec"), names)
    for test in request["tests"]:
        try:
            exec(test, names)
            passed += 1
        except AssertionError:
            pass
        except Exception as error:
            text += str(error)
finally:
    sys.__stdout__.write("\nRESULT " + json.dumps([passed, text]))
    sys.__stdout__.flush()
"""


def run_plainly(attack: Attack, folder: Path) -> tuple[int, str]:
    """Run an attack in a plain subprocess with a secret and the tests; return passed tests and text of exceptions."""
    wanted, secret = WANTED_PREFIX + secrets.token_hex(12), SECRET_PREFIX + secrets.token_hex(12)
    canary = folder / "marl_ray_canary"
    canary.write_text(secret)
    (folder / "module.py").write_text("value = 1\n")
    server = socket.create_server(("127.0.0.1", 0))
    words = {
        "@CANARY@": str(canary),
        "@FOLDER@": str(folder),
        "@HOST_PID@": str(os.getpid()),
        "@PORT@": str(server.getsockname()[1]),
        "@ABSTRACT@": "missing",
        "@REPOSITORY@": str(Path(__file__).resolve().parents[3]),
        "@SITE_PACKAGES@": next((path for path in sys.path if path.endswith("site-packages")), "/nowhere"),
        "@WANTED@": wanted,
    }

    def fill(text: str) -> str:
        for word, value in words.items():
            text = text.replace(word, value)
        return text

    assert not isinstance(attack.tests, str)
    request = folder / "request.json"
    request.write_text(json.dumps({"program": fill(attack.source), "tests": [fill(test) for test in attack.tests]}))
    with server:
        done = subprocess.run(
            [sys.executable, "-I", "-c", HARNESS, str(request)],
            capture_output=True,
            timeout=120,
            env={"MARL_RAY_ATTACK_KEY": secret},
            cwd=folder,
        )
    passed, text = json.loads(done.stdout.decode().rpartition("\nRESULT ")[2])
    return passed, text


@pytest.mark.parametrize("name", ESCAPES)
def test_escapes_work_without_a_sandbox(name: str, tmp_path: Path) -> None:
    _, text = run_plainly(BY_NAME[name], tmp_path)
    assert "ESCAPED" in text, text


@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_work_without_a_sandbox(name: str, tmp_path: Path) -> None:
    passed, text = run_plainly(BY_NAME[name], tmp_path)
    assert passed >= 1 or "ESCAPED" in text, text
