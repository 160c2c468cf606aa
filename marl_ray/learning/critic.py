"""A critic: a value of each state that serves as the baseline of returns, in place of siblings.

V(s) is linear in the model's last hidden state at the state's last token, and 0 before training. Values in targets and
advantages are those before the batch's first optimizer step and carry no gradient (docs/explanation/actor_critic.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Any

import torch

from marl_ray.config import AgentConfig, CreditConfig, OptimizerConfig
from marl_ray.core.batch import CriticSample, CriticStats, Group
from marl_ray.credit import CRITICS
from marl_ray.credit.advantages import advantages_by_turn
from marl_ray.credit.groups import critic_needs_whole_batch
from marl_ray.learning.attention import PackedGroup, PackedGroups
from marl_ray.learning.micro_batches import PADDING, split_if_full
from marl_ray.learning.optimizer import apply_settings, clip_gradients, make_optimizer
from marl_ray.learning.policy_model import LogprobModel

StateIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ValueEstimate:
    """A group's state, its value before the update, and the targets of its completions, [G]."""

    state: StateIds
    value: float
    targets: tuple[float, ...]


class Critic:
    """A value head on `body`, and an optimizer of the head and, with `own_body`, of the body's trainable parameters.

    A body that is shared with the policy receives the gradient of the critic's loss in addition to the policy's.
    """

    def __init__(
        self,
        body: LogprobModel,
        own_body: bool,
        agent: AgentConfig,
        credit: CreditConfig,
        settings: OptimizerConfig,
        total_steps: int,
    ) -> None:
        self._body, self._credit, self._settings = body, credit, settings
        self.needs_whole_batch = critic_needs_whole_batch(credit)
        """Advantages depend on all groups of the batch."""
        self.head = value_head(body.model.get_output_embeddings().in_features, settings).to(body.model.device)
        self._of_body = {n: p for n, p in body.model.named_parameters() if own_body and p.requires_grad}
        groups = [(list(self.head.parameters()), settings.critic_learning_rate or agent.learning_rate)]
        if own_body:
            groups.append((list(self._of_body.values()), agent.learning_rate))
        self.parameters = [parameter for parameters, _ in groups for parameter in parameters]
        self._peaks = [peak for _, peak in groups]
        self.optimizer, self.schedule = make_optimizer(groups, settings, total_steps)

    def modules(self) -> list[torch.nn.Module]:
        """Return the head and the body, which may be shared with the policy."""
        return [self.head, self._body.model]

    def credit_groups(self, groups: Sequence[Group]) -> tuple[list[Group], list[ValueEstimate]]:
        """Return the groups with weights from their advantages, and the value estimates.

        Each state is evaluated by itself, so the result is bit-identical however groups are split into calls. With
        normalize_advantages the groups must be all groups of a batch.
        """
        estimates = [self._estimate(group) for group in groups]
        advantages = [[target - one.value for target in one.targets] for one in estimates]
        if self.needs_whole_batch:
            advantages = advantages_by_turn([group.turn for group in groups], advantages)
        return [_with_weights(*pair) for pair in zip(groups, advantages, strict=True)], estimates

    def backward(self, estimates: Sequence[ValueEstimate]) -> float:
        """Clear the gradients of the critic's own parameters, add the gradient of the critic's loss on a mini-batch,
        and return the loss before its coefficient (0 without groups)."""
        self.optimizer.zero_grad()
        total = 0.0
        most = self._settings.tokens_per_microbatch  # padded
        for portion in split_if_full(estimates, lambda part: max(len(e.state) for e in part) * len(part) > most):
            values = self._values([one.state for one in portion])
            errors = [self._error(one, value).mean() for one, value in zip(portion, values, strict=True)]
            loss = torch.stack(errors).sum() / len(estimates)
            (self._settings.value_loss_coef * loss).backward()
            total += loss.item()
        return total

    def _error(self, estimate: ValueEstimate, value: torch.Tensor) -> torch.Tensor:
        """Return the squared error of a value for each target, [G]. With `value_clip_range` it is at least the error of
        the value within that range of the value before the batch (PPO2; Dhariwal et al., 2017, "OpenAI Baselines")."""
        targets = torch.tensor(estimate.targets, device=value.device)
        errors = (targets - value).square()
        if (limit := self._settings.value_clip_range) is None:
            return errors
        within = estimate.value + (value - estimate.value).clamp(-limit, limit)
        return torch.maximum(errors, (targets - within).square())

    def clip(self) -> float:
        """Clip the gradients of the critic's own parameters, and return their norm before."""
        return clip_gradients(self.parameters, self._settings)

    def step(self) -> None:
        self.optimizer.step()
        self.schedule.step()

    def state(self) -> dict[str, Any]:
        """Return the complete state for `load`."""
        return {
            "head": self.head.state_dict(),
            "body": {name: parameter.detach() for name, parameter in self._of_body.items()},
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.head.load_state_dict(state["head"])
        with torch.no_grad():
            for name, parameter in self._of_body.items():
                parameter.copy_(state["body"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        apply_settings(self.optimizer, self.schedule, self._peaks)

    def _estimate(self, group: Group) -> ValueEstimate:
        if group.critic_sample is None:
            raise ValueError("a critic needs groups with a critic sample, and this group has none")
        targets = group.returns if self._credit.critic_target == "mc" else self._td_targets(group.critic_sample)
        return ValueEstimate(group.critic_sample.state, self._value(group.critic_sample.state), targets)

    def _td_targets(self, sample: CriticSample) -> tuple[float, ...]:
        return tuple(
            reward + (self._credit.discount * fmean(map(self._value, states)) if states else 0.0)
            for reward, states in zip(sample.rewards, sample.successors, strict=True)
        )

    @torch.no_grad()
    def _value(self, state: StateIds) -> float:
        return float(self._values([state]))

    def _values(self, states: Sequence[StateIds]) -> torch.Tensor:
        """Return V of each state, [S], float32."""
        return self.head(last_hidden(self._body, states).float()).squeeze(-1)


def value_head(features: int, settings: OptimizerConfig) -> torch.nn.Module:
    """Return a head whose values are 0: a linear layer, after a hidden layer with tanh if one is configured."""
    last = torch.nn.Linear(settings.value_head_hidden_dim or features, 1)
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.zeros_(last.bias)
    if settings.value_head_hidden_dim is None:
        return last
    hidden = torch.nn.Linear(features, settings.value_head_hidden_dim)
    torch.nn.init.normal_(hidden.weight, std=features**-0.5, generator=torch.Generator().manual_seed(0))
    torch.nn.init.zeros_(hidden.bias)
    return torch.nn.Sequential(hidden, torch.nn.Tanh(), last)


def last_hidden(logprob_model: LogprobModel, states: Sequence[StateIds]) -> torch.Tensor:
    """Return the model's last hidden state at the last token of each state, [S, H]."""
    model, lengths = logprob_model.model, torch.tensor([len(state) for state in states])
    if logprob_model.layout == "packed":
        position_ids = torch.cat([torch.arange(int(length)) for length in lengths])
        hidden = model.base_model(
            input_ids=torch.tensor([list(chain(*states))]).to(model.device),
            position_ids=position_ids.unsqueeze(0).to(model.device),
            groups=PackedGroups(PackedGroup.of(len(state), ()) for state in states).to(model.device),
            use_cache=False,
        ).last_hidden_state
        return hidden[0, lengths.cumsum(0) - 1]
    input_ids = torch.full((len(states), int(lengths.max())), PADDING)
    for row, state in zip(input_ids, states, strict=True):
        row[: len(state)] = torch.tensor(state)
    hidden = model.base_model(input_ids=input_ids.to(model.device), use_cache=False).last_hidden_state
    return hidden[torch.arange(len(states)), lengths - 1]


def make_critic(
    policy: LogprobModel,
    agent: AgentConfig,
    credit: CreditConfig,
    settings: OptimizerConfig,
    total_steps: int,
    load_body: Callable[[], Any],
) -> Critic | None:
    """Return the configured critic, or None. `load_body` returns a new copy of the initial model.

    Each learner has its own critic, so that it remains a function of its own batches.
    """
    critic: Critic | None = CRITICS.get(credit.critic)(policy, agent, credit, settings, total_steps, load_body)
    return critic


def no_critic(*arguments: Any) -> None:
    """Return None: estimators compare siblings."""


def independent_critic(
    policy: LogprobModel,
    agent: AgentConfig,
    credit: CreditConfig,
    settings: OptimizerConfig,
    total_steps: int,
    load_body: Callable[[], Any],
) -> Critic:
    """Return the critic iac (independent actor-critic): a value head on the policy's own layers.

    The layers are trained on the sum of both losses; only the head has an optimizer of its own. With `critic_body` own
    the layers are a copy, as for maac.
    """
    if credit.critic_body == "own":
        return central_critic(policy, agent, credit, settings, total_steps, load_body)
    return Critic(policy, False, agent, credit, settings, total_steps)


def central_critic(
    policy: LogprobModel,
    agent: AgentConfig,
    credit: CreditConfig,
    settings: OptimizerConfig,
    total_steps: int,
    load_body: Callable[[], Any],
) -> Critic:
    """Return the critic maac (multi-agent actor-critic): a value head on a copy of the initial model, which reads the
    prompts of all agents."""
    body = load_body()
    body.set_attn_implementation(policy.model.config._attn_implementation)
    if settings.gradient_checkpointing:
        body.gradient_checkpointing_enable()
    return Critic(replace(policy, model=body), True, agent, credit, settings, total_steps)


def _with_weights(group: Group, advantages: Sequence[float]) -> Group:
    weights = (share * advantage for share, advantage in zip(group.weights, advantages, strict=True))
    return replace(group, weights=tuple(weights))


def critic_stats(losses: Sequence[float], estimates: Sequence[ValueEstimate]) -> CriticStats | None:
    """Return the critic's statistics of one update, or None without groups."""
    if not estimates:
        return None
    pairs = [(target, one.value) for one in estimates for target in one.targets]
    return CriticStats(fmean(losses), fmean(one.value for one in estimates), explained_variance(pairs))


def explained_variance(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return 1 - Var(target - value) / Var(target) of (target, value) pairs; None if all targets are equal."""
    spread = _variance([target for target, _ in pairs])
    return 1 - _variance([target - value for target, value in pairs]) / spread if spread else None


def _variance(numbers: Sequence[float]) -> float:
    mean = fmean(numbers)
    return fmean((number - mean) ** 2 for number in numbers)
