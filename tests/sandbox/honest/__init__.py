"""Honest programs that exercise the boundaries of the sandbox, each with its tests; one module per group."""

from __future__ import annotations

from tests.sandbox.honest.program_set import HonestProgram, ProgramSet
from tests.sandbox.honest.programs_benchmarks import BENCHMARKS, SUITES
from tests.sandbox.honest.programs_changes import CHANGES, GLOBALS
from tests.sandbox.honest.programs_classes import CLASSES, OPERATORS
from tests.sandbox.honest.programs_errors import ERRORS
from tests.sandbox.honest.programs_functions import ASYNC, FUNCTIONS
from tests.sandbox.honest.programs_lazy import EFFECTS, GENERATORS
from tests.sandbox.honest.programs_library import LIBRARY, STATE, THREADS
from tests.sandbox.honest.programs_scripts import ENDINGS, SCRIPTS
from tests.sandbox.honest.programs_types import STANDARD_TYPES, SUBCLASSES
from tests.sandbox.honest.programs_values import NUMBERS, SIZES, VALUES

__all__ = ["COLLECTIONS", "PROGRAMS", "HonestProgram"]

COLLECTIONS: tuple[ProgramSet, ...] = (
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
PROGRAMS: tuple[HonestProgram, ...] = tuple(program for collection in COLLECTIONS for program in collection.programs)
