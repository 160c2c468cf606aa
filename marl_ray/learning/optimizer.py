"""AdamW with a schedule, made from the config and kept to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch

from marl_ray.config.learning import OptimizerConfig

Schedule = torch.optim.lr_scheduler.LambdaLR


def make_optimizer(
    groups: Sequence[tuple[Sequence[torch.nn.Parameter], float]], settings: OptimizerConfig, total_steps: int
) -> tuple[torch.optim.AdamW, Schedule]:
    """AdamW over groups of parameters, each with its peak learning rate; the schedule spans `total_steps` optimizer
    steps."""
    optimizer = torch.optim.AdamW(
        [{"params": parameters, "lr": peak} for parameters, peak in groups],
        betas=(settings.adam_beta1, settings.adam_beta2),
        weight_decay=settings.weight_decay,
    )
    return optimizer, Schedule(optimizer, schedule_factor(settings.lr_scheduler, settings.warmup_steps, total_steps))


def apply_settings(
    optimizer: torch.optim.AdamW, schedule: Schedule, peaks: Sequence[float], settings: OptimizerConfig
) -> None:
    """The config's settings, which may have changed since the state that was loaded was saved; `peaks` are the learning
    rates of the groups."""
    schedule.base_lrs = list(peaks)
    for group, peak in zip(optimizer.param_groups, peaks, strict=True):
        group["initial_lr"] = peak
        group["lr"] = peak * schedule.lr_lambdas[0](schedule.last_epoch)
        group["betas"] = (settings.adam_beta1, settings.adam_beta2)
        group["weight_decay"] = settings.weight_decay
    schedule._last_lr = [group["lr"] for group in optimizer.param_groups]


def clip_gradients(parameters: Iterable[torch.nn.Parameter], settings: OptimizerConfig) -> float:
    """Scale gradients down to `max_grad_norm`. Returns their norm before."""
    bound = math.inf if settings.max_grad_norm is None else settings.max_grad_norm
    return float(torch.nn.utils.clip_grad_norm_(parameters, bound))


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
