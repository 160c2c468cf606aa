"""Classes whose methods are divided among the agents, such as ClassEval's."""

from marl_ray.registry import PlugIn

PLUGIN = PlugIn(
    names={
        "environment": {"code_completion": "marl_ray.plugins.code_completion.environment:CodeCompletion"},
        "dataset.type": {"classeval": "marl_ray.plugins.code_completion.rows:CLASSEVAL"},
    },
    types_by_name={"classeval": "classeval"},
    sections={"code_completion": "marl_ray.plugins.code_completion.options:CodeCompletionConfig"},
)
