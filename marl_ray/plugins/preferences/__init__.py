"""Learning from given answers: supervised warm start, direct preferences, and reward models of joint preferences."""

from marl_ray.registry import PlugIn, ShellCommand

PLUGIN = PlugIn(
    names={"environment": {"reward_model": "marl_ray.plugins.preferences.reward_models.environment:LearnedReward"}},
    sections={"reward_model": "marl_ray.plugins.preferences.reward_models.options:RewardModelConfig"},
    commands={
        "warmstart": ShellCommand(
            "marl_ray.plugins.preferences.command",
            "fine-tune the agents on good answers, of a run or of a file, before training",
        ),
        "rewardmodel": ShellCommand(
            "marl_ray.plugins.preferences.reward_models.command", "train a reward model on joint preferences"
        ),
    },
)
