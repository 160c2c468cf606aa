"""Section `magrpo` or `grpo` of a config.

The section is flat in a file. Here it consists of parts, so that a function can ask for the settings that it needs:
`AlgorithmConfig` is a `RolloutConfig`, a `CreditConfig`, an `OptimizerConfig`, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from marl_ray.config.values import (
    AtLeastOne,
    Decay,
    Derived,
    Discount,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    OneTo100,
    OrDefault,
    PositiveFloat,
    PositiveInt,
    Section,
    TemperatureOrGreedy,
)

Importance = Literal["auto", "none", "truncate", "mask"]


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(Section):
    """Sampling of episodes."""

    num_agents: Derived[OneTo100] = 2
    """Number of agents. null: the length of `agents`, else 2 for magrpo and 1 for grpo."""
    num_turns: OneTo100 = 1
    """Turns per episode."""
    num_generations: PositiveInt | tuple[PositiveInt, ...] = 4
    """G: completions per agent and prompt. With joint_mode aligned, also the number of joint actions per node. A list
    has one number per turn: with handoff all, [8, 1] continues each of 8 joint actions by one."""
    rollout_buffer_size: PositiveInt = 8
    """Tasks per step. Their episodes run concurrently."""
    dynamic_sampling: bool = False
    """Skip tasks in which every group of every agent has equal returns, and sample further tasks instead (DAPO)."""
    max_extra_draws: NonNegativeInt | None = None
    """Maximum number of further tasks per step with dynamic_sampling. A step that reaches it learns from the tasks
    found so far. null: 3 times rollout_buffer_size."""
    joint_mode: Literal["aligned", "cross"] | str = "aligned"
    """Pairing of completions into joint actions. aligned: joint action g is the g-th completion of every agent; cross:
    every combination of completions."""
    handoff: Literal["random", "best", "visible", "all"] | str = "random"
    """Joint action that the next turn continues from, in training. best: the highest reward, hidden tests included;
    visible: one that passes the tests in external.sandbox_slice, if any does; all: every joint action, so that an
    episode is a tree."""
    early_termination_threshold: float | None = None
    """End a training episode at a node whose mean reward exceeds this value. null: never. Evaluation runs all turns."""
    max_staleness: NonNegativeInt = 0
    """Maximum number of versions by which weights may lag behind a step when its episodes start. 0: synchronous."""
    max_failed_rewards: Fraction = 0.05
    """Maximum share of a step's rewards for which your reward function may fail, by an exception, a bad value or its
    deadline. Their joint actions are left out of their groups. A larger share ends the run; a single one does not."""
    inflight: Literal["continue", "drain"] = "continue"
    """Treatment of unfinished completions when new weights arrive. continue: continue with the new weights; drain:
    finish them first and start no others."""

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """G of each turn."""
        sizes = self.num_generations
        return (sizes,) * self.num_turns if isinstance(sizes, int) else sizes


@dataclass(frozen=True, kw_only=True)
class CreditConfig(Section):
    """Credit assignment and the weight of a completion in the loss. The estimator is a setting of the agent."""

    critic: Literal["none", "iac", "maac"] | str = "none"
    """Value function that replaces the group baseline. iac: a value head on the policy, which sees the agent's own
    prompt; maac: a separate model that sees the prompts of all agents and is used only in training; none: estimators
    compare siblings."""
    critic_body: Literal["shared", "own"] = "shared"
    """Layers below the value head of critic iac. shared: the policy's, which are trained on both losses; own: a copy of
    the initial model, used in training only, as always with maac."""
    critic_target: Literal["td", "mc"] = "td"
    """Regression target of the critic. td: the reward of a turn plus the discounted value of the next turn's prompts;
    mc: the whole return."""
    discount: Discount = 1.0
    """Discount factor per turn."""
    learn_in_turns: NonNegativeInt = 0
    """Number of steps in a row in which only one policy learns, before the next policy's turn: each policy then adapts
    to partners that do not change meanwhile. All agents answer in all steps. 0: all policies learn in every step."""
    turn_gradient_weights: Derived[tuple[float, ...]] = (1.0,)
    """Weight of each turn in the loss, not all 0. null: all 1."""
    normalize_advantages: bool = False
    """Whiten advantages: subtract the mean of the group (with a critic, of all completions of an agent in one turn of
    the batch) and divide by its standard deviation. `advantage_normalization` is an alias."""
    counterfactual: Literal["empty", "median", "siblings"] = "empty"
    """Replacement for an agent's completion when estimator difference computes the team's reward without the agent.
    empty: no completion; median: the completion of median return in its group; siblings: each other completion of its
    group, on average."""
    preference_pairs: PositiveInt | None = 1
    """With estimator madpo, the number of pairs of joint actions per group. The pairs with the largest difference of
    returns are taken. null: all pairs whose returns differ."""
    loss_aggregation: Literal["sequence_sum", "token_mean", "constant"] = "sequence_sum"
    """Aggregation of token losses. sequence_sum: sum over the tokens of a completion, then average over siblings and
    groups; token_mean: average over all tokens of an optimizer step; constant: sequence_sum divided by max_new_tokens
    (Dr. GRPO)."""
    overlong: Literal["none", "mask", "penalty"] = "none"
    """Treatment of completions truncated at max_new_tokens, as in DAPO. none: as others; mask: exclude them from the
    loss but keep them in the baseline of their siblings; penalty: subtract overlong_penalty from their return."""
    overlong_penalty: PositiveFloat = 1.0
    """With overlong penalty, the amount subtracted from the return of a truncated completion, in units of reward."""
    overlong_buffer: NonNegativeInt = 0
    """With overlong penalty, the tokens before max_new_tokens over which it rises from 0. 0: only if truncated."""
    latency_coef: NonNegativeFloat = 0.0
    """Coefficient of the latency term, in units of the scaled reward per token: each turn's return is reduced by the
    coefficient times the tokens of the turn's longest answer, for all agents alike. Where agents answer in an order,
    the longest answers of the rounds are added up, as in `tokens/critical_path`. 0: time costs nothing."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Section):
    """Optimizer, loss and batches. The learning rate is a setting of the agent."""

    optimizer: Literal["adamw", "adamw_8bit", "adafactor"] | str = "adamw"
    """Optimizer. adamw_8bit stores AdamW's two moments in one byte each, 10 bytes per weight instead of 16, and
    requires the extra `adamw-8bit`. adafactor stores row and column means of squared gradients instead, 8 bytes per
    weight; its learning_rate is relative to the size of a weight matrix, for example 1e-3."""
    lr_scheduler: Literal["constant", "linear", "cosine"] = "constant"
    """Decay of the learning rate from its peak over the run."""
    warmup_steps: NonNegativeInt = 0
    """Optimizer steps over which the learning rate rises from 0."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    adam_beta1: Decay = 0.9
    """AdamW's decay rate of the first moment."""
    adam_beta2: Decay = 0.999
    """AdamW's decay rate of the second moment."""
    critic_learning_rate: PositiveFloat | None = None
    """Peak learning rate of a critic's value head, which starts at 0. null: the agent's rate, as for maac's model."""
    value_loss_coef: PositiveFloat = 0.6
    """Coefficient of the critic's squared error. With maac it only scales the gradient that max_grad_norm clips."""
    value_clip_range: PositiveFloat | None = None
    """Range around a value before the batch's first optimizer step within which the critic's loss may fall, as in PPO.
    It matters with several optimizer steps per batch. null: no limit."""
    value_head_hidden_dim: PositiveInt | None = None
    """Width of a hidden layer with tanh in a critic's value head. null: no hidden layer."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Maximum gradient norm. null: no clipping."""
    clip_separately: bool = False
    """With critic iac on the policy's layers, clip the gradients of both losses to max_grad_norm each before they are
    added, so that a large value error does not scale the policy's gradient down. false: clip their sum."""
    train_batch_size: PositiveInt | None = None
    """Groups per optimizer step (verl: ppo_mini_batch_size). null: all groups of the step."""
    loss: Literal["policy_gradient", "clip", "gspo", "m2po", "cispo", "sapo", "gmpo", "dppo", "dppo_kl"] | str = (
        "policy_gradient"
    )
    """Policy loss. policy_gradient: advantage times log-probability; clip: PPO's clipped ratio per token, relative to
    the policy before the batch's first optimizer step, clipped at 1 - clip_low and 1 + clip_high (DAPO); gspo: the same
    with one ratio per completion (both need several optimizer steps per batch); m2po: ratio of learner to sampler per
    token, without the tokens whose ratio is furthest from 1, for stale tokens; cispo, sapo and gmpo: as clip, with
    clipped ratios as weights, with a smooth gate, and with the geometric mean of a completion's ratios; dppo and
    dppo_kl: as clip, relative to the sampler, with a bound on the change of a token's probability (total variation) or
    on the KL divergence in place of the ratio. Plug-ins add others."""
    clip_low: Fraction | None = None
    """Lower clip range, as distance below 1. null: 0.2 for clip, 3e-4 for gspo, 1 for cispo, 0.33 for gmpo. With
    dppo the largest decrease of a probability (0.15), with dppo_kl the largest divergence of tokens that become less
    likely (0.05)."""
    clip_high: PositiveFloat | None = None
    """Upper clip range, as distance above 1. null: 0.28 for clip, 4 for cispo, 4e-4 for gspo, 0.49 for gmpo.
    With dppo and dppo_kl as clip_low, for tokens that become more likely."""
    m2_bound: PositiveFloat = 0.04
    """With loss m2po, the maximum mean square of the log-ratios of the tokens that are kept."""
    importance: Importance = "auto"
    """Importance weighting of tokens by the ratio of the learner's probability to the sampler's. truncate: multiply by
    the ratio, at most importance_bound; mask: the same, with weight 0 beyond the bound; none: no weighting. auto:
    truncate if max_staleness is above 0 or if top_p, top_k or min_new_tokens truncate the sampler, else none; none with
    loss m2po, whose loss contains these ratios."""
    importance_bound: AtLeastOne = 2.0
    """C: upper bound of importance ratios. mask also excludes ratios below 1 / C."""
    entropy_coef: NonNegativeFloat = 0.0
    """Coefficient of the entropy bonus: the entropy of the policy's next-token distribution at the sampling
    temperature, in nats, summed over the tokens of a completion and weighted like the loss. It keeps agents from
    settling on one answer early. 0: no bonus."""
    reference_kl: Literal["k1_in_reward", "k3_in_reward", "k2_in_loss", "k3_in_loss"] = "k1_in_reward"
    """Form of the KL term to the reference policy, if reference_kl_coef is above 0. k1_in_reward: subtract the
    coefficient times the completion's log-ratio, policy over reference, from its return; k3_in_reward: the same with
    ratio - 1 - log ratio per token, reference over policy, as in CoMLRL, for comparison only because it hardly
    constrains the policy (docs/explanation/losses.md); k3_in_loss: add the gradient of that estimate to the loss, as in
    GRPO; k2_in_loss: add half of the squared log-ratio per token, whose gradient is that of the KL divergence of each
    token's distribution, as in on-policy distillation (docs/how-to/distil.md)."""
    microbatch_tokens: PositiveInt | None = None
    """Maximum number of padded tokens per micro-batch. null: 2048 on a CPU, 8192 on a GPU."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass, which uses less memory and more time."""

    @property
    def tokens_per_microbatch(self) -> int:
        """The value of microbatch_tokens, or its default on a CPU."""
        return 2048 if self.microbatch_tokens is None else self.microbatch_tokens

    @property
    def kl_in_loss(self) -> bool:
        """Whether the KL term is a part of the loss and not of the returns."""
        return self.reference_kl.endswith("_in_loss")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Section):
    """Evaluation on the eval split. Evaluation episodes always run all turns."""

    eval_interval: NonNegativeInt = 0
    """Steps between evaluations, in addition to those before and after training. 0: only before and after."""
    eval_num_samples: PositiveInt | None = None
    """Number of tasks to evaluate on, from the start of the eval split. null: all tasks."""
    eval_num_generations: PositiveInt = 1
    """Joint samples per evaluation task."""
    eval_temperature: TemperatureOrGreedy | None = None
    """Sampling temperature of evaluations. 0: greedy decoding; null: the temperature of each agent."""
    eval_handoff: Literal["random", "best", "visible", "all"] | str = "random"
    """Joint action that the next turn of an evaluation continues from, as `handoff`. With best,
    later turns show a rate that no user of the agents can reach, because it chooses by hidden tests."""


@dataclass(frozen=True, kw_only=True)
class LoopConfig(Section):
    """Length of the run, checkpoints and logging."""

    num_train_epochs: PositiveInt | None = 1
    """Passes over the training tasks. null: no limit, as many as max_steps needs."""
    max_steps: PositiveInt | None = None
    """Maximum number of steps, regardless of epochs. null: no limit."""
    save_steps: PositiveInt = 50
    """Steps between checkpoints. The last step always writes a checkpoint."""
    logging_steps: PositiveInt = 1
    """Print every n-th step. metrics.jsonl contains all steps. A terminal also shows an episode of the first
    evaluation, and one after every 25 printed steps."""
    max_bad_steps: PositiveInt = 3
    """End the run after this many consecutive steps whose loss or gradient is not finite. Such steps are skipped."""
    max_logprob_gap: PositiveFloat | None = 0.1
    """Maximum mean difference between the log-probabilities of the engine and the learner on the same tokens, in nats
    per token, checked before the first step and when an engine starts later. null: no check."""


@dataclass(frozen=True, kw_only=True)
class AgentLearning(Section):
    """Settings of learning that an agent may have for itself."""

    learning_rate: OrDefault[NonNegativeFloat] = 2e-5
    """Peak learning rate. 0 freezes an agent. `agent_learning_rate` is an alias."""
    max_new_tokens: PositiveInt = 256
    """Maximum number of tokens per completion."""
    min_new_tokens: NonNegativeInt = 0
    """Minimum number of tokens per completion: the engine samples no end-of-sequence token before it, and ignores stop
    texts. Above 0, sampling differs from the learner, which `importance` corrects."""
    reference_kl_coef: OrDefault[NonNegativeFloat] = 0.0
    """Coefficient of the KL divergence to the reference policy, in units of reward per nat. 0: no reference policy."""
    reference_model: str | None = None
    """Reference policy, or teacher: hub id, local folder such as `runs/teacher/models/agent_0`, or bundled model, with
    the vocabulary of the agent's model. Agents that share a policy may have different ones. null: the agent's model
    before training."""
    estimator: Derived[str] = "magrpo"
    """Advantage estimator. null: the one named like the section. `advantage_mode` (mean, rloo, max, raw) is an
    alias."""
    preference_beta: PositiveFloat = 0.1
    """With estimator madpo, beta: the factor of log-probabilities in the loss. A pair counts less, the more likely its
    chosen answers have become, sooner for a large beta."""
    policy: NonNegativeInt | None = None
    """Number of an earlier agent whose policy (weights) this agent shares. null, or the agent's own number: a policy of
    its own. Agents with one policy share one learner, one group of generators and one update from all their groups, and
    inherit omitted settings from the policy's first agent. 0 for the run: all agents share one policy."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(AgentLearning, LoopConfig, EvaluationConfig, OptimizerConfig, CreditConfig, RolloutConfig):
    """Rollouts, credit assignment, the optimizer, evaluation and the training loop."""
