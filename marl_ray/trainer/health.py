"""Whether a run may go on: what its episodes and updates must look like."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from marl_ray.config import Config
from marl_ray.core.batch import UpdateStats
from marl_ray.core.episode import Episode
from marl_ray.core.errors import UserError

logger = logging.getLogger(__name__)

LOGPROB_GAP_WARNING = 0.05


class HealthMonitor:
    """Watches one run. Its methods raise UserError when there is no use in going on."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.bad_steps = 0
        self.warned = self.warned_of_draws = False
        self.found_draws = 0

    def check_rollout(self, episodes: Sequence[Episode], batch: int) -> None:
        """The episodes of batch number `batch` (from 0) have verdicts, and no token is staler than the bound.

        One lost episode is counted; a batch that lost all of them ends the run. Raises RuntimeError for a stale token.
        """
        if all(episode.root is None and episode.stopped_by("infra_error") for episode in episodes):
            raise UserError(f"no episode of step {batch + 1} had a verdict: {episodes[0].stops[0].detail}")
        allowed = range(batch - self.config.rollout.max_staleness, batch + 1)
        for agent in range(self.config.num_agents):
            found = {
                version
                for episode in episodes
                for _, node in episode.nodes()
                for completion in node.every_completion[agent]
                for version, _ in completion.spans
            }
            if not found <= set(allowed):
                raise RuntimeError(f"agent {agent} served versions {sorted(found)} in batch {batch}: allowed {allowed}")

    def check_samples(self, batch: int, draws: int, found: int, wanted: int, later: bool) -> None:
        """Of a step with dynamic_sampling, which took `draws` and found so many of those `wanted` to learn from;
        `later`: the run has batches of an earlier process. Says once that there are too few; a run that has found none
        at all, ever, ends. Raises UserError."""
        self.found_draws += found
        section = self.config.algorithm
        short = f"step {batch + 1} took {draws} tasks, and in {found} of the {wanted} that it needs rewards differ"
        cure = (
            f"raise {section}.temperature or num_generations, or take tasks that are neither too easy nor too hard; "
            f"{section}.max_extra_draws is how many it may take"
        )
        if not self.found_draws and not later:
            raise UserError(f"{short}: there is nothing to learn from. Look at episodes.jsonl; {cure}")
        if found < wanted and not self.warned_of_draws:
            self.warned_of_draws = True
            logger.warning(f"{short}, so it learns from fewer, as later steps may: {cure}")

    def check_updates(self, updates: Sequence[UpdateStats], step: int) -> None:
        """Too many bad steps in a row end the run; a warning comes once when sampler and learner disagree and nothing
        (`importance`) makes up for it."""
        bad = any(stats.skipped_steps for stats in updates)
        self.bad_steps = self.bad_steps + 1 if bad else 0
        if bad:
            logger.warning(f"step {step}: loss or gradient not finite, update skipped ({self.bad_steps} in a row)")
        if self.bad_steps >= self.config.loop.max_bad_steps:
            raise UserError(
                f"{self.bad_steps} steps in a row had a loss or gradient that is not finite: lower "
                f"{self.config.algorithm}.learning_rate and --resume"
            )
        gaps = [stats.logprob_gap for stats in updates if stats.logprob_gap is not None]
        gap = max((gap for gap in gaps if math.isfinite(gap)), default=0.0)
        if gap > LOGPROB_GAP_WARNING and not self.warned and self.config.importance == "none":
            self.warned = True
            why = "top_p or top_k below neutral, or a dtype too coarse"
            if self.config.rollout.max_staleness:
                why = f"weights up to {self.config.rollout.max_staleness} versions old, {why}"
            logger.warning(
                f"sampler and learner differ by {gap:.3f} nats a token on the sampled tokens ({why}), and "
                f"{self.config.algorithm}.importance is none; see agent_*/logprob_gap"
            )

    def check_learning(self, learned: int, step: int) -> None:
        """`learned`: optimizer steps of the run, over all agents and from its first start, up to its end at `step`."""
        if learned == 0:
            raise UserError(
                f"no optimizer step up to step {step} had a gradient: every group's rewards were equal, so "
                "nothing was learned. Look at episodes.jsonl; raise temperature or num_generations"
            )
