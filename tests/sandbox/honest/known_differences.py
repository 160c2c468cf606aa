"""Tests of honest programs whose verdict differs from plain CPython's, and why.

docs/explanation/sandbox.md tells the same reasons; a difference that is mended is to be taken out of both.
"""

from __future__ import annotations

KNOWN_DIFFERENCES: dict[str, dict[str, tuple[int, ...]]] = {
    "two processes have two states: output, contexts, builtins and names that a test sets stay the test's own": {
        "effects/prints": (1,),
        "globals/tests_set_a_name": (1,),
        "state/decimal_context_is_set": (1,),
        "state/builtins_are_changed": (0,),
    },
    "an object of the program's process is not combined with plain data where its word would be the verdict": {
        "standard_types/simple_namespace": (1,),
        "standard_types/array_and_views": (1,),
        "standard_types/paths_and_uuids": (1,),
        "standard_types/mapping_proxy": (1,),
        "subclasses/of_int": (2,),
        "subclasses/user_dict": (1,),
    },
    "a stand-in is not the object: what looks inside it (dataclasses, inspect) or hands views on sees the stand-in": {
        "generators/takes_a_generator": (3,),
        "standard_types/dataclass": (4,),
        "functions/signatures": (4,),
    },
    "exceptions: StopIteration and groups are not raised in a test; the program's `__exit__` does not see a test's": {
        "errors/stop_iteration": (0,),
        "errors/groups": (0, 1),
        "classes/context_manager": (1,),
    },
    "a guest has no files: neither its own source nor temporary ones": {
        "library/own_source": (0,),
        "library/temporary_file": (0,),
    },
}
"""By reason and program, the numbers of its tests."""
