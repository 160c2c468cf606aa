"""One policy's learner: from a batch of groups to an optimizer step, and its checkpoints. No Ray.

    groups --Learner._prepare-----------> rows of trained completions, with weights   (critic, reference_policy)
    rows   --MicroBatcher---------------> micro-batches of packed or padded tokens    (micro_batches)
           --LogprobModel---------------> log-probabilities at the sampling temperature (policy_model, logprobs)
           --GradientAccumulator--------> loss and gradient of a mini-batch           (losses)
           --Learner._optimizer_step----> new weights                                 (optimizer)
           --summarize_update-----------> UpdateStats                                 (gradient_accumulator)

A learner may be one of several ranks that shard the model (`marl_ray.learning.sharding`). All ranks get the same calls
in the same order, train on their share of the tokens, and return the same results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from marl_ray.config import AgentConfig, CreditConfig, LoraConfig, ModelConfig, OptimizerConfig
from marl_ray.core.batch import Batch, Group, UpdateStats
from marl_ray.learning.arguments import narrows_frozen_matrices
from marl_ray.learning.critic import Critic, ValueEstimate, make_critic
from marl_ray.learning.device import choose_device
from marl_ray.learning.entropy_bonus import entropy_weights, of_group
from marl_ray.learning.gradient_accumulator import (
    GradientAccumulator,
    ImportanceRatioAccumulator,
    MiniBatchResult,
    summarize_update,
)
from marl_ray.learning.json_grammars import JsonGrammars
from marl_ray.learning.learner_files import (
    CRITIC_FILE,
    STATE_FILE,
    checkpoint_errors,
    gather_policy,
    load_optimizer,
    load_weights,
    read_shards,
    write_model,
)
from marl_ray.learning.losses import loss_class
from marl_ray.learning.micro_batches import Layout, trainable_rows, unweighted_row
from marl_ray.learning.optimizer import add_gradients, apply_settings, clip_and_remove, clip_gradients, make_optimizer
from marl_ray.learning.policy_model import LogprobModel, load_policy, probe_layout
from marl_ray.learning.precision import NarrowCopies, cast_on_forward, compute_dtype
from marl_ray.learning.prompt_rows import PromptRow
from marl_ray.learning.ranks import SINGLE_RANK, RankGroup
from marl_ray.learning.reference_policy import ReferencePolicy
from marl_ray.learning.sharding import shard
from marl_ray.learning.snapshot import take_snapshot
from marl_ray.learning.streamed_optimizer import StreamedOptimizer
from marl_ray.models.lora import (
    NAME,
    add_adapter,
    has_adapter,
    narrow_frozen_matrices,
    trainable,
)
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.models.weight_files import SHARDS
from marl_ray.registry import load_plug_ins

NO_ADAPTER = LoraConfig()


class Learner:
    """A policy and its optimizer: state(s + 1) = update(state(s), batch s).

    Arguments:
    - model_path: local folder or hub id of the initial model, which is also the reference policy by default;
    - wire_dtype: dtype of the engines' weights, in which the learner computes where possible;
    - total_steps: optimizer steps that the learning-rate schedule spans;
    - threads, seed: CPU threads of torch, and the seed of an adapter's initial weights;
    - on_gpu: True for a GPU, whose absence is a UserError;
    - references: local folder or hub id of the reference policy by number of the agent, by default the initial model;
    - max_new_tokens: of each agent of the policy by its number, by default that of `agent`;
    - name, beside: this learner's adapter, in the model of another learner. Call `activate` before every use.

    `step` is the number of applied batches, and thus the number of the next batch.
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
        on_gpu: bool = False,
        references: Mapping[int, str] | None = None,
        max_new_tokens: Mapping[int, int] | None = None,
        plugins: Sequence[str] = (),
        name: str = NAME,
        beside: Learner | None = None,
        ranks: RankGroup = SINGLE_RANK,
    ) -> None:
        load_plug_ins(plugins)
        torch.set_num_threads(threads)
        # cuDNN's attention plans every new shape anew (0.4 s), and nearly every group has a new shape.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.agent = agent
        self.model = model
        self.credit = credit
        self.settings = optimizer
        self.max_new_tokens = max_new_tokens or {}
        self.base = model_path
        self.lora = lora
        self.seed = seed
        self.name = name
        self.dtype = getattr(torch, wire_dtype)
        self.device = choose_device(on_gpu)
        self.tokenizer = load_tokenizer(model_path, model)
        self.ranks = ranks
        self.copies = NarrowCopies()
        trust = model.model_kwargs.trust_remote_code
        if beside is None:
            self.policy, layout, self.padding_reason, final_head = self._build_policy(trust)
        else:
            add_adapter(beside.policy, lora, seed, name)
            layout = beside.logprob_model.layout
            final_head = beside.logprob_model.final_head
            self.padding_reason = beside.padding_reason
            self.policy = beside.policy
            self.copies = beside.copies
        dtype = compute_dtype(self.dtype, self.device)
        self.logprob_model: LogprobModel = LogprobModel(
            self.policy, layout, agent.temperature, dtype, ranks, final_head, self._json_grammars()
        )
        self.reference: ReferencePolicy | None = None
        if agent.reference_kl_coef:
            self.reference = ReferencePolicy(
                references or {0: model_path},
                model_path,
                model,
                self.logprob_model,
                agent,
                credit,
                optimizer,
                self.max_new_tokens,
            )
        if optimizer.gradient_checkpointing:
            self.policy.gradient_checkpointing_enable()
        parameters = [(list(trainable(self.policy)), agent.learning_rate)]
        self.optimizer, self.schedule = make_optimizer(parameters, optimizer, total_steps)
        self.critic: Critic | None = make_critic(
            self.logprob_model, agent, credit, optimizer, total_steps, self._load_critic_body
        )
        self.step = 0
        self._streamed: StreamedOptimizer | None = None
        self._accumulated: GradientAccumulator | None = None
        """Gradient of the next batch's first mini-batch, if `accumulate` has started it."""

    def _build_policy(self, trust_remote_code: bool) -> tuple[Any, Layout, str, bool]:
        """Return the policy and the results of `probe_layout`."""
        ranks = self.ranks
        policy = load_policy(self.base, trust_remote_code, self.device, ranks)
        layout, reason, final_head = probe_layout(policy, self.model.max_length, ranks)
        if self.lora.rank:
            self._add_adapter(policy, self.name)
        dtype = compute_dtype(self.dtype, self.device)
        if ranks.is_single:
            # With gradient checkpointing, copies of all layers would take memory that casts layer by layer do not.
            kept = [] if self.settings.gradient_checkpointing else policy.parameters()
            self.copies = NarrowCopies(kept, dtype)
            cast_on_forward(policy, dtype, self.copies)
        else:
            shard(policy, ranks, self.device, dtype, self.agent.learner.cpu_offload)
        return policy, layout, reason, final_head

    def _json_grammars(self) -> JsonGrammars:
        vocabulary = self.policy.config.get_text_config().vocab_size
        return JsonGrammars(self.base, self.tokenizer, self.model, vocabulary)

    def _load_critic_body(self) -> Any:
        body = load_policy(self.base, self.model.model_kwargs.trust_remote_code, self.device)
        if self.lora.rank:
            self._add_adapter(body)
        cast_on_forward(body, compute_dtype(self.dtype, self.device))
        return body

    def _add_adapter(self, model: Any, name: str = NAME) -> None:
        add_adapter(model, self.lora, self.seed, name)
        if narrows_frozen_matrices(self.lora, self.ranks.size, self.device.type == "cuda", self.dtype.itemsize):
            narrow_frozen_matrices(model, self.dtype)

    def activate(self) -> None:
        """Make this learner's adapter active in a shared model. Other learners keep their accumulated gradients."""
        if has_adapter(self.policy):
            self.policy.set_adapter(self.name)

    def stream_optimizer_state(self) -> None:
        """Keep the state of the policy's optimizer in host memory, except for chunks during an optimizer step."""
        self._streamed = StreamedOptimizer(self.optimizer, self.device)
        self._streamed.offload()

    # --- training ---

    def update(self, batch: Batch) -> UpdateStats:
        """Train on a complete batch. Raises ValueError if it is not the next batch."""
        return self.finish(batch, 0)

    def accumulate(self, step: int, start: int, groups: Sequence[Group]) -> None:
        """Accumulate the gradient of groups `start` and following of batch `step`'s first mini-batch; 0 starts anew.

        Weights do not change before `finish`, whose result is bit-identical however the groups are split into calls.
        Raises ValueError for a batch that is not the next one, for groups that do not continue the previous ones, and
        if the critic needs the whole batch. After any other error the mini-batch must start anew.
        """
        if self.critic is not None and self.critic.needs_whole_batch:
            raise ValueError(f"groups of batch {step} came alone, and the critic needs the whole batch")
        gradient = self._continue_mini_batch(step, start)
        self._accumulated = None  # invalid if the following lines fail
        ((rows, estimates),) = self._prepare([groups])
        gradient.add(rows, len(groups))
        gradient.value_estimates += estimates
        self._accumulated = gradient

    def finish(self, batch: Batch, accumulated: int) -> UpdateStats:
        """Train on the remaining groups, with one optimizer step per mini-batch, and count the batch as applied.

        `batch` is the next batch without the first `accumulated` groups of its first mini-batch, which `accumulate` has
        received. A mini-batch with a zero gradient takes no optimizer step, because momentum would change the weights.
        Importance ratios, entropy and log-probability gap come from the first mini-batch with a gradient. Raises
        ValueError as `accumulate` does.
        """
        learning_rate = float(self.schedule.get_last_lr()[0])
        gradient = self._continue_mini_batch(batch.step, accumulated)
        self._accumulated = None
        prepared = self._prepare([mini_batch.groups for mini_batch in batch.mini_batches])
        needs = loss_class(self.settings.loss).requirements
        if needs.several_optimizer_steps or needs.old_logprobs:
            prepared[1:] = [(self._add_old_logprobs(rows), estimates) for rows, estimates in prepared[1:]]
        results: list[MiniBatchResult] = []
        for mini_batch, (rows, estimates) in zip(batch.mini_batches, prepared, strict=True):
            if results:
                gradient = GradientAccumulator(self.logprob_model, self.settings)
            gradient.add(rows, len(mini_batch.groups))
            gradient.value_estimates += estimates
            gradient.close(mini_batch.normalizer)
            results.append(self._optimizer_step(gradient))
        self.step += 1
        return summarize_update(results, learning_rate)

    def _continue_mini_batch(self, step: int, start: int) -> GradientAccumulator:
        """Return the gradient of batch `step` whose next group is number `start`."""
        if step != self.step:
            raise ValueError(f"batch {step} came where batch {self.step} is next")
        if start == 0:
            return GradientAccumulator(self.logprob_model, self.settings)
        expected = 0 if self._accumulated is None else self._accumulated.groups
        if self._accumulated is None or start != expected:
            raise ValueError(f"group {start} of batch {step} came where group {expected} is next")
        return self._accumulated

    def _prepare(self, parts: Sequence[Sequence[Group]]) -> list[tuple[list[PromptRow], list[ValueEstimate]]]:
        """Return rows and value estimates for each part, computed with the current policy and critic."""
        groups: list[Group] = list(chain(*parts))
        estimates: list[ValueEstimate] = []
        if self.critic is not None:
            groups, estimates = self.critic.credit_groups(groups)
        prepared, start = [], 0
        for part in parts:
            own = slice(start, start + len(part))
            if self.reference is None:
                rows = trainable_rows(groups[own], self._entropy_weights)
            else:
                rows = self.reference.rows(groups[own])
            prepared.append((rows, estimates[own]))
            start = own.stop
        return prepared

    def _entropy_weights(self, group: Group) -> tuple[float, ...]:
        return entropy_weights(group, of_group(self.agent, group, self.max_new_tokens), self.credit, self.settings)

    def _add_old_logprobs(self, rows: Sequence[PromptRow]) -> list[PromptRow]:
        """Return the rows with the current policy's log-probabilities."""
        logprobs = self.logprob_model.logprobs(rows, self.settings.tokens_per_microbatch)
        old = (tuple(of_completion.tolist()) for of_completion in logprobs)
        return [
            replace(row, completions=tuple(replace(c, old_logprobs=next(old)) for c in row.completions)) for row in rows
        ]

    def _optimizer_step(self, gradient: GradientAccumulator) -> MiniBatchResult:
        """Take one optimizer step with the policy's gradient and the critic's. Skip it if a value is not finite."""
        norm = 0.0
        critic_loss = 0.0
        critic_norm = 0.0
        parameters = list(trainable(self.policy))
        of_policy = None
        if self.settings.clip_separately:
            of_policy = clip_and_remove(parameters, self.settings)
        if self.critic is not None:
            critic_loss = self.critic.backward(gradient.value_estimates)
            if gradient.value_estimates:
                critic_norm = self.critic.clip()
        if gradient.importance_ratios.tokens or gradient.value_estimates:
            norm = clip_gradients(parameters, self.settings)
        if of_policy is not None:
            # Until here the shared layers had the gradient of the critic's loss only.
            policy_norm, policy_gradients = of_policy
            norm = math.hypot(norm, policy_norm)
            add_gradients(parameters, policy_gradients)
        finite = all(map(math.isfinite, (gradient.loss, norm, critic_loss, critic_norm)))
        taken = finite and norm > 0  # 0 also if all tokens are masked
        if taken:
            optimizer = self._streamed or self.optimizer
            optimizer.step()
            self.copies.drop()
            self.schedule.step()
        if self.critic is not None and finite and gradient.value_estimates:
            self.critic.step()
        return MiniBatchResult(gradient.loss, norm, taken, not finite, gradient, critic_loss)

    def logprob_gap(self, groups: Sequence[Group]) -> float:
        """Return the mean absolute difference to the sampler's log-probabilities in nats per token (at least one)."""
        rows = [unweighted_row(part) for group in groups for part in group.by_prompt()]
        own = self.logprob_model.logprobs(rows, self.settings.tokens_per_microbatch)
        sampled = [value for row in rows for c in row.completions for value in c.behaviour_logprobs]
        ratios = ImportanceRatioAccumulator("none", 1.0)
        ratios.add(torch.cat(own), torch.tensor(sampled))
        return ratios.logprob_gap

    # --- checkpoints and export ---

    def save(self, folder: str) -> None:
        """Write the complete state durably. Raises OSError."""
        take_snapshot(self, folder).write()

    def load(self, folder: str, step: int) -> None:
        """Restore the state that `save` wrote, with any number of ranks, after `step` batches.

        Accumulated gradients are dropped. Raises UserError if a file is damaged, missing or of another model.
        """
        path = Path(folder)
        checkpoint = path.parent
        sharded = (path / SHARDS).is_dir()
        with checkpoint_errors(path, checkpoint):
            if sharded:
                read_shards(path, self.policy, self.optimizer)
            else:
                load_weights(self, path)
        with checkpoint_errors(path / STATE_FILE, checkpoint):
            mapped = not self.ranks.is_single  # each rank reads only its shard of the optimizer state
            state = torch.load(path / STATE_FILE, map_location="cpu", weights_only=True, mmap=mapped)
            if not sharded:
                # bitsandbytes stores its state in another form, which is a quarter of AdamW's.
                on_host = self._streamed is not None and self.settings.optimizer == "adamw"
                load_optimizer(self.optimizer, state["optimizer"], on_host)
            self.schedule.load_state_dict(state["schedule"])
            torch.set_rng_state(state["torch_rng"])
        if self.critic is not None:
            with checkpoint_errors(path / CRITIC_FILE, checkpoint):
                self.critic.load(torch.load(path / CRITIC_FILE, map_location="cpu", weights_only=True))
        apply_settings(self.optimizer, self.schedule, [self.agent.learning_rate])
        self.copies.drop()
        if self._streamed is not None:
            self._streamed.offload()
        self.step = step
        self._accumulated = None

    def export(self, folder: str, texts: list[str]) -> None:
        """Write the model in the engines' dtype, or its adapter, and the tokenizer (see `write_model`)."""
        adapter_only = self.lora.export == "adapter"
        policy = gather_policy(self, merged=not adapter_only)
        if self.ranks.rank == 0:
            dtype = None if adapter_only else self.dtype
            write_model(folder, policy, dtype, self.tokenizer, self.model.model_kwargs, texts, self.step)

    def modules(self) -> list[torch.nn.Module]:
        """Return all modules with weights on the learner's device."""
        modules = [self.policy]
        if self.reference is not None:
            modules += self.reference.modules()
        if self.critic is not None:
            modules += self.critic.modules()
        return list(dict.fromkeys(modules))  # each once, since parts may share a model

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers of policy and critic."""
        if self.critic is None:
            return [self.optimizer]
        return [self.optimizer, self.critic.optimizer]
