"""One agent's learner: AdamW on the group-relative policy gradient, and checkpoints. No Ray."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from marl_ray.config.schema import AgentConfig, ModelConfig, OptimizerConfig
from marl_ray.core.batch import Batch, UpdateStats
from marl_ray.learning.batching import NO_TOKEN, PromptRow, micro_batches, rows_of
from marl_ray.learning.policy import choose_layout, compute_in, load_policy, token_logprobs
from marl_ray.models.tokenization import fingerprint, load_tokenizer

STATE_FILE = "learner.pt"


class Learner:
    """A fold over batches, on one device: state(s + 1) = update(state(s), batch s).

    `model_path` is a local folder or hub id; `wire_dtype` the dtype of the engines' weights; `total_steps` the number
    of optimizer steps that the schedule spans.
    """

    def __init__(
        self,
        model_path: str,
        agent: AgentConfig,
        model: ModelConfig,
        optimizer: OptimizerConfig,
        wire_dtype: str,
        total_steps: int,
        threads: int,
    ) -> None:
        torch.set_num_threads(threads)
        self.agent = agent
        self.model = model
        self.settings = optimizer
        self.dtype = getattr(torch, wire_dtype)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = load_tokenizer(model_path, model)
        self.policy = load_policy(model_path, model.model_kwargs.trust_remote_code, self.device)
        self.layout, self.why_padded = choose_layout(self.policy, self.device, model.max_length)
        if optimizer.gradient_checkpointing:
            self.policy.gradient_checkpointing_enable()
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(),
            lr=agent.learning_rate,
            betas=(optimizer.adam_beta1, optimizer.adam_beta2),
            weight_decay=optimizer.weight_decay,
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, schedule_factor(optimizer.lr_scheduler, optimizer.warmup_steps, total_steps)
        )

    def update(self, batch: Batch) -> UpdateStats:
        """One optimizer step a mini-batch.

        One without a gradient changes nothing and is none: AdamW would go on with its momentum.
        """
        losses, norms, gaps, skipped, taken = [], [], [], 0, 0
        learning_rate = float(self.schedule.get_last_lr()[0])
        for mini_batch in batch.mini_batches:
            rows = rows_of(mini_batch.groups)
            if not rows:
                losses.append(0.0)
                norms.append(0.0)
                continue
            loss, norm, gap = self._optimizer_step(rows, mini_batch.normalizer)
            gaps.append(gap)
            if math.isfinite(loss) and math.isfinite(norm):
                losses.append(loss)
                norms.append(norm)
                taken += 1
            else:
                skipped += 1
        return UpdateStats(
            loss=_mean(losses) if batch.mini_batches else 0.0,
            grad_norm=_mean(norms) if batch.mini_batches else 0.0,
            learning_rate=learning_rate,
            logprob_gap=gaps[0] if gaps else None,
            ratios=None,
            optimizer_steps=taken,
            skipped_steps=skipped,
        )

    def save(self, folder: str) -> None:
        """Write the model (as transformers loads it) and everything needed to go on exactly."""
        self.policy.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        state = {
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "torch_rng": torch.get_rng_state(),
        }
        torch.save(state, Path(folder) / STATE_FILE)

    def load(self, folder: str) -> None:
        """Continue from what `save` wrote."""
        saved = load_policy(folder, self.model.model_kwargs.trust_remote_code, torch.device("cpu"))
        self.policy.load_state_dict(saved.state_dict())
        state = torch.load(Path(folder) / STATE_FILE, map_location="cpu", weights_only=True)
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self._apply_settings()
        torch.set_rng_state(state["torch_rng"])

    def _apply_settings(self) -> None:
        """The config's optimizer settings, which may have changed since the state was saved."""
        peak = self.agent.learning_rate
        self.schedule.base_lrs = [peak]
        for group in self.optimizer.param_groups:
            group["initial_lr"] = peak
            group["lr"] = peak * self.schedule.lr_lambdas[0](self.schedule.last_epoch)
            group["betas"] = (self.settings.adam_beta1, self.settings.adam_beta2)
            group["weight_decay"] = self.settings.weight_decay
        self.schedule._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def export(self, folder: str, texts: list[str]) -> None:
        """Write the model in the engines' dtype, and the tokenizer: whole, or not there.

        Raises RuntimeError if the saved tokenizer, loaded again, gives other ids of `texts` than the one trained with.
        """
        weights = {
            name: tensor.to(self.dtype) if tensor.is_floating_point() else tensor
            for name, tensor in self.policy.state_dict().items()
        }
        final, hidden = Path(folder), Path(folder).with_name(f".{Path(folder).name}")
        self.policy.save_pretrained(hidden, state_dict=weights)
        self.tokenizer.save_pretrained(hidden)
        saved = load_tokenizer(str(hidden), ModelConfig(model_kwargs=self.model.model_kwargs))
        if fingerprint(saved, texts) != fingerprint(self.tokenizer, texts):
            raise RuntimeError(f"the tokenizer saved in {folder} splits text differently when it is loaded again")
        shutil.rmtree(final, ignore_errors=True)
        os.replace(hidden, final)

    def _optimizer_step(self, rows: Sequence[PromptRow], normalizer: int) -> tuple[float, float, float]:
        """Returns loss, gradient norm and log-probability gap. What is not finite is left out."""
        loss, gap, tokens = 0.0, 0.0, 0
        self.optimizer.zero_grad()
        for batch in micro_batches(rows, self.settings.microbatch_tokens, self.layout):
            tokens += int((batch.tokens != NO_TOKEN).sum())
            batch = batch.to(self.device)
            with compute_in(self.dtype, self.device):
                logprobs = token_logprobs(self.policy, batch, self.agent.temperature)
                part = -(batch.weights * logprobs).sum()
            part.backward()
            loss += part.item()
            gap += (logprobs.detach() - batch.behaviour_logprobs).abs().sum().item()
        for parameter in self.policy.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(normalizer)
        norm = float(torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.settings.max_grad_norm))
        if math.isfinite(loss) and math.isfinite(norm):
            self.optimizer.step()
            self.schedule.step()
        return loss / normalizer, norm, gap / tokens


def schedule_factor(name: str, warmup_steps: int, total_steps: int) -> Callable[[int], float]:
    """Factor of the learning rate at optimizer step k: it rises linearly, then follows `name`."""

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        done = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
        if name == "linear":
            return 1 - done
        if name == "cosine":
            return (1 + math.cos(math.pi * done)) / 2
        return 1.0

    return factor


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
