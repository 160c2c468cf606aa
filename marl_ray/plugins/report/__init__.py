"""Pages and pictures of runs: an HTML report with episodes and curves, a trace, and comparisons of runs."""

from marl_ray.registry import PlugIn, ShellCommand

PLUGIN = PlugIn(
    commands={
        "report": ShellCommand("marl_ray.plugins.report.command", "write an HTML report of one or several runs"),
        "compare": ShellCommand(
            "marl_ray.plugins.report.comparison.command",
            "compare runs: paired differences, a table and a figure for a paper",
        ),
    },
)
