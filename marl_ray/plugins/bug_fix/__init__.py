"""Repair of a buggy program by several agents: patches that are merged, or patchers of one program."""

from marl_ray.registry import PlugIn

PLUGIN = PlugIn(
    names={
        "environment": {
            "bug_fix": "marl_ray.plugins.bug_fix.environment:BugFix",
            "bug_fix_patchers": "marl_ray.plugins.bug_fix.environment:BugFixPatchers",
        },
        "dataset.type": {"bug_fix": "marl_ray.plugins.bug_fix.rows:BUG_FIX"},
    },
    types_by_name={
        "humanevalpack": "bug_fix",
        "quixbugs": "bug_fix",
        "bug_fix": "bug_fix",
        "bugfix": "bug_fix",
    },
)
