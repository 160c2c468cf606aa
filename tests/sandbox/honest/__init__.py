"""Honest programs at the boundaries of the sandbox, each with its tests, in one module per class."""

from __future__ import annotations

from .collection import Collection, Honest
from .set_benchmarks import BENCHMARKS, SUITES
from .set_changes import CHANGES, GLOBALS
from .set_classes import CLASSES, OPERATORS
from .set_errors import ERRORS
from .set_functions import ASYNC, FUNCTIONS
from .set_lazy import EFFECTS, GENERATORS
from .set_library import LIBRARY, STATE, THREADS
from .set_scripts import ENDINGS, SCRIPTS
from .set_types import STANDARD_TYPES, SUBCLASSES
from .set_values import NUMBERS, SIZES, VALUES

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
