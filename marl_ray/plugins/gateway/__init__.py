"""Training of programs that this package does not know: an episode is a run of a program that calls the agents.

      program  --HTTP, one token per episode-->  server  -->  ProgramEpisode  -->  generators
      program  --reward----------------------------------------------^

`environment: gateway` starts the server in the driver and a program per episode (`programs`). `prompt_renderer` turns
requests into token ids: a request that continues an earlier one begins with exactly the tokens that were read and
sampled there. `program_player` returns the episodes of one task as the joint actions of one node, so that batches, the
batch log, learners and metrics treat them like any other node (`AgentCall.sibling` is the run).
"""

from marl_ray.registry import PlugIn

PLUGIN = PlugIn(
    names={
        "environment": {
            "gateway": "marl_ray.plugins.gateway.environment:GatewayEnvironment",
            "tool_use": "marl_ray.plugins.gateway.tool_use.environment:ToolUse",
        },
    },
    sections={
        "gateway": "marl_ray.plugins.gateway.options:GatewayConfig",
        "tool_use": "marl_ray.plugins.gateway.tool_use.options:ToolUseConfig",
    },
)
