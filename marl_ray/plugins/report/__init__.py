"""Pages and pictures of runs: a page per run, a list of runs, a trace, and comparisons of runs."""

from marl_ray.registry import PlugIn, ShellCommand

PLUGIN = PlugIn(
    commands={
        "report": ShellCommand("marl_ray.plugins.report.command", "write the page of a run, or a list of runs"),
        "compare": ShellCommand(
            "marl_ray.plugins.report.comparison.command",
            "compare runs: paired differences, a table and a figure for a paper",
        ),
    },
)
