"""The optimizer with its schedule, made from the config and kept to it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from marl_ray.config import OptimizerConfig
from marl_ray.learning.arguments import require_optimizer
from marl_ray.learning.sharding import whole

# On import it warns that kernels for 4 bits, which nobody here uses, are not installed.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

Schedule = torch.optim.lr_scheduler.LambdaLR


def make_optimizer(
    groups: Sequence[tuple[Sequence[torch.nn.Parameter], float]], settings: OptimizerConfig, total_steps: int
) -> tuple[torch.optim.Optimizer, Schedule]:
    """The optimizer over groups of parameters, each with its peak learning rate; the schedule spans `total_steps`
    optimizer steps.

    AdamW keeps two numbers for each of a matrix' n * m weights, in 4 bytes or (Dettmers et al., 2022; bitsandbytes) in
    1, with a scale for every 256 of them; Adafactor (Shazeer and Stern, 2018) keeps n + m in all. Raises UserError
    where bitsandbytes is not installed.
    """
    require_optimizer(settings)
    given = [{"params": parameters, "lr": peak} for parameters, peak in groups]
    optimizer: torch.optim.Optimizer = _kind(settings.optimizer)(given, **_own_settings(settings))
    return optimizer, Schedule(optimizer, schedule_factor(settings.lr_scheduler, settings.warmup_steps, total_steps))


def apply_settings(
    optimizer: torch.optim.Optimizer, schedule: Schedule, peaks: Sequence[float], settings: OptimizerConfig
) -> None:
    """The config's settings, which may have changed since the state that was loaded was saved; `peaks` are the learning
    rates of the groups."""
    schedule.base_lrs = list(peaks)
    for group, peak in zip(optimizer.param_groups, peaks, strict=True):
        group["initial_lr"] = peak
        group["lr"] = peak * schedule.lr_lambdas[0](schedule.last_epoch)
        group |= _own_settings(settings)
    schedule._last_lr = [group["lr"] for group in optimizer.param_groups]


def _kind(name: str) -> Any:
    """The class of this name."""
    if name == "adamw_8bit":
        from bitsandbytes.optim import AdamW8bit

        return AdamW8bit
    return {"adamw": torch.optim.AdamW, "adafactor": torch.optim.Adafactor}[name]


def _own_settings(settings: OptimizerConfig) -> dict[str, Any]:
    """Those of the kind of optimizer."""
    if settings.optimizer == "adafactor":
        return {"weight_decay": settings.weight_decay}
    own = {"betas": (settings.adam_beta1, settings.adam_beta2), "weight_decay": settings.weight_decay}
    # torch's AdamW then takes one pass over the numbers, not ten; bitsandbytes' always does.
    return own | {"fused": True} if settings.optimizer == "adamw" else own


def clip_gradients(parameters: Iterable[torch.nn.Parameter], settings: OptimizerConfig) -> float:
    """Scale gradients down to `max_grad_norm`. Returns their norm before: of all ranks' parts together, where several
    share the model."""
    bound = math.inf if settings.max_grad_norm is None else settings.max_grad_norm
    return float(whole(torch.nn.utils.clip_grad_norm_(parameters, bound)))


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
