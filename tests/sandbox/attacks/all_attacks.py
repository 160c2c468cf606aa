"""All hostile programs."""

from __future__ import annotations

from tests.sandbox.attacks import (
    answers,
    escapes,
    forged_answers,
    forgeries,
    kernel,
    protocol,
    resources,
    scripts,
    shared_objects,
    threads_and_output,
)
from tests.sandbox.attacks.attack import Attack

MODULES = (
    resources,
    threads_and_output,
    escapes,
    kernel,
    forgeries,
    answers,
    protocol,
    forged_answers,
    shared_objects,
    scripts,
)
ATTACKS: tuple[Attack, ...] = tuple(attack for module in MODULES for attack in module.ATTACKS)
