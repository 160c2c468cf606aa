"""HTTP server of a trained team: an OpenAI-compatible API, an MCP tool and a page.

The server process has the HTTP endpoints and runs episodes; it runs no guest code. Models run in the generation actors,
programs in the sandbox workers, as in an evaluation.
"""

from marl_ray.registry import PlugIn, ShellCommand

PLUGIN = PlugIn(
    commands={
        "serve": ShellCommand(
            "marl_ray.plugins.serve.command",
            "serve a trained team over HTTP: an OpenAI-compatible API, an MCP tool and a page",
        ),
        "export": ShellCommand(
            "marl_ray.plugins.serve.export.command",
            "write the trained models of a run for transformers, the hub and other programs",
        ),
        "convert": ShellCommand(
            "marl_ray.plugins.serve.formats.command",
            "write results and samples in the formats of EvalPlus, LiveCodeBench, lm-eval and inspect",
        ),
    },
)
