"""One policy's learner: an optimizer on the policy gradient, a critic if there is one, and checkpoints. No Ray.

It may be one of several ranks that share the model out (`marl_ray.learning.sharding`). All of them are asked the same,
in the same order; each learns from its share of the tokens, and all say the same of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from marl_ray.config import CLIP_RANGES, AgentConfig, CreditConfig, LoraConfig, ModelConfig, OptimizerConfig
from marl_ray.core.batch import Batch, Group, UpdateStats
from marl_ray.core.files import fsync_tree
from marl_ray.learning.critic import Critic, ValueEstimate
from marl_ray.learning.export import write_model
from marl_ray.learning.gradient_accumulator import GradientAccumulator
from marl_ray.learning.iac import own_critic
from marl_ray.learning.importance import ImportanceRatioAccumulator
from marl_ray.learning.learner_state import (
    CRITIC_FILE,
    STATE_FILE,
    is_sharded,
    learned,
    load_optimizer,
    read,
    read_shards,
    reading,
    write,
    write_shards,
)
from marl_ray.learning.maac import central_critic
from marl_ray.learning.micro_batches import Layout, PromptRow, trainable_rows, unweighted_row
from marl_ray.learning.mini_batch import MiniBatchResult, stats_of
from marl_ray.learning.optimizer import apply_settings, clip_gradients, make_optimizer
from marl_ray.learning.policy_model import LogprobModel, choose_layout, load_policy
from marl_ray.learning.ranks import SINGLE_RANK, RankGroup
from marl_ray.learning.reference_policy import ReferencePolicy
from marl_ray.learning.sharding import copy_from_first, load_to_shard, shard, whole
from marl_ray.models.lora import (
    NAME,
    adapter_weights,
    add_adapter,
    has_adapter,
    load_adapter,
    named_weights,
    trainable,
    use_adapter,
)
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.models.weight_files import check_folder

NO_ADAPTER = LoraConfig()


class Learner:
    """A fold over batches, on one device a rank: state(s + 1) = update(state(s), batch s).

    `model_path` is a local folder or hub id, of the start and of the reference policy, if the agent has one;
    `wire_dtype` the dtype of the engines' weights; `total_steps` the number of optimizer steps that the schedule spans;
    `seed` is what an adapter's first weights follow from. `beside`, of another policy with an adapter, is a learner
    whose model this one shares: it has an adapter of its own there, `name`, and `activate` goes before all that it is
    asked for.
    `ranks` are those that learn together, of which this is one.
    `step` counts the batches that were applied, so it is the number of the next one.
    """

    def __init__(
        self,
        model_path: str,
        agent: AgentConfig,
        model: ModelConfig,
        credit: CreditConfig,
        optimizer: OptimizerConfig,
        wire_dtype: str,
        total_steps: int,
        threads: int,
        lora: LoraConfig = NO_ADAPTER,
        seed: int = 0,
        name: str = NAME,
        beside: Learner | None = None,
        ranks: RankGroup = SINGLE_RANK,
    ) -> None:
        torch.set_num_threads(threads)
        self.agent = agent
        self.model = model
        self.base = model_path
        self.lora = lora
        self.name = name
        self.settings = optimizer
        self.dtype = getattr(torch, wire_dtype)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = load_tokenizer(model_path, model)
        self.ranks = ranks
        layout: Layout
        if beside is None:
            self.policy, layout, self.padding_reason = self._built(lora, seed)
        else:
            self.policy, layout, self.padding_reason = beside.policy, beside.logprob_model.layout, beside.padding_reason
            add_adapter(self.policy, lora, seed, name)
        self.logprob_model: LogprobModel = LogprobModel(self.policy, layout, agent.temperature, self.dtype, ranks)
        self.reference: ReferencePolicy | None = None
        if agent.reference_kl_coef:
            trust = model.model_kwargs.trust_remote_code
            self.reference = ReferencePolicy(model_path, trust, self.logprob_model, agent, credit, optimizer)
        if optimizer.gradient_checkpointing:
            self.policy.gradient_checkpointing_enable()
        own = list(trainable(self.policy))
        self.optimizer, self.schedule = make_optimizer([(own, agent.learning_rate)], optimizer, total_steps)
        self.critic: Critic | None = None
        if credit.critic == "iac":
            self.critic = own_critic(self.logprob_model, agent, credit, optimizer, total_steps)
        elif credit.critic == "maac":
            body = load_policy(model_path, model.model_kwargs.trust_remote_code, self.device)
            if lora.rank:
                add_adapter(body, lora, seed)
            self.critic = central_critic(body, self.logprob_model, agent, credit, optimizer, total_steps)
        self.step = 0
        self._open: GradientAccumulator | None = None  # of the next batch's first mini-batch

    def _built(self, lora: LoraConfig, seed: int) -> tuple[Any, Layout, str]:
        """The policy with what `choose_layout` says of it, which rank 0 tries on the whole."""
        trust, ranks = self.model.model_kwargs.trust_remote_code, self.ranks
        policy = (
            load_policy(self.base, trust, self.device) if ranks.is_single else load_to_shard(self.base, trust, ranks)
        )
        chosen: tuple[Layout, str] = ("packed", "")
        if ranks.rank == 0:
            chosen = choose_layout(policy, policy.device, self.model.max_length)
        layout, why = ranks.broadcast(chosen)
        if not ranks.is_single:
            policy.set_attn_implementation(ranks.broadcast(policy.config._attn_implementation))
        if lora.rank:
            add_adapter(policy, lora, seed, self.name)
        if not ranks.is_single:
            shard(policy, ranks, self.device, self.dtype, self.agent.learner.cpu_offload)
        return policy, layout, why

    def activate(self) -> None:
        """The model is this learner's from now on, where it shares one: the others' adapters rest, with what they have
        accumulated."""
        if has_adapter(self.policy):
            use_adapter(self.policy, self.name)

    def accumulate(self, step: int, start: int, groups: Sequence[Group]) -> None:
        """Learn from groups number `start` and after of the first mini-batch of batch number `step`; 0 begins anew.

        Weights stay as they are until `finish`, and what it does is the same bits in whatever portions the groups came.
        Raises ValueError for a batch that is not the next, for groups that do not follow those so far, and where a
        critic's advantages are compared in the whole batch. After any other error the mini-batch has to be begun anew.
        """
        if self.critic is not None and self.critic.compares:
            raise ValueError(f"groups of batch {step} came alone, and a critic compares all of a batch")
        gradient = self._begun(step, start)
        self._open = None  # nobody can go on with half of these groups
        ((rows, valued),) = self._prepared([groups])
        gradient.add(rows, len(groups))
        gradient.value_estimates += valued
        self._open = gradient

    def finish(self, batch: Batch, accumulated: int) -> UpdateStats:
        """Learn from what was not accumulated yet, with one optimizer step a mini-batch: the batch is applied.

        Of the first mini-batch the batch holds the groups after the first `accumulated`; 0: all of them. The later ones
        meet weights that those before them have moved, and are in that part off-policy: what bounds it is `loss` clip,
        gspo or m2po, or `importance`. Importance ratios, entropy and gap are those of the first mini-batch that has a
        gradient.

        A mini-batch without a gradient changes nothing and is no optimizer step: momentum would go on by itself.
        Raises ValueError as `accumulate` does.
        """
        learning_rate = float(self.schedule.get_last_lr()[0])
        gradient = self._begun(batch.step, accumulated)
        self._open = None
        prepared = self._prepared([mini_batch.groups for mini_batch in batch.mini_batches])
        if self.settings.loss in CLIP_RANGES:
            prepared[1:] = [(self._with_old(rows), valued) for rows, valued in prepared[1:]]
        done: list[MiniBatchResult] = []
        for mini_batch, (rows, valued) in zip(batch.mini_batches, prepared, strict=True):
            if done:
                gradient = self._begin()
            gradient.add(rows, len(mini_batch.groups))
            gradient.value_estimates += valued
            gradient.close(mini_batch.normalizer)
            done.append(self._optimizer_step(gradient))
        self.step += 1
        return stats_of(done, learning_rate)

    def logprob_gap(self, groups: Sequence[Group]) -> float:
        """Mean absolute difference to the sampler's log-probabilities of the groups' completions, nats a token; one of
        them has a token. Changes nothing."""
        rows = [unweighted_row(group) for group in groups]
        ours = self.logprob_model.logprobs(rows, self.settings.microbatch_tokens)
        theirs = [value for row in rows for c in row.completions for value in c.behaviour_logprobs]
        agreement = ImportanceRatioAccumulator("none", 1.0)
        agreement.add(torch.cat(ours), torch.tensor(theirs))
        return agreement.logprob_gap

    def update(self, batch: Batch) -> UpdateStats:
        """Learn from a whole batch at once. Raises ValueError for a batch that is not the next."""
        return self.finish(batch, 0)

    def save(self, folder: str) -> None:
        """Write what `load` needs to go on exactly (`marl_ray.learning.learner_state`); when this returns, it is on disk.
        Where the disk refuses, raises what says so: OSError, or the error of safetensors with its number."""
        path = Path(folder)
        state: dict[str, Any] = {"schedule": self.schedule.state_dict(), "torch_rng": torch.get_rng_state()}
        if self.ranks.is_single:
            self.policy.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            state["optimizer"] = self.optimizer.state_dict()
        else:
            write_shards(path, self.policy, self.optimizer)
        if self.ranks.rank == 0:
            write(state, path / STATE_FILE)
            if self.critic is not None:
                write(self.critic.state(), path / CRITIC_FILE)
            fsync_tree(path)

    def load(self, folder: str, step: int) -> None:
        """Continue from what `save` wrote when `step` batches were applied, by however many ranks. What was accumulated
        is dropped.

        Raises UserError, which names the file, for what is cut off, missing or not of this model.
        """
        path = Path(folder)
        sharded, checkpoint = is_sharded(path), path.parent
        with reading(path, checkpoint):
            if sharded:
                read_shards(path, self.policy, self.optimizer)
            else:
                self._load_whole(path)
        with reading(path / STATE_FILE, checkpoint):
            state = read(path / STATE_FILE, mapped=not self.ranks.is_single)
            if not sharded:
                load_optimizer(self.optimizer, state["optimizer"])
            self.schedule.load_state_dict(state["schedule"])
            torch.set_rng_state(state["torch_rng"])
        if self.critic is not None:
            with reading(path / CRITIC_FILE, checkpoint):
                self.critic.load(read(path / CRITIC_FILE))
        apply_settings(self.optimizer, self.schedule, [self.agent.learning_rate], self.settings)
        self.step, self._open = step, None

    def export(self, folder: str, texts: list[str]) -> None:
        """Write the model in the engines' dtype, or its adapter, and the tokenizer: whole, or not there.

        Raises RuntimeError if the saved tokenizer, loaded again, gives other ids of `texts` than the one trained with.
        """
        adapter = self.lora.export == "adapter"
        policy, kwargs = self._unshared(merged=not adapter), self.model.model_kwargs
        if self.ranks.rank == 0:
            write_model(folder, policy, None if adapter else self.dtype, self.tokenizer, kwargs, texts, self.step)

    def modules(self) -> list[torch.nn.Module]:
        """All whose weights it keeps on its device."""
        others = [part.modules() for part in (self.reference, self.critic) if part is not None]
        return list(dict.fromkeys([self.policy, *chain(*others)]))

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those of its policy and its critic."""
        return [self.optimizer] if self.critic is None else [self.optimizer, self.critic.optimizer]

    def _load(self, path: str) -> Any:
        """A model on the CPU."""
        return load_policy(path, self.model.model_kwargs.trust_remote_code, torch.device("cpu"))

    def _load_whole(self, folder: Path) -> None:
        """The weights that a learner of one rank wrote."""
        check_folder(folder, own_tokenizer=True)
        if self.ranks.is_single:
            if has_adapter(self.policy):
                load_adapter(self.policy, folder)
            else:
                self.policy.load_state_dict(self._load(str(folder)).state_dict())
            return
        weights = None
        if self.ranks.rank == 0:
            adapter = has_adapter(self.policy)
            weights = (
                adapter_weights(self.policy, folder) if adapter else dict(self._load(str(folder)).named_parameters())
            )
        copy_from_first(learned(self.policy), weights)

    def _unshared(self, merged: bool) -> Any:
        """The policy, or one like it, on the CPU of rank 0, with what ranks share out, and, `merged`, with what an
        adapter adds in its weights."""
        if self.ranks.is_single and not (merged and has_adapter(self.policy)):
            return self.policy
        model = self._load(self.base) if self.ranks.rank == 0 else None
        if model is not None and not merged:
            add_adapter(model, self.lora, 0, self.name)
        with torch.no_grad():
            for name, tensor in named_weights(self.policy) if merged else learned(self.policy).items():
                weight = whole(tensor.detach())
                if model is not None:
                    model.get_parameter(name).copy_(weight)
        return model

    def _begun(self, step: int, start: int) -> GradientAccumulator:
        """The gradient of batch `step` whose next group is number `start`."""
        if step != self.step:
            raise ValueError(f"batch {step} came where batch {self.step} is next")
        if start == 0:
            return self._begin()
        there = 0 if self._open is None else self._open.groups
        if self._open is None or start != there:
            raise ValueError(f"group {start} of batch {step} came where group {there} is next")
        return self._open

    def _begin(self) -> GradientAccumulator:
        return GradientAccumulator(self.logprob_model, self.settings)

    def _prepared(self, parts: Sequence[Sequence[Group]]) -> list[tuple[list[PromptRow], list[ValueEstimate]]]:
        """What of the groups of each part is learned from, as policy and critic are now, and what the critic says."""
        groups = list(chain(*parts))
        valued: list[ValueEstimate] = []
        if self.critic is not None:
            groups, valued = self.critic.credited(groups)
        found, start = [], 0
        for part in parts:
            end = start + len(part)
            own = groups[start:end]
            found.append(
                (trainable_rows(own) if self.reference is None else self.reference.rows(own), valued[start:end])
            )
            start = end
        return found

    def _with_old(self, rows: Sequence[PromptRow]) -> list[PromptRow]:
        """The rows with what the policy says of them now."""
        known = (
            tuple(of_one.tolist()) for of_one in self.logprob_model.logprobs(rows, self.settings.microbatch_tokens)
        )
        return [
            replace(row, completions=tuple(replace(c, old_logprobs=next(known)) for c in row.completions))
            for row in rows
        ]

    def _optimizer_step(self, gradient: GradientAccumulator) -> MiniBatchResult:
        """By a gradient that is closed, and the critic's on the same groups. What is not finite is left out."""
        loss, norm, critic_loss, critic_norm = gradient.loss, 0.0, 0.0, 0.0
        if self.critic is not None:
            critic_loss = self.critic.backward(gradient.value_estimates)
            critic_norm = self.critic.clip() if gradient.value_estimates else 0.0
        if gradient.importance_ratios.tokens or gradient.value_estimates:
            norm = clip_gradients(trainable(self.policy), self.settings)
        finite = all(map(math.isfinite, (loss, norm, critic_loss, critic_norm)))
        taken = finite and norm > 0  # it is 0 too where all tokens were masked
        if taken:
            self.optimizer.step()
            self.schedule.step()
        if self.critic is not None and finite and gradient.value_estimates:
            self.critic.step()
        return MiniBatchResult(loss, norm, taken, not finite, gradient, critic_loss)
