"""A critic: a value of each state, which a completion's return is measured against instead of its siblings'.

V(s) is linear in the model's last hidden state at the state's last token, and 0 before training. With target y of
completion g, its advantage is A = y - V(s):

    td   y = r + discount * (mean over the states that it led to of V(s')), r where the episode was over
    mc   y = r + discount * (mean over the children's returns): the return, as estimators rank it

With normalize_advantages it is whitened: less the mean of the advantages of all groups of its turn in the batch, over
their standard deviation.

The critic's loss is value_loss_coef * (mean over groups and siblings of (y - V(s))^2). Values in targets and advantages
are those before the batch's first optimizer step, in whatever portions its groups come; no gradient flows through them.

Sutton and Barto, "Reinforcement learning", chapter 13.5; of turns of language agents as in CoMLRL 1.4 ("LLM
collaboration with multi-agent reinforcement learning", Liu et al., 2025): `marl_ray.learning.iac` and
`marl_ray.learning.maac` say which model reads which state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Any

import torch

from marl_ray.config import AgentConfig, CreditConfig, OptimizerConfig
from marl_ray.core.batch import CriticSample, CriticStats, Group
from marl_ray.credit.groups import critic_needs_whole_batch, whiten_by_turn
from marl_ray.learning.attention import PackedGroup
from marl_ray.learning.micro_batches import PADDING
from marl_ray.learning.optimizer import apply_settings, clip_gradients, make_optimizer
from marl_ray.learning.policy_model import LogprobModel, compute_in

StateIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ValueEstimate:
    """A group's state, its value when the group was credited, and the targets [G] of its completions."""

    state: StateIds
    value: float
    targets: tuple[float, ...]


class Critic:
    """A head on `body`, and AdamW over the parameters that are the critic's alone: the head, and with `own_body` those
    of the body that learn. Whoever else has the body's parameters finds the gradient of the critic's loss added to
    theirs."""

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
        self.compares = critic_needs_whole_batch(credit)
        """Whether a group's weights follow from all groups of the batch."""
        self.head = torch.nn.Linear(body.model.get_output_embeddings().in_features, 1).to(body.model.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self._of_body = {n: p for n, p in body.model.named_parameters() if own_body and p.requires_grad}
        groups = [(list(self.head.parameters()), settings.critic_learning_rate or agent.learning_rate)]
        if own_body:
            groups.append((list(self._of_body.values()), agent.learning_rate))
        self.parameters = [parameter for parameters, _ in groups for parameter in parameters]
        self._peaks = [peak for _, peak in groups]
        self.optimizer, self.schedule = make_optimizer(groups, settings, total_steps)

    def modules(self) -> list[torch.nn.Module]:
        """What it computes with; others may have the body too."""
        return [self.head, self._body.model]

    def credited(self, groups: Sequence[Group]) -> tuple[list[Group], list[ValueEstimate]]:
        """The groups with weights that follow from their advantages, and what was found of them. Each state is read by
        itself: in whatever portions they come, the bits are the same; with normalize_advantages they are all of a
        batch's."""
        valued = [self._valued(group) for group in groups]
        found = [[target - one.value for target in one.targets] for one in valued]
        if self.compares:
            found = whiten_by_turn([group.turn for group in groups], found)
        return [_weighed(*pair) for pair in zip(groups, found, strict=True)], valued

    def backward(self, valued: Sequence[ValueEstimate]) -> float:
        """Add the gradient of the critic's loss on the groups of one mini-batch, which clears that of its own
        parameters first. Returns the loss before its coefficient; 0 without a group."""
        self.optimizer.zero_grad()
        total = 0.0
        for portion in self._portions(valued):
            values = self._values([one.state for one in portion])
            errors = [
                (torch.tensor(one.targets, device=value.device) - value).square().mean()
                for one, value in zip(portion, values, strict=True)
            ]
            loss = torch.stack(errors).sum() / len(valued)
            (self._settings.value_loss_coef * loss).backward()
            total += loss.item()
        return total

    def clip(self) -> float:
        """Scale its own parameters' gradients down to `max_grad_norm`. Returns their norm before."""
        return clip_gradients(self.parameters, self._settings)

    def step(self) -> None:
        """One optimizer step of its own parameters."""
        self.optimizer.step()
        self.schedule.step()

    def state(self) -> dict[str, Any]:
        """All that `load` needs to go on exactly."""
        return {
            "head": self.head.state_dict(),
            "body": {name: parameter.detach() for name, parameter in self._of_body.items()},
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.head.load_state_dict(state["head"])
        with torch.no_grad():
            for name, parameter in self._of_body.items():
                parameter.copy_(state["body"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        apply_settings(self.optimizer, self.schedule, self._peaks, self._settings)

    def _valued(self, group: Group) -> ValueEstimate:
        if group.critic_sample is None:
            raise ValueError("a critic learns from groups with their experience, and this one has none")
        targets = group.returns if self._credit.critic_target == "mc" else self._bootstrapped(group.critic_sample)
        return ValueEstimate(group.critic_sample.state, self._value(group.critic_sample.state), targets)

    def _bootstrapped(self, experience: CriticSample) -> tuple[float, ...]:
        """Targets that go on with the value of what followed."""
        return tuple(
            reward + (self._credit.discount * fmean(map(self._value, states)) if states else 0.0)
            for reward, states in zip(experience.rewards, experience.successors, strict=True)
        )

    @torch.no_grad()
    def _value(self, state: StateIds) -> float:
        return float(self._values([state]))

    def _values(self, states: Sequence[StateIds]) -> torch.Tensor:
        """V of each, [S], float32."""
        with compute_in(self._body.dtype, self._body.model.device):
            hidden = last_hidden(self._body, states)
        return self.head(hidden.float()).squeeze(-1)

    def _portions(self, valued: Sequence[ValueEstimate]) -> Iterator[list[ValueEstimate]]:
        """In their order, as many at a time as microbatch_tokens allows, padding counted; at least one."""
        pending: list[ValueEstimate] = []
        for one in valued:
            longest = max(len(other.state) for other in (*pending, one))
            if pending and longest * (len(pending) + 1) > self._settings.microbatch_tokens:
                yield pending
                pending = []
            pending.append(one)
        if pending:
            yield pending


def last_hidden(logprob_model: LogprobModel, states: Sequence[StateIds]) -> torch.Tensor:
    """The model's last hidden state at the last token of each, [S, H]."""
    model, lengths = logprob_model.model, torch.tensor([len(state) for state in states])
    if logprob_model.layout == "packed":
        position_ids = torch.cat([torch.arange(int(length)) for length in lengths])
        hidden = model.base_model(
            input_ids=torch.tensor([list(chain(*states))]).to(model.device),
            position_ids=position_ids.unsqueeze(0).to(model.device),
            groups=tuple(PackedGroup.of(len(state), ()).to(model.device) for state in states),
            use_cache=False,
        ).last_hidden_state
        return hidden[0, lengths.cumsum(0) - 1]
    input_ids = torch.full((len(states), int(lengths.max())), PADDING)
    for row, state in zip(input_ids, states, strict=True):
        row[: len(state)] = torch.tensor(state)
    hidden = model.base_model(input_ids=input_ids.to(model.device), use_cache=False).last_hidden_state
    return hidden[torch.arange(len(states)), lengths - 1]


def _weighed(group: Group, advantages: Sequence[float]) -> Group:
    """Without estimator a group's weights are the shares of its advantages."""
    weights = (share * advantage for share, advantage in zip(group.weights, advantages, strict=True))
    return replace(group, weights=tuple(weights))


def critic_stats(losses: Sequence[float], valued: Sequence[ValueEstimate]) -> CriticStats | None:
    """Of the mini-batches of one update; None without a group."""
    if not valued:
        return None
    pairs = [(target, one.value) for one in valued for target in one.targets]
    return CriticStats(fmean(losses), fmean(one.value for one in valued), explained_variance(pairs))


def explained_variance(pairs: Sequence[tuple[float, float]]) -> float | None:
    """1 - Var(target - value) / Var(target) of (target, value): 1 where values say all, 0 where a constant would say
    as much; None where targets do not differ."""
    spread = _variance([target for target, _ in pairs])
    return 1 - _variance([target - value for target, value in pairs]) / spread if spread else None


def _variance(numbers: Sequence[float]) -> float:
    mean = fmean(numbers)
    return fmean((number - mean) ** 2 for number in numbers)
