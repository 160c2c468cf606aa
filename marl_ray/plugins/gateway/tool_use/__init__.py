"""Tools inside a turn: agents of any environment call tools before they answer.

      prompts of the environment -> ToolLoop -> agents            (token ids as in `marl_ray.plugins.gateway`)
                                     |   ^
                    tool calls in an |   | results, as observation tokens
                         answer      v   |
                       sandbox workers, feedback of the environment, functions of the user
                                     |
      last answers -> environment -> reward

An episode is played like the episode of a program (`marl_ray.plugins.gateway`), with a loop of this package in place of
the program and without a server. A conversation with its tool calls and results is therefore one row of exactly the
sampled ids, and only sampled tokens are trained. docs/how-to/tools.md describes its use.
"""
