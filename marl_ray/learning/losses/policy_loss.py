"""The base class of losses: how the tokens of a micro-batch become a loss.

A loss is a sum over tokens, because gradients are accumulated over micro-batches of any size and divided by the
mini-batch's normalizer at the end. docs/explanation/losses.md compares the losses.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from marl_ray.core.errors import UserError
from marl_ray.credit.requirements import Requirements

if TYPE_CHECKING:
    from torch import Tensor

    from marl_ray.config import OptimizerConfig


@dataclass(frozen=True, slots=True)
class LossTokens:
    """The S tokens of one micro-batch, with padding, whose weight is 0."""

    logprobs: Tensor
    """Log-probabilities of the policy, with a gradient, [S]."""
    old_logprobs: Tensor
    """Log-probabilities before the batch's first optimizer step, [S]; later mini-batches have them only if the loss
    requires `several_optimizer_steps` or `old_logprobs`."""
    behaviour_logprobs: Tensor
    """Log-probabilities of the sampler, [S]."""
    weights: Tensor
    """Product of advantage, loss share and importance factor, [S], without a gradient."""
    owners: Tensor
    """Number of each token's completion in the micro-batch, from 0, [S]."""


class LossRatios(NamedTuple):
    """The ratios in a loss, for the metrics `clip_fraction`, `policy_ratio_*` and `policy_kl`; all [S]."""

    log_ratios: Tensor
    ratios: Tensor
    clipped: Tensor
    """True for tokens without a gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOptions:
    """The options of a loss. Their names are keys of the config's section, and their values the defaults of the loss.

    Other constants of a plug-in are attributes of its class, or settings of its own section.

    Example:
        >>> from marl_ray.config import OptimizerConfig
        >>> ClipOptions(clip_low=0.2, clip_high=0.28).with_settings(OptimizerConfig(clip_high=0.3))
        ClipOptions(clip_low=0.2, clip_high=0.3)
    """

    def with_settings(self, settings: OptimizerConfig) -> Self:
        """Return the options, with the values that the settings give."""
        given = {}
        for option in fields(self):
            if not hasattr(settings, option.name):
                raise UserError(
                    f"option {option.name} of a loss is no setting of magrpo: make it an attribute of the class"
                )
            value = getattr(settings, option.name)
            if value is not None:
                given[option.name] = value
        return replace(self, **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipOptions(LossOptions):
    """The bounds of a ratio, as distances from 1."""

    clip_low: float
    """Largest distance of a ratio below 1."""
    clip_high: float
    """Largest distance of a ratio above 1."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest ratio."""
        return 1 - self.clip_low, 1 + self.clip_high


class PolicyLoss:
    """A policy loss of one mini-batch. Create a subclass and implement `token_loss`."""

    requirements: ClassVar[Requirements] = Requirements()
    """Requirements of the other settings of a run, by the names in `marl_ray.credit.requirement_table`."""
    defaults: ClassVar[LossOptions] = LossOptions()
    """Options with their defaults. An object has `options`, with the values of a run."""
    needs_whole_mini_batch: ClassVar[bool] = False
    """Call `start_tokens` first, at the cost of one more forward pass and of no overlap with the rollout."""
    options: Any

    def __init__(self, settings: OptimizerConfig) -> None:
        self.settings = settings
        self.options = self.default_options().with_settings(settings)

    @classmethod
    def default_options(cls) -> LossOptions:
        """Return the options with their defaults, which a plug-in may declare as the requirement `clip_range`."""
        if cls.requirements.clip_range is None:
            return cls.defaults
        low, high = cls.requirements.clip_range
        return ClipOptions(clip_low=low, clip_high=high)

    def start_tokens(self, tokens: LossTokens) -> None:
        """Receive all tokens of the mini-batch, on the CPU and without a gradient, before its first gradient."""
        self.start(tokens.logprobs - tokens.behaviour_logprobs)

    def start(self, log_ratios: Tensor) -> None:
        """Receive log pi - log behaviour of all tokens, for a loss that needs no other property of them."""

    def token_loss(self, tokens: LossTokens) -> tuple[Tensor, LossRatios | None]:
        """Return the sum of the tokens' losses, and ratios for the metrics or None."""
        raise NotImplementedError
