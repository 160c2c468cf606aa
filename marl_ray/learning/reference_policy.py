"""The reference policy: an agent's model as it was before training, frozen, which the policy pays for leaving.

KL(pi || reference) is estimated on the sampled tokens, at the sampling temperature. In the reward, it is part of what
siblings are ranked by (`Group.returns`): its gradient comes through the advantages, so that completions of equal
rewards have one too. In the loss, it is a term beside the policy's, of all completions, with the share and the
importance factors that the policy's has.

The policy's own log-probabilities are computed again for it, not taken from the sampler: those of one that is cut by
top_p are larger at every token, and would make length cost something.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch

from marl_ray.config import AgentConfig, CreditConfig, OptimizerConfig
from marl_ray.core.batch import Group
from marl_ray.credit.groups import loss_shares, weight_group
from marl_ray.learning.losses import k1, k3
from marl_ray.learning.micro_batches import PromptRow, WeightedCompletion, unweighted_row
from marl_ray.learning.policy_model import LogprobModel, load_policy
from marl_ray.learning.sharding import load_to_shard, shard
from marl_ray.models.lora import has_adapter, without_adapter


class ReferencePolicy:
    """It computes as `policy` does, from float32 weights, so that the two agree to the bit until the first update.
    Where the policy learns an adapter, it is the policy without it.

    `offloaded`, its weights are in the host's memory, and on the policy's device while groups are scored.
    """

    def __init__(
        self,
        model_path: str,
        trust_remote_code: bool,
        policy: LogprobModel,
        agent: AgentConfig,
        credit: CreditConfig,
        optimizer: OptimizerConfig,
    ) -> None:
        self._policy, self._agent, self._credit, self._settings = policy, agent, credit, optimizer
        self._itself = has_adapter(policy.model)
        """Whether it is the policy without its adapter."""
        self._offloaded = agent.learner.offload_reference
        if self._itself:
            self._reference = policy
            return
        offloaded, device = self._offloaded, policy.device
        if policy.ranks.is_single:
            model = load_policy(model_path, trust_remote_code, torch.device("cpu") if offloaded else device)
        else:
            model = load_to_shard(model_path, trust_remote_code, policy.ranks)
        model = model.requires_grad_(False).eval()
        model.set_attn_implementation(policy.model.config._attn_implementation)
        if not policy.ranks.is_single:
            shard(model, policy.ranks, device, policy.dtype, offloaded)
        self._reference = replace(policy, model=model)

    def modules(self) -> list[torch.nn.Module]:
        """What it keeps on the policy's device: nothing where it is off-loaded."""
        return [] if self._offloaded else [self._reference.model]

    def rows(self, groups: Sequence[Group]) -> list[PromptRow]:
        """What of these groups is learned from, with what the reference says of it."""
        with self._on_the_device(), without_adapter(self._policy.model) if self._itself else nullcontext():
            known = self._logprobs(self._reference, groups)
        if self._settings.reference_kl != "k3_in_loss":
            policy = self._logprobs(self._policy, groups)
            groups = [self._punished(*of_one) for of_one in zip(groups, policy, known, strict=True)]
        found = [self._row(group, reference) for group, reference in zip(groups, known, strict=True)]
        return [row for row in found if row.completions]

    def _row(self, group: Group, reference: Sequence[torch.Tensor]) -> PromptRow:
        kl_weights = [0.0] * len(group.completions)
        if self._settings.reference_kl == "k3_in_loss":
            shares = loss_shares(group.turn, group.completions, self._agent.max_new_tokens, self._credit)
            kl_weights = [self._agent.reference_kl_coef * share for share in shares]
        completions = (
            WeightedCompletion(c.token_ids, c.logprobs, weight, kl_weight, reference_logprobs=tuple(logprobs.tolist()))
            for c, weight, kl_weight, logprobs in zip(
                group.completions, group.weights, kl_weights, reference, strict=True
            )
            if c.token_ids and (weight != 0 or kl_weight != 0)
        )
        return PromptRow(group.prompt_ids, tuple(completions))

    def _punished(self, group: Group, policy: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> Group:
        """The group with returns that are less by the coefficient times each completion's KL, summed over its tokens,
        and the weights that follow."""
        estimate = k1 if self._settings.reference_kl == "k1_in_reward" else k3
        divergences = [float(estimate(p.double(), r.double()).sum()) for p, r in zip(policy, reference, strict=True)]
        coefficient = self._agent.reference_kl_coef
        returns = [value - coefficient * kl for value, kl in zip(group.returns, divergences, strict=True)]
        return weight_group(replace(group, returns=tuple(returns)), self._agent, self._credit)

    def _logprobs(self, logprob_model: LogprobModel, groups: Sequence[Group]) -> list[list[torch.Tensor]]:
        """Of each completion of each group; nothing of one without tokens. Each group is scored by itself: in whatever
        portions they come, the bits are the same."""
        rows = [unweighted_row(group) for group in groups]
        known = iter(logprob_model.logprobs(rows, self._settings.microbatch_tokens, apart=True))
        return [[next(known) if c.token_ids else torch.zeros(0) for c in group.completions] for group in groups]

    @contextmanager
    def _on_the_device(self) -> Iterator[None]:
        """The reference's weights are where the policy's are. They are not written back: nothing changes them."""
        if self._itself or not self._policy.ranks.is_single:  # one that is shared out sees to that by itself
            yield
            return
        model, device = self._reference.model, self._policy.model.device
        homes = [(tensor, tensor.data) for tensor in (*model.parameters(), *model.buffers())]
        for tensor, home in homes:
            tensor.data = home.to(device, non_blocking=True)
        try:
            yield
        finally:
            for tensor, home in homes:
                tensor.data = home
