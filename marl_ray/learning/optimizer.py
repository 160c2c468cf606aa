"""The optimizer and its learning-rate schedule."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from marl_ray.config import OptimizerConfig
from marl_ray.learning import OPTIMIZERS
from marl_ray.learning.arguments import require_optimizer
from marl_ray.learning.sharding import full_tensor
from marl_ray.learning.torch_private import set_last_rates

# On import it warns about missing 4-bit kernels, which are not used here.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

Schedule = torch.optim.lr_scheduler.LambdaLR
ParameterGroups = list[dict[str, Any]]
"""Parameters `params` and peak learning rate `lr` of each group."""


def make_optimizer(
    groups: Sequence[tuple[Sequence[torch.nn.Parameter], float]], settings: OptimizerConfig, total_steps: int
) -> tuple[torch.optim.Optimizer, Schedule]:
    """Return the optimizer over groups of parameters, each with its peak learning rate, and its schedule.

    `total_steps` is the number of optimizer steps that the schedule spans. Raises UserError if a library is missing.
    """
    parameter_groups = [{"params": parameters, "lr": peak} for parameters, peak in groups]
    make = OPTIMIZERS.get(settings.optimizer)
    optimizer: torch.optim.Optimizer = make(parameter_groups, settings)
    factor = schedule_factor(settings.lr_scheduler, settings.warmup_steps, total_steps)
    return optimizer, Schedule(optimizer, factor)


def adamw(groups: ParameterGroups, settings: OptimizerConfig) -> torch.optim.Optimizer:
    """Return torch's fused AdamW, which takes one pass over memory instead of ten."""
    betas = settings.adam_beta1, settings.adam_beta2
    return torch.optim.AdamW(groups, betas=betas, weight_decay=settings.weight_decay, fused=True)


def adamw_8bit(groups: ParameterGroups, settings: OptimizerConfig) -> torch.optim.Optimizer:
    """Return bitsandbytes' AdamW with moments of one byte. Raises UserError if bitsandbytes is missing."""
    require_optimizer(settings)
    from bitsandbytes.optim import AdamW8bit

    betas = settings.adam_beta1, settings.adam_beta2
    return AdamW8bit(groups, betas=betas, weight_decay=settings.weight_decay)


def adafactor(groups: ParameterGroups, settings: OptimizerConfig) -> torch.optim.Optimizer:
    """Return torch's Adafactor."""
    return torch.optim.Adafactor(groups, weight_decay=settings.weight_decay)


def apply_settings(optimizer: torch.optim.Optimizer, schedule: Schedule, peaks: Sequence[float]) -> None:
    """Apply the settings with which the optimizer was created to a loaded state; `peaks` are the groups' learning
    rates."""
    schedule.base_lrs = list(peaks)
    for group, peak in zip(optimizer.param_groups, peaks, strict=True):
        group |= optimizer.defaults
        group["initial_lr"] = peak
        group["lr"] = peak * schedule.lr_lambdas[0](schedule.last_epoch)
    set_last_rates(schedule, [group["lr"] for group in optimizer.param_groups])


def clip_gradients(parameters: Iterable[torch.nn.Parameter], settings: OptimizerConfig) -> float:
    """Scale gradients to a norm of at most `max_grad_norm`, and return their norm before, over all ranks."""
    bound = settings.max_grad_norm
    if bound is None:
        bound = math.inf
    norm = torch.nn.utils.clip_grad_norm_(parameters, bound)
    return float(full_tensor(norm))


def clip_and_remove(
    parameters: Sequence[torch.nn.Parameter], settings: OptimizerConfig
) -> tuple[float, list[torch.Tensor | None]]:
    """Clip gradients and take them out of their parameters. Return their norm before, and the gradients."""
    norm = clip_gradients(parameters, settings)
    taken = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return norm, taken


def add_gradients(parameters: Sequence[torch.nn.Parameter], gradients: Sequence[torch.Tensor | None]) -> None:
    """Add gradients to the gradients of parameters."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            continue
        if parameter.grad is not None:
            gradient = parameter.grad + gradient
        parameter.grad = gradient


def schedule_factor(name: str, warmup_steps: int, total_steps: int) -> Callable[[int], float]:
    """Return the learning rate's factor as a function of the optimizer step: a linear warmup, then `name`."""

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
