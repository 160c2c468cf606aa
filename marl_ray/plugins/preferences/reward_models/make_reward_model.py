"""`marl-ray rewardmodel`: pairs of joint answers in, a folder with a reward model out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from marl_ray.config import Config
from marl_ray.core.chat import as_text
from marl_ray.core.errors import UserError
from marl_ray.core.files import complete_folder, output_folder
from marl_ray.core.text import pluralize
from marl_ray.plugins.preferences.epochs import change, train_epochs
from marl_ray.plugins.preferences.preference_file import PreferencesFile
from marl_ray.plugins.preferences.reward_models.command import RewardModelRequest
from marl_ray.plugins.preferences.reward_models.joint_text import joint_text
from marl_ray.plugins.preferences.reward_models.options import RewardModelConfig
from marl_ray.plugins.preferences.reward_models.preference_fit import RewardModelTrainer, TextPair
from marl_ray.plugins.preferences.reward_models.reward_model import RewardModel
from marl_ray.plugins.preferences.selection import hold_out

NAME = "reward_model"


def make_reward_model(config: Config, request: RewardModelRequest) -> str:
    """Train a reward model, write it, and return a summary. The folder is complete or absent. Raises UserError."""
    settings = config.section(RewardModelConfig)
    if config.environment == NAME:
        config = replace(config, environment=settings.environment or "")
    target = output_folder(request.to)
    learning_rate = request.learning_rate
    if learning_rate is None:
        learning_rate = config.agents[0].learning_rate
    if learning_rate == 0:
        raise UserError("agent 0 has learning_rate 0: give --learning-rate")
    files = [PreferencesFile(path, config, {}) for path in request.preferences]
    pairs = text_pairs(files, request.pairs)
    prompts = [pair.prompt for pair in pairs]
    parts = hold_out(pairs, prompts, request.held_out, config.seed, "preferences")
    name = request.model or config.agents[0].name
    model = RewardModel.load(name, settings.device, settings.max_length, settings.threads)
    steps = request.epochs * math.ceil(len(parts[0]) / request.batch_size)
    trainer = RewardModelTrainer(model, config.training, learning_rate, steps, request.head_only)
    fits = train_epochs(
        "reward model",
        "preference",
        parts,
        request.epochs,
        request.batch_size,
        config.seed,
        ["reward_model"],
        trainer.step,
        trainer.fit,
    )
    with complete_folder(target) as path:
        model.save(path)
    return (
        f"reward model in {target}; {pluralize(len(pairs), 'preference')}; held-out loss: {change(fits)}; "
        f"next: --override environment={NAME} reward_model.environment={config.environment} reward_model.name={target}"
    )


def text_pairs(files: Sequence[PreferencesFile], count: int) -> list[TextPair]:
    """Return the distinct pairs of all files, `count` per prompt of an episode. Raises UserError."""
    pairs: list[TextPair] = []
    for file in files:
        for pair in file.pairs(count):
            prompts = file.prompts_of(pair)
            chosen = joint_text(prompts, pair.chosen.answers)
            rejected = joint_text(prompts, pair.rejected.answers)
            all_prompts = "\n".join(map(as_text, prompts))
            pairs.append(TextPair(all_prompts, chosen.text, rejected.text))
    return list(dict.fromkeys(pairs))
