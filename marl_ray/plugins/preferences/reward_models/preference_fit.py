"""Training of a reward model on joint preferences, with the loss of Bradley and Terry.

The probability that a joint answer is preferred to another one is the sigmoid of the difference of their scores
(Bradley and Terry, 1952), so the loss of a pair is

    L = - log sigmoid(score(chosen) - score(rejected))

MARLHF of CoMLRL 1.4.3 has this loss too. A constant added to all scores changes no loss, so the head has no bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid

from marl_ray.config import OptimizerConfig
from marl_ray.core.errors import UserError
from marl_ray.learning.optimizer import clip_gradients, make_optimizer
from marl_ray.plugins.preferences.epochs import HeldOutFit
from marl_ray.plugins.preferences.reward_models.reward_model import RewardModel

PAIRS_AT_ONCE = 4
"""Pairs whose scores are computed together; gradients are accumulated."""


@dataclass(frozen=True, slots=True)
class TextPair:
    """The texts of two joint answers to the same prompts; the first one is preferred."""

    prompt: str
    chosen: str
    rejected: str


class RewardModelTrainer:
    """Trains `model` for `steps` optimizer steps. With `head_only` only the head learns."""

    def __init__(
        self, model: RewardModel, settings: OptimizerConfig, learning_rate: float, steps: int, head_only: bool = False
    ) -> None:
        self.model = model
        self._settings = settings
        if head_only:
            model.model.requires_grad_(False)
            model.model.score.requires_grad_(True)
        self._parameters = [parameter for parameter in model.model.parameters() if parameter.requires_grad]
        self._optimizer, self._schedule = make_optimizer([(self._parameters, learning_rate)], settings, steps)

    def backward(self, pairs: Sequence[TextPair]) -> float:
        """Set the gradient of the mean loss of the pairs, and return the loss."""
        self._optimizer.zero_grad()
        total = 0.0
        for start in range(0, len(pairs), PAIRS_AT_ONCE):
            part = pairs[start : start + PAIRS_AT_ONCE]
            rows = self.model.token_ids(texts(part))
            chosen, rejected = self.model.scores(rows).split(len(part))
            loss = -logsigmoid(chosen - rejected).sum() / len(pairs)
            loss.backward()
            total += loss.item()
        return total

    def step(self, pairs: Sequence[TextPair]) -> float:
        """Take one optimizer step and return the loss before. Raises UserError for a loss that is not finite."""
        loss = self.backward(pairs)
        norm = clip_gradients(self._parameters, self._settings)
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise UserError("the loss of the reward model is not finite: lower --learning-rate")
        self._optimizer.step()
        self._schedule.step()
        return loss

    def fit(self, pairs: Sequence[TextPair]) -> HeldOutFit:
        """Return loss and accuracy on these pairs, without training."""
        scores = self.model.score(texts(pairs))
        chosen, rejected = torch.tensor(scores).split(len(pairs))
        differences = chosen - rejected
        loss = -logsigmoid(differences).mean()
        accuracy = (differences > 0).double().mean()
        return HeldOutFit(float(loss), float(accuracy))


def texts(pairs: Sequence[TextPair]) -> list[str]:
    """Return the chosen texts of all pairs, then the rejected ones."""
    chosen = [pair.chosen for pair in pairs]
    rejected = [pair.rejected for pair in pairs]
    return chosen + rejected
