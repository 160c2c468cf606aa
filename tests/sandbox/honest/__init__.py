"""Honest programs at the boundaries of the sandbox, each with its tests, in one module per class."""

from __future__ import annotations

from tests.sandbox.honest.collection import Collection, Honest
from tests.sandbox.honest.set_benchmarks import BENCHMARKS, SUITES
from tests.sandbox.honest.set_changes import CHANGES, GLOBALS
from tests.sandbox.honest.set_classes import CLASSES, OPERATORS
from tests.sandbox.honest.set_errors import ERRORS
from tests.sandbox.honest.set_functions import ASYNC, FUNCTIONS
from tests.sandbox.honest.set_lazy import EFFECTS, GENERATORS
from tests.sandbox.honest.set_library import LIBRARY, STATE, THREADS
from tests.sandbox.honest.set_scripts import ENDINGS, SCRIPTS
from tests.sandbox.honest.set_types import STANDARD_TYPES, SUBCLASSES
from tests.sandbox.honest.set_values import NUMBERS, SIZES, VALUES

__all__ = ["COLLECTIONS", "PROGRAMS", "Honest"]

COLLECTIONS: tuple[Collection, ...] = (
    GENERATORS,
    EFFECTS,
    SCRIPTS,
    ENDINGS,
    CHANGES,
    GLOBALS,
    STANDARD_TYPES,
    SUBCLASSES,
    NUMBERS,
    VALUES,
    SIZES,
    ERRORS,
    CLASSES,
    OPERATORS,
    FUNCTIONS,
    ASYNC,
    LIBRARY,
    THREADS,
    STATE,
    BENCHMARKS,
    SUITES,
)
PROGRAMS: tuple[Honest, ...] = tuple(program for collection in COLLECTIONS for program in collection.programs)
