"""The learner actor of one agent: AdamW on the group-relative policy gradient, weight sync, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from marl_ray.config.schema import AlgorithmConfig, ModelConfig
from marl_ray.core.messages import Group, UpdateStats, WeightVersion
from marl_ray.learning.batching import NO_TOKEN, Row, micro_batches, to_rows
from marl_ray.learning.policy import choose_layout, compute_in, load_policy, token_logprobs
from marl_ray.models.tokenization import fingerprint, load_tokenizer
from marl_ray.weights.transport import GeneratorClient, Publisher, TransportName

STATE_FILE = "learner.pt"


class Learner:
    """Ray actor. `total_steps` is the number of optimizer steps the schedule spans."""

    def __init__(
        self,
        agent: int,
        model_name: str,
        model: ModelConfig,
        algorithm: AlgorithmConfig,
        wire_dtype: str,
        total_steps: int,
        threads: int,
    ) -> None:
        torch.set_num_threads(threads)
        self.agent = agent
        self.algorithm = algorithm
        self.temperature = model.temperature
        self.dtype = getattr(torch, wire_dtype)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = load_tokenizer(model_name, model)
        self.model_kwargs = model.model_kwargs
        self.policy = load_policy(model_name, self.model_kwargs.trust_remote_code, self.device)
        self.layout, self.why_padded = choose_layout(self.policy, self.device, model.max_length)
        if algorithm.gradient_checkpointing:
            self.policy.gradient_checkpointing_enable()
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(),
            lr=algorithm.learning_rate or 0.0,
            betas=(algorithm.adam_beta1, algorithm.adam_beta2),
            weight_decay=algorithm.weight_decay,
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, schedule_factor(algorithm.lr_scheduler, algorithm.warmup_steps, total_steps)
        )
        self.publisher: Publisher | None = None
        self.probe_texts: list[str] = []

    def ready(self) -> list[str]:
        """Answers once the model is loaded, with what people should know of it."""
        if self.layout == "packed":
            return []
        return [
            f"agent {self.agent}: learns in padded batches with the model's own attention, which takes longer: "
            f"{self.why_padded}"
        ]

    def tokenizer_fingerprint(self, texts: list[str]) -> str:
        """See `marl_ray.models.tokenization.fingerprint`."""
        self.probe_texts = texts
        return fingerprint(self.tokenizer, texts)

    def sees(self, path: str) -> bool:
        """Whether this actor's node sees `path` of the driver's file system."""
        return Path(path).exists()

    def connect(self, generators: list[Any], ranks: int, transport: TransportName, deadline_s: float) -> None:
        """Join the agent's generators for weight sync."""
        client = GeneratorClient(generators, ranks, deadline_s)
        self.publisher = Publisher(self.policy, self.dtype, transport, client)

    def publish(self, version: WeightVersion) -> int:
        """Push the weights to the generators as `version`; returns the acknowledged checksum."""
        assert self.publisher is not None, "connect comes first"
        return self.publisher.publish(version)

    def relabel(self, version: WeightVersion) -> int:
        """Let the generators serve the weights that they have as `version`; returns the acknowledged checksum."""
        assert self.publisher is not None, "connect comes first"
        return self.publisher.relabel(version)

    def update(self, groups: list[Group]) -> UpdateStats:
        """One pass over `groups` in mini-batches of `train_batch_size` groups.

        An optimizer step each; one without a gradient changes nothing and is none: AdamW would go on with its momentum.
        """
        algorithm = self.algorithm
        size = algorithm.train_batch_size or max(len(groups), 1)
        losses, norms, gaps, skipped, taken = [], [], [], 0, 0
        learning_rate = float(self.schedule.get_last_lr()[0])
        for start in range(0, len(groups), size):
            rows = to_rows(
                groups[start : start + size],
                algorithm.turn_gradient_weights or [],
                algorithm.estimator or "magrpo",
                algorithm.normalize_advantages,
                algorithm.loss_aggregation,
            )
            if not rows:
                losses.append(0.0)
                norms.append(0.0)
                continue
            loss, norm, gap = self._optimizer_step(rows)
            gaps.append(gap)
            if math.isfinite(loss) and math.isfinite(norm):
                losses.append(loss)
                norms.append(norm)
                taken += 1
            else:
                skipped += 1
        return UpdateStats(
            loss=_mean(losses),
            grad_norm=_mean(norms),
            learning_rate=learning_rate,
            logprob_gap=gaps[0] if gaps else None,
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
        saved = load_policy(folder, self.model_kwargs.trust_remote_code, torch.device("cpu"))
        self.policy.load_state_dict(saved.state_dict())
        state = torch.load(Path(folder) / STATE_FILE, map_location="cpu", weights_only=True)
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self._apply_settings()
        torch.set_rng_state(state["torch_rng"])

    def _apply_settings(self) -> None:
        """The config's optimizer settings, which may have changed since the state was saved."""
        algorithm = self.algorithm
        peak = algorithm.learning_rate or 0.0
        self.schedule.base_lrs = [peak]
        for group in self.optimizer.param_groups:
            group["initial_lr"] = peak
            group["lr"] = peak * self.schedule.lr_lambdas[0](self.schedule.last_epoch)
            group["betas"] = (algorithm.adam_beta1, algorithm.adam_beta2)
            group["weight_decay"] = algorithm.weight_decay
        self.schedule._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def export(self, folder: str) -> None:
        """Write the model in the engines' dtype, and the tokenizer.

        Raises RuntimeError if the saved tokenizer, loaded again, gives other ids than the one trained with.
        """
        weights = {
            name: tensor.to(self.dtype) if tensor.is_floating_point() else tensor
            for name, tensor in self.policy.state_dict().items()
        }
        self.policy.save_pretrained(folder, state_dict=weights)
        self.tokenizer.save_pretrained(folder)
        saved = load_tokenizer(folder, ModelConfig(model_kwargs=self.model_kwargs))
        if fingerprint(saved, self.probe_texts) != fingerprint(self.tokenizer, self.probe_texts):
            raise RuntimeError(f"the tokenizer saved in {folder} splits text differently when it is loaded again")

    def _optimizer_step(self, rows: Sequence[Row]) -> tuple[float, float, float]:
        """Returns loss, gradient norm and log-probability gap. What is not finite is left out."""
        loss, gap, tokens = 0.0, 0.0, 0
        self.optimizer.zero_grad()
        for batch in micro_batches(rows, self.algorithm.microbatch_tokens, self.layout):
            tokens += int((batch.tokens != NO_TOKEN).sum())
            batch = batch.to(self.device)
            with compute_in(self.dtype, self.device):
                logprobs = token_logprobs(self.policy, batch, self.temperature)
                part = -(batch.weights * logprobs).sum()
            part.backward()
            loss += part.item()
            gap += (logprobs.detach() - batch.behaviour_logprobs).abs().sum().item()
        norm = float(torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.algorithm.max_grad_norm))
        if math.isfinite(loss) and math.isfinite(norm):
            self.optimizer.step()
            self.schedule.step()
        return loss, norm, gap / tokens


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
