"""Health checks of episodes and updates that end a hopeless run."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from marl_ray.config import Config
from marl_ray.core.batch import UpdateStats
from marl_ray.core.episode import Episode
from marl_ray.core.errors import UserError
from marl_ray.rollout.unscored import check_failed_rewards

logger = logging.getLogger(__name__)

LOGPROB_GAP_WARNING = 0.05
"""Difference of sampler and learner in nats per token above which a run warns."""
MAX_UNSCORED_STEPS = 3
"""Number of steps in a row without any reward that end a run: a reward function without `return` gives None always."""


class HealthMonitor:
    """The health checks of one run. Methods raise UserError if continuing is useless."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.bad_steps = 0
        """Steps in a row with a loss or gradient that was not finite."""
        self.unscored_steps = 0
        """Steps in a row without any reward."""
        self.informative = 0
        """Samples of this process that can be learned from."""
        self.warned_of_gap = False
        self.warned_of_samples = False

    def check_rollout(self, episodes: Sequence[Episode], batch: int) -> None:
        """Check that batch `batch` (from 0) has an episode with a verdict, and that no token is staler than the bound.

        Raises UserError if all episodes or too many rewards failed, and RuntimeError for a stale token.
        """
        step = batch + 1
        if _all_stopped_by("infra_error", episodes):
            raise UserError(f"no episode of step {step} had a verdict: {episodes[0].stops[0].detail}")
        if _all_stopped_by("unscored", episodes):
            self.unscored_steps += 1
        else:
            self.unscored_steps = 0
        if self.unscored_steps == MAX_UNSCORED_STEPS:
            steps = f"{MAX_UNSCORED_STEPS} steps in a row, up to step {step},"
            raise UserError(f"no episode of {steps} had a reward: {episodes[0].stops[0].detail}")
        check_failed_rewards(episodes, f"step {step}", self.config.training.max_failed_rewards, self.config.algorithm)
        # No sample is staler than the bound, for any agent.
        allowed = range(batch - self.config.training.max_staleness, batch + 1)
        for agent in range(self.config.num_agents):
            versions = _sampled_versions(episodes, agent)
            if not versions <= set(allowed):
                served = f"agent {agent} served versions {sorted(versions)} in batch {batch}"
                raise RuntimeError(f"{served}: allowed {allowed}")

    def check_samples(self, batch: int, samples: int, informative: int, wanted: int, resumed: bool) -> None:
        """Check a step with dynamic sampling, in which `informative` of `samples` can be learned from.

        Warns once if a step has fewer than `wanted`. Raises UserError if the run has never had an informative sample;
        `resumed`: earlier processes of the run have produced batches.
        """
        self.informative += informative
        section = self.config.algorithm
        found = f"{informative} of {wanted} required have different rewards"
        problem = f"step {batch + 1} sampled {samples} tasks, of which {found}"
        advice = (
            f"raise {section}.temperature or num_generations, or use tasks that are neither too easy nor too hard; "
            f"{section}.max_extra_draws limits the extra samples"
        )
        if not self.informative and not resumed:
            raise UserError(f"{problem}: there is nothing to learn from. See episodes.jsonl; {advice}")
        if informative < wanted and not self.warned_of_samples:
            self.warned_of_samples = True
            logger.warning(f"{problem}, so it learns from fewer, as later steps may: {advice}")

    def check_updates(self, updates: Sequence[UpdateStats], step: int) -> None:
        """Check the updates of one step.

        Raises UserError after max_bad_steps non-finite steps in a row. Warns once if generators and learners disagree
        on log-probabilities and importance weights do not correct for the difference.
        """
        if any(stats.skipped_steps for stats in updates):
            self.bad_steps += 1
            logger.warning(f"step {step}: loss or gradient not finite, update skipped ({self.bad_steps} in a row)")
        else:
            self.bad_steps = 0
        if self.bad_steps >= self.config.training.max_bad_steps:
            problem = f"{self.bad_steps} steps in a row had a loss or gradient that is not finite"
            raise UserError(f"{problem}: lower {self.config.algorithm}.learning_rate and --resume")
        largest_gap = 0.0
        for stats in updates:
            # The gap of a skipped step may be infinite, and the step has its own warning.
            if stats.logprob_gap is not None and math.isfinite(stats.logprob_gap):
                largest_gap = max(largest_gap, stats.logprob_gap)
        is_uncorrected = self.config.importance == "none"
        if largest_gap > LOGPROB_GAP_WARNING and is_uncorrected and not self.warned_of_gap:
            self.warned_of_gap = True
            self._warn_of_gap(largest_gap)

    def _warn_of_gap(self, gap: float) -> None:
        cause = "top_p or top_k below neutral, or a dtype too coarse"
        staleness = self.config.training.max_staleness
        if staleness:
            cause = f"weights up to {staleness} versions old, {cause}"
        logger.warning(
            f"sampler and learner differ by {gap:.3f} nats per token on the sampled tokens ({cause}), and "
            f"{self.config.algorithm}.importance is none; see agent_*/logprob_gap"
        )

    def check_learning(self, learned: int, step: int) -> None:
        """Raise UserError if a run without any optimizer step has ended at `step`. `learned` counts all policies."""
        if learned == 0:
            raise UserError(
                f"no optimizer step up to step {step} had a gradient, mostly because every group's rewards were equal: "
                "nothing was learned. See the warnings above and episodes.jsonl; raise temperature or num_generations"
            )


def _all_stopped_by(reason: str, episodes: Sequence[Episode]) -> bool:
    """Return whether no episode has a first node, and all of them ended for this reason."""
    return all(episode.root is None and episode.stopped_by(reason) for episode in episodes)


def _sampled_versions(episodes: Sequence[Episode], agent: int) -> set[int]:
    """Return the versions of the weights that have sampled any token of an agent."""
    versions: set[int] = set()
    for episode in episodes:
        for _, node in episode.nodes():
            for completion in node.every_completion[agent]:
                versions.update(version for version, _ in completion.spans)
    return versions
