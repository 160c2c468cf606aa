"""One of this project's environments, served to other programs: a program asks for the next agent's prompt, and answers
in the agent's place.

`served_episode` plays an episode whose answers come from outside. `environment_app` serves episodes on localhost, with
the messages of OpenEnv: `reset`, `step` and `state`. docs/how-to/serve_an_environment.md describes its use.
"""

from marl_ray.registry import PlugIn, ShellCommand

PLUGIN = PlugIn(
    commands={
        "environment": ShellCommand(
            "marl_ray.plugins.environment_server.command",
            "serve an environment and its tasks to other programs, without training",
        ),
    },
)
