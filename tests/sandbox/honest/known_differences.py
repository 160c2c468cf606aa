"""Tests of honest programs whose verdict differs from plain CPython's, and why.

docs/explanation/sandbox.md gives the same reasons. Remove a fixed difference from both.
"""

from __future__ import annotations

KNOWN_DIFFERENCES: dict[str, dict[str, tuple[int, ...]]] = {
    "state of two processes: contexts, builtins and names that a test sets are not shared with the program": {
        "globals/tests_set_a_name": (1,),
        "state/decimal_context_is_set": (1,),
    },
    "an object of the program is not combined with plain data where the program would decide the verdict": {
        "standard_types/paths_and_uuids": (1,),
        "subclasses/of_int": (2,),
    },
    "exceptions: tests get no StopIteration; the program's `__exit__` gets no exception of a test": {
        "errors/stop_iteration": (0,),
        "classes/context_manager": (1,),
    },
    "a guest has no files: neither its own source nor temporary files": {
        "library/own_source": (0,),
        "library/temporary_file": (0,),
    },
}
"""Numbers of the differing tests, by reason and program."""
