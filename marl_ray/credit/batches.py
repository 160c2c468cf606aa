"""Trees in, one agent's batch of weighted groups out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from marl_ray.config.schema import Config
from marl_ray.core.batch import Batch, Group, MiniBatch
from marl_ray.core.tree import Completion, Episode
from marl_ray.credit import ESTIMATORS
from marl_ray.credit.estimators import Estimator, whitened
from marl_ray.credit.returns import action_returns, completion_returns

Credited = tuple[int, tuple[int, ...], tuple[Completion, ...], tuple[float, ...]]
"""Turn, prompt ids, completions [G] and their returns [G]."""


def credit(episodes: Sequence[Episode], step: int, config: Config) -> list[Batch]:
    """Each agent's batch of step number `step` (from 0)."""
    return [batch_of_agent(episodes, agent, step, config) for agent in range(config.num_agents)]


def batch_of_agent(episodes: Sequence[Episode], agent: int, step: int, config: Config) -> Batch:
    """Every node of the trees as one group, in the episodes' order, cut into mini-batches of `train_batch_size`."""
    credited = list(credited_groups(episodes, agent, config.credit.discount, config.rollout.handoff == "all"))
    size = config.optimizer.train_batch_size or max(len(credited), 1)
    estimator = ESTIMATORS.get(config.agents[agent].estimator)
    settings = config.credit
    return Batch(
        step,
        tuple(
            mini_batch(
                credited[start : start + size],
                settings.turn_gradient_weights,
                estimator,
                settings.normalize_advantages,
                settings.loss_aggregation,
            )
            for start in range(0, len(credited), size)
        ),
    )


def credited_groups(episodes: Sequence[Episode], agent: int, discount: float, whole: bool) -> Iterator[Credited]:
    """Each node's group of the agent's completions, each once, with what is credited to them."""
    for episode in episodes:
        for _, node in episode.nodes():
            returns = completion_returns(node, agent, action_returns(node, agent, discount, whole))
            yield node.turn, node.prompt_ids[agent], tuple(node.completions[agent]), tuple(returns)


def mini_batch(
    groups: Sequence[Credited], turn_weights: Sequence[float], estimator: Estimator, whiten: bool, aggregation: str
) -> MiniBatch:
    """The groups of one optimizer step with the weight of each completion's summed log-probability in the loss.

    sequence_sum: w_t * A / G, then over the number of groups; token_mean: w_t * A, then over the tokens of all groups.
    """
    sums = aggregation == "sequence_sum"
    tokens = sum(len(c.token_ids) for _, _, completions, _ in groups for c in completions)
    found = []
    for turn, prompt_ids, completions, returns in groups:
        factor = turn_weights[turn] / (len(completions) if sums else 1)
        weights = tuple(factor * advantage for advantage in advantages(returns, estimator, whiten))
        found.append(Group(turn, prompt_ids, completions, returns, weights))
    return MiniBatch(tuple(found), len(found) if sums else max(tokens, 1))


def advantages(returns: Sequence[float], estimator: Estimator, whiten: bool) -> list[float]:
    """Of one group [G], in float64.

    Raises TypeError and ValueError, which name the estimator, for what are no advantages of these returns.
    """
    import torch  # here: the driver starts without it

    found = estimator(torch.tensor(returns, dtype=torch.float64))
    if not isinstance(found, torch.Tensor):
        raise TypeError(f"estimator {_name(estimator)} must give a tensor, not {type(found).__name__}")
    if found.shape != (len(returns),):
        shapes = f"{(len(returns),)}, not {tuple(found.shape)}"
        raise ValueError(f"estimator {_name(estimator)} must give advantages of the returns' shape {shapes}")
    if not bool(found.isfinite().all()) and all(map(math.isfinite, returns)):
        given = f"{found.tolist()} for the returns {list(returns)}"
        raise ValueError(f"estimator {_name(estimator)} must give finite advantages, not {given}")
    return (whitened(found) if whiten else found).tolist()


def _name(estimator: Estimator) -> str:
    """`module:qualname`, of the class where the estimator is an object of one."""
    named = estimator if hasattr(estimator, "__qualname__") else type(estimator)
    return f"{named.__module__}:{named.__qualname__}"
