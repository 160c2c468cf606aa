"""Training on fixed examples for some epochs, with a look at held-out examples before and after each."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

from marl_ray.core.random_streams import random_stream
from marl_ray.core.text import pluralize
from marl_ray.telemetry.logs import progress_bar_disabled, tqdm

logger = logging.getLogger(__name__)
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class HeldOutFit:
    """The loss of held-out examples; for preferences also the share of pairs whose preferred answer scores higher."""

    loss: float
    accuracy: float | None = None


def train_epochs(
    name: str,
    what: str,
    parts: tuple[Sequence[E], Sequence[E]],
    epochs: int,
    batch_size: int,
    seed: int,
    stream: Sequence[str | int],
    step: Callable[[list[E]], float],
    fit: Callable[[Sequence[E]], HeldOutFit],
) -> list[HeldOutFit]:
    """Train for some epochs, in another random order each. Return the fit of the held-out examples before and after.

    `parts` are the examples to train on and the held-out ones, `what` is the word for one of them. `step` takes one
    optimizer step on a batch and returns its loss. `stream` names the random numbers.
    """
    trained, held_out = parts
    total = len(trained) + len(held_out)
    logger.info(f"{name}: {pluralize(total, what)}, {len(held_out)} of them held out")
    before = fit(held_out)
    fits = [before]
    steps = epochs * math.ceil(len(trained) / batch_size)
    with progress_bar(steps, name) as bar:
        for epoch in range(epochs):
            order = random_stream(seed, *stream, epoch).sample(range(len(trained)), len(trained))
            losses = []
            for start in range(0, len(order), batch_size):
                batch = [trained[number] for number in order[start : start + batch_size]]
                loss = step(batch)
                losses.append(loss)
                bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
                bar.update()
            after = fit(held_out)
            fits.append(after)
            text = f"loss {fmean(losses):.3f}, held-out loss {after.loss:.3f} (before: {before.loss:.3f})"
            if after.accuracy is not None:
                text += f", accuracy {after.accuracy:.0%}"
            logger.info(f"{name}: epoch {epoch + 1} of {epochs}: {text}")
    best = min(range(len(fits)), key=lambda epoch: fits[epoch].loss)
    if best < epochs:
        logger.warning(f"{name}: the held-out loss rose after epoch {best}: lower --epochs or --learning-rate")
    return fits


def progress_bar(total: int, name: str) -> Any:
    """Return a progress bar, which is hidden without a terminal."""
    return tqdm(total=total, desc=name, disable=progress_bar_disabled(), dynamic_ncols=True, leave=False)


def change(fits: Sequence[HeldOutFit]) -> str:
    """Return the first and the last loss, and accuracies if there are any, as text."""
    before = fits[0]
    after = fits[-1]
    losses = f"{before.loss:.3f} to {after.loss:.3f}"
    if before.accuracy is None or after.accuracy is None:
        return losses
    return f"{losses}, accuracy {before.accuracy:.0%} to {after.accuracy:.0%}"
