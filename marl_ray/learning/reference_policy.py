"""The reference policy: a frozen model, near which a KL penalty keeps the policy. By default it is the initial model.

The penalty is part of the returns (`Group.returns`) or an additional term of the loss over all completions. The
policy's own log-probabilities are recomputed and not taken from the sampler: a sampler truncated by top_p reports
larger values at every token, which would penalise length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from marl_ray.config import AgentConfig, CreditConfig, ModelConfig, OptimizerConfig
from marl_ray.core.batch import Group
from marl_ray.credit.groups import group_shares, weight_group
from marl_ray.learning.entropy_bonus import entropy_weights, of_group
from marl_ray.learning.kl_estimates import k1, k3
from marl_ray.learning.micro_batches import unweighted_row
from marl_ray.learning.policy_model import LogprobModel, load_policy, probe_layout
from marl_ray.learning.precision import cast_on_forward
from marl_ray.learning.prompt_rows import PromptRow, WeightedCompletion, rows_of
from marl_ray.learning.sharding import shard
from marl_ray.models.lora import has_adapter, without_adapter

IN_REWARD = {"k1_in_reward": k1, "k3_in_reward": k3}
"""Estimates of the divergence from the reference policy that lower returns, by value of `reference_kl`."""


class ReferencePolicy:
    """The reference model of each agent of a policy: the policy's initial model, or another one, a teacher.

    The initial model is computed exactly as the policy is, so that both agree bit for bit before the first update. If
    the policy trains an adapter, the initial model is the policy with the adapter disabled. With `offload_reference`
    the weights are in host memory, and on the device only while groups are scored.

    `paths` has the local folder or hub id of the reference model by number of the agent, and `initial` is the path of
    the policy's initial model.
    """

    def __init__(
        self,
        paths: Mapping[int, str],
        initial: str,
        model: ModelConfig,
        policy: LogprobModel,
        agent: AgentConfig,
        credit: CreditConfig,
        optimizer: OptimizerConfig,
        max_new_tokens: Mapping[int, int],
    ) -> None:
        self._paths = paths
        self._policy = policy
        self._agent = agent
        self._credit = credit
        self._settings = optimizer
        self._max_new_tokens = max_new_tokens
        self._offloaded = agent.learner.offload_reference
        self._models: dict[str, LogprobModel] = {}
        for path in paths.values():
            if path not in self._models:
                self._models[path] = self._load(path, path == initial, model)

    def _load(self, path: str, is_initial: bool, settings: ModelConfig) -> LogprobModel:
        policy = self._policy
        ranks = policy.ranks
        if is_initial and has_adapter(policy.model):
            return policy
        home = policy.device
        if self._offloaded:
            home = torch.device("cpu")
        model = load_policy(path, settings.model_kwargs.trust_remote_code, home, ranks)
        model.requires_grad_(False).eval()
        if is_initial:
            loaded = replace(policy, model=model)
            model.set_attn_implementation(policy.model.config._attn_implementation)
        else:
            layout, _, final_head = probe_layout(model, settings.max_length, ranks)
            loaded = replace(policy, model=model, layout=layout, final_head=final_head)
        if ranks.is_single:
            cast_on_forward(model, policy.dtype)
        else:
            shard(model, ranks, policy.device, policy.dtype, self._offloaded)
        if self._offloaded and ranks.is_single and policy.device.type == "cuda":
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.data = tensor.data.pin_memory()  # copies to the GPU then run asynchronously
        return loaded

    def modules(self) -> list[torch.nn.Module]:
        """Return the modules on the policy's device; none if the reference is offloaded."""
        if self._offloaded:
            return []
        return [reference.model for reference in self._models.values()]

    def rows(self, groups: Sequence[Group]) -> list[PromptRow]:
        """Return the trained completions of these groups, with the reference's log-probabilities."""
        reference = self._reference_logprobs(groups)
        if not self._settings.kl_in_loss:
            policy = self._logprobs(self._policy, groups)
            groups = list(map(self._penalize, groups, policy, reference))
        rows = []
        for group, logprobs in zip(groups, reference, strict=True):
            rows += self._rows(group, logprobs)
        return rows

    def _reference_logprobs(self, groups: Sequence[Group]) -> list[list[torch.Tensor]]:
        """Return the log-probabilities of each group's completions by the reference model of its agent."""
        known: dict[int, list[torch.Tensor]] = {}
        for path, reference in self._models.items():
            own = {number: group for number, group in enumerate(groups) if self._paths[group.agent] == path}
            with self._computing(reference):
                logprobs = self._logprobs(reference, list(own.values()))
            known |= dict(zip(own, logprobs, strict=True))
        return [known[number] for number in range(len(groups))]

    def _rows(self, group: Group, reference: Sequence[torch.Tensor]) -> list[PromptRow]:
        kl_weights = [0.0] * len(group.completions)
        agent = of_group(self._agent, group, self._max_new_tokens)
        if self._settings.kl_in_loss:
            shares = group_shares(group, agent, self._credit)
            kl_weights = [self._agent.reference_kl_coef * share for share in shares]
        bonus = entropy_weights(group, agent, self._credit, self._settings)
        trained: list[WeightedCompletion | None] = []
        parts = zip(group.completions, group.weights, kl_weights, bonus, reference, strict=True)
        for completion, weight, kl_weight, entropy_weight, logprobs in parts:
            one = None
            if completion.token_ids and (weight or kl_weight or entropy_weight):
                one = WeightedCompletion(
                    completion.token_ids,
                    completion.logprobs,
                    weight,
                    kl_weight,
                    entropy_weight,
                    reference_logprobs=tuple(logprobs.tolist()),
                    json_schema=completion.json_schema,
                )
            trained.append(one)
        return rows_of(group, trained)

    def _penalize(self, group: Group, policy: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> Group:
        """Return the group with KL-penalised returns, summed over tokens, and the resulting weights."""
        estimate = IN_REWARD[self._settings.reference_kl]
        of_sibling: dict[int, float] = {}  # a sibling has the divergence of all its completions
        for sibling, own, fixed in zip(group.siblings, policy, reference, strict=True):
            divergence = float(estimate(own.double(), fixed.double()).sum())
            of_sibling[sibling] = of_sibling.get(sibling, 0.0) + divergence
        coefficient = self._agent.reference_kl_coef
        returns: list[float] = []
        for sibling, value in zip(group.siblings, group.returns, strict=True):
            returns.append(value - coefficient * of_sibling[sibling])
        agent = of_group(self._agent, group, self._max_new_tokens)
        return weight_group(replace(group, returns=tuple(returns)), agent, self._credit)

    def _logprobs(self, logprob_model: LogprobModel, groups: Sequence[Group]) -> list[list[torch.Tensor]]:
        """Return log-probabilities per completion per group, empty without tokens.

        Each group is scored by itself, so the result is bit-identical however groups are split into calls.
        """
        rows: list[PromptRow] = []
        for group in groups:
            rows += map(unweighted_row, group.by_prompt())
        logprobs = iter(logprob_model.logprobs(rows, self._settings.tokens_per_microbatch, per_row=True))
        of_groups: list[list[torch.Tensor]] = []
        for group in groups:
            # The rows have only completions with tokens.
            found = [next(logprobs) if completion.token_ids else torch.zeros(0) for completion in group.completions]
            of_groups.append(found)
        return of_groups

    @contextmanager
    def _computing(self, reference: LogprobModel) -> Iterator[None]:
        """Disable the policy's adapter, or move the weights of another model to the policy's device, within the
        context. The weights are constant and not copied back."""
        if reference is self._policy:
            with without_adapter(reference.model):
                yield
            return
        if not reference.ranks.is_single:  # a sharded model moves its weights itself
            yield
            return
        model = reference.model
        device = self._policy.model.device
        homes = [(tensor, tensor.data) for tensor in (*model.parameters(), *model.buffers())]
        for tensor, home in homes:
            tensor.data = home.to(device, non_blocking=True)
        try:
            yield
        finally:
            for tensor, home in homes:
                tensor.data = home
