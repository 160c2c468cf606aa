"""Settings of how agents learn; see `marl_ray.config.schema` for all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from marl_ray.config.values import AtLeast1, Decay, Discount, NotNegative, NotNegativeInt, Positive, PositiveInt, Share

Importance = Literal["auto", "none", "truncate", "mask"]
CLIP_RANGES = {"clip": (0.2, 0.28), "gspo": (3e-4, 4e-4)}
"""How far below and above 1 a loss lets its ratios go: those of DAPO and of GSPO."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditConfig:
    """What a completion is credited with, and its weight in the loss. The estimator is the agent's."""

    critic: Literal["none", "iac", "maac"] = "none"
    """What returns are measured against instead of siblings': a value of the prompts. iac: of the agent's own, by a
    head on its policy; maac: of all agents', by a model beside it that is there in training alone. none: estimators
    compare siblings."""
    critic_target: Literal["td", "mc"] = "td"
    """What a value is fitted to: td, a turn's reward and the discounted value of the next turn's prompts; mc, the whole
    return."""

    discount: Discount = 1.0
    """What a later turn's reward counts in an earlier turn's return."""
    turn_gradient_weights: tuple[float, ...] = (1.0,)
    """One weight a turn for the loss, not all 0; null: all 1."""
    normalize_advantages: bool = False
    """Whitening: advantages less their mean in the group, divided by their standard deviation there; with a critic,
    among all of an agent's answers in a turn of the batch. `advantage_normalization` is the same."""
    counterfactual: Literal["empty", "median"] = "empty"
    """With estimator difference: what stands in for an agent's answer when it is asked what the team had earned without
    it. empty: no answer at all; median: the answer of median return in its group."""
    loss_aggregation: Literal["sequence_sum", "token_mean", "constant"] = "sequence_sum"
    """sequence_sum: a completion's tokens are summed, and the sums averaged over siblings and groups; token_mean: all
    tokens of an optimizer step are averaged; constant: sequence_sum over max_new_tokens (Dr. GRPO)."""
    overlong: Literal["none", "mask", "penalty"] = "none"
    """What is made of completions cut off at max_new_tokens. mask: they have no part in the loss, only in their
    siblings' baseline; penalty: overlong_penalty is taken from what they are credited with (both as in DAPO); none:
    they are like others."""
    overlong_penalty: Positive = 1.0
    """What a completion that was cut off loses, in rewards, with overlong penalty."""
    overlong_buffer: NotNegativeInt = 0
    """With overlong penalty: the last so many tokens before max_new_tokens, over which the penalty rises from 0. 0:
    only what was cut off is punished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Adapters learn in place of all weights; they are merged before they are published. Needs the extra `lora`."""

    rank: NotNegativeInt = 0
    """Rank of the adapters; 0: there are none, and all weights learn."""
    alpha: PositiveInt | None = None
    """What an adapter adds is scaled by alpha / rank; null: 2 * rank."""
    targets: tuple[str, ...] = ()
    """Names of the layers that get one, as [q_proj, v_proj]; []: all linear layers but the output's."""

    export: Literal["merged", "adapter"] = "merged"
    """What a run leaves in models/ at its end. merged: whole models, as transformers and engines load them; adapter:
    adapters alone, as peft loads them beside the model that they are for."""

    share_base: bool = False
    """Whether policies that begin at the same model and ask the same of the cluster for their learners learn in one
    process, in turns, each with an adapter of its own: the model is in memory once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """The optimizer and its batches. The learning rate is the agent's."""

    optimizer: Literal["adamw", "adamw_8bit", "adafactor"] = "adamw"
    """adamw_8bit keeps AdamW's two numbers a weight in a byte each, so that a weight costs 10 bytes, not 16; it needs
    the extra `adamw-8bit`. adafactor keeps row and column means of squared gradients instead, so that it costs 8. Its
    learning_rate is relative to the size of a weight matrix: 1e-3 is a start."""
    lr_scheduler: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls from its peak over the run."""
    warmup_steps: NotNegativeInt = 0
    """Optimizer steps over which the learning rate rises from 0."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay."""
    adam_beta1: Decay = 0.9
    """AdamW's decay of the mean of gradients."""
    adam_beta2: Decay = 0.999
    """AdamW's decay of the mean of squared gradients."""
    critic_learning_rate: Positive | None = None
    """AdamW's peak learning rate of a critic's head, which begins at 0; the model of maac learns at the agent's. null:
    the agent's too."""
    value_loss_coef: Positive = 0.6
    """What the critic's squared error counts beside the policy's loss; with maac, whose weights are its own, it only
    scales the gradient that is cut at max_grad_norm."""
    max_grad_norm: Positive | None = 1.0
    """Gradients of a larger norm are scaled down to it; null: none are."""
    train_batch_size: PositiveInt | None = None
    """Groups in one optimizer step; null: all groups of the step."""
    loss: Literal["policy_gradient", "clip", "gspo", "m2po"] = "policy_gradient"
    """What an advantage is multiplied with. policy_gradient: log-probabilities. clip: each token's ratio of the policy
    to what it was before the batch's first optimizer step, cut at 1 - clip_low and 1 + clip_high (PPO, DAPO). gspo: the
    same with one ratio a completion; both are for several optimizer steps a batch. m2po: each token's ratio of learner
    to sampler, without those that are furthest from 1, for stale tokens."""
    clip_low: Share | None = None
    """How far below 1 a ratio may go before it has no gradient; null: 0.2 for clip, 3e-4 for gspo."""
    clip_high: Positive | None = None
    """How far above 1 a ratio may go before it has no gradient; null: 0.28 for clip, 4e-4 for gspo."""
    m2_bound: Positive = 0.04
    """Of m2po: the mean square of the log-ratios of the tokens that it keeps, at most."""
    importance: Importance = "auto"
    """What a token's importance ratio, learner's probability over sampler's, does to its weight in the loss. truncate:
    the weight is multiplied with the ratio, at most importance_bound; mask: the same, and 0 beyond the bound; none:
    nothing. auto: truncate where max_staleness is above 0 or top_p or top_k cut the sampler, else none; none with loss
    m2po, which has these ratios in itself."""
    importance_bound: AtLeast1 = 2.0
    """C: ratios are cut above it, and masked below 1 / C too."""
    reference_kl: Literal["k1_in_reward", "k3_in_reward", "k3_in_loss"] = "k1_in_reward"
    """Where the KL divergence from the reference policy counts, with reference_kl_coef above 0. k1_in_reward: a
    completion is credited with its log-ratio, policy over reference, times the coefficient less; k3_in_reward: the same
    with ratio - 1 - log ratio of each token, reference over policy, as in CoMLRL, for comparison with it: that hardly
    holds a policy near its reference (docs/explanation/losses.md); k3_in_loss: its gradient is added, as in GRPO."""
    microbatch_tokens: PositiveInt = 2048
    """Padded tokens the learner computes at once."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass, which takes longer and less memory."""

    @property
    def clip_range(self) -> tuple[float, float]:
        """The smallest and the largest ratio with a gradient in both directions, of losses that clip."""
        low, high = CLIP_RANGES[self.loss]
        return 1 - (low if self.clip_low is None else self.clip_low), 1 + (
            high if self.clip_high is None else self.clip_high
        )
