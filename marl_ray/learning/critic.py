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

    @property
    def advantages(self) -> list[float]:
        """The targets of the completions less the value of the state."""
        return [target - self.value for target in self.targets]


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
        self._body = body
        self._credit = credit
        self._settings = settings
        self.needs_whole_batch = critic_needs_whole_batch(credit)
        """Advantages depend on all groups of the batch."""
        self.head = value_head(body.model.get_output_embeddings().in_features, settings).to(body.model.device)
        groups = [(list(self.head.parameters()), settings.critic_learning_rate or agent.learning_rate)]
        self._of_body: dict[str, torch.nn.Parameter] = {}
        """Trainable parameters of an own body by name."""
        if own_body:
            self._of_body = {name: p for name, p in body.model.named_parameters() if p.requires_grad}
            groups.append((list(self._of_body.values()), agent.learning_rate))
        self.parameters = [*self.head.parameters(), *self._of_body.values()]
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
        advantages = [estimate.advantages for estimate in estimates]
        if self.needs_whole_batch:
            advantages = advantages_by_turn([group.turn for group in groups], advantages)
        credited = [_with_weights(*pair) for pair in zip(groups, advantages, strict=True)]
        return credited, estimates

    def backward(self, estimates: Sequence[ValueEstimate]) -> float:
        """Clear the gradients of the critic's own parameters, add the gradient of the critic's loss on a mini-batch,
        and return the loss before its coefficient (0 without groups)."""
        self.optimizer.zero_grad()
        total = 0.0

        def is_full(part: list[ValueEstimate]) -> bool:
            padded = len(part) * max(len(estimate.state) for estimate in part)
            return padded > self._settings.tokens_per_microbatch

        for portion in split_if_full(estimates, is_full):
            values = self._values([estimate.state for estimate in portion])
            errors = []
            for estimate, value in zip(portion, values, strict=True):
                errors.append(self._error(estimate, value).mean())
            loss = torch.stack(errors).sum() / len(estimates)
            (self._settings.value_loss_coef * loss).backward()
            total += loss.item()
        return total

    def _error(self, estimate: ValueEstimate, value: torch.Tensor) -> torch.Tensor:
        """Return the squared error of a value for each target, [G]. With `value_clip_range` it is at least the error of
        the value within that range of the value before the batch (PPO2; Dhariwal et al., 2017, "OpenAI Baselines")."""
        targets = torch.tensor(estimate.targets, device=value.device)
        errors = (targets - value).square()
        limit = self._settings.value_clip_range
        if limit is None:
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
        # The settings of a resumed run may differ from the stored ones.
        apply_settings(self.optimizer, self.schedule, self._peaks)

    def _estimate(self, group: Group) -> ValueEstimate:
        if group.critic_sample is None:
            raise ValueError("a critic needs groups with a critic sample, and this group has none")
        targets = group.returns if self._credit.critic_target == "mc" else self._td_targets(group.critic_sample)
        return ValueEstimate(group.critic_sample.state, self._value(group.critic_sample.state), targets)

    def _td_targets(self, sample: CriticSample) -> tuple[float, ...]:
        targets = []
        for reward, successors in zip(sample.rewards, sample.successors, strict=True):
            future = 0.0  # after the last turn
            if successors:
                future = self._credit.discount * fmean(map(self._value, successors))
            targets.append(reward + future)
        return tuple(targets)

    @torch.no_grad()
    def _value(self, state: StateIds) -> float:
        return float(self._values([state]))

    def _values(self, states: Sequence[StateIds]) -> torch.Tensor:
        """Return V of each state, [S], float32."""
        return self.head(last_hidden(self._body, states).float()).squeeze(-1)


def value_head(features: int, settings: OptimizerConfig) -> torch.nn.Module:
    """Return a head whose values are 0: a linear layer, after a hidden layer with tanh if one is configured."""
    width = settings.value_head_hidden_dim
    last = torch.nn.Linear(width or features, 1)
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.zeros_(last.bias)
    if width is None:
        return last
    hidden = torch.nn.Linear(features, width)
    # A stream of its own, so that the head draws the same weights whatever was initialised before it.
    torch.nn.init.normal_(hidden.weight, std=features**-0.5, generator=torch.Generator().manual_seed(0))
    torch.nn.init.zeros_(hidden.bias)
    return torch.nn.Sequential(hidden, torch.nn.Tanh(), last)


def last_hidden(logprob_model: LogprobModel, states: Sequence[StateIds]) -> torch.Tensor:
    """Return the model's last hidden state at the last token of each state, [S, H]."""
    model = logprob_model.model
    lengths = torch.tensor([len(state) for state in states])
    if logprob_model.layout == "packed":
        position_ids = torch.cat([torch.arange(len(state)) for state in states])
        groups = PackedGroups(PackedGroup.of(len(state), ()) for state in states)  # prompts without completions
        hidden = model.base_model(
            input_ids=torch.tensor([list(chain(*states))]).to(model.device),
            position_ids=position_ids.unsqueeze(0).to(model.device),
            groups=groups.to(model.device),
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
    # The weights of a group are the shares of its completions in the loss until the advantages are known.
    weights = (share * advantage for share, advantage in zip(group.weights, advantages, strict=True))
    return replace(group, weights=tuple(weights))


def critic_stats(losses: Sequence[float], estimates: Sequence[ValueEstimate]) -> CriticStats | None:
    """Return the critic's statistics of one update, or None without groups."""
    if not estimates:
        return None
    pairs = []
    for estimate in estimates:
        for target in estimate.targets:
            pairs.append((target, estimate.value))
    mean_value = fmean(estimate.value for estimate in estimates)
    return CriticStats(fmean(losses), mean_value, explained_variance(pairs))


def explained_variance(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return 1 - Var(target - value) / Var(target) of (target, value) pairs; None if all targets are equal."""
    spread = _variance([target for target, _ in pairs])
    if not spread:
        return None
    return 1 - _variance([target - value for target, value in pairs]) / spread


def _variance(numbers: Sequence[float]) -> float:
    mean = fmean(numbers)
    return fmean((number - mean) ** 2 for number in numbers)
