"""Runs of a program that repeat a recorded run, except for one call or for one agent.

A recorded run is a map from requests to answers. A program that is run again gets the recorded answer to every request
that it makes again, so only requests that read something new are sampled:

- A branch replay samples the answer to one request anew. Siblings have equal prompts there, and their returns differ
  only by that answer and its consequences. This is the replay of C3, "Contextual counterfactual credit", for programs.
  The siblings are a group like any other, for any estimator.
- A removal gives empty answers in place of one agent's: the counterfactual of difference rewards (Wolpert and Tumer,
  2002), with agents that talk.

Neither adds a bias. A request is chosen by a stream of its own with a known probability, by whose inverse its gradient
is multiplied. Whether a later answer is a recorded one depends on prompts alone, so it is a sample of the policy either
way, whatever was sampled anew. Siblings that repeat a prompt share its answer, and with it noise that their baseline
removes; where they read something new, each has streams of its own.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from marl_ray.core.episode import Completion

RequestKey = tuple[int, tuple[int, ...], int]
"""A request of a run: the agent, the token ids of its prompt, and the number of earlier requests with both."""
RecordedAnswers = Mapping[RequestKey, tuple[Completion, ...]]
"""The completions of a run by request, in the order of their ends."""
REMOVED = Completion((), "", (), "removed", ())
"""The answer of an agent that is left out."""


@dataclass(frozen=True, slots=True)
class Script:
    """The answers of a run that are not sampled from the run's own streams: none by default."""

    answers: RecordedAnswers = field(default_factory=dict)
    """Recorded answers, which are given again."""
    anew: RequestKey | None = None
    """The request whose answer is sampled, with all that is new after it, from the streams of number `sibling`."""
    sibling: int = 0
    absent: int | None = None
    """The agent whose answers are empty."""

    def given(self, request: RequestKey, choices: int) -> tuple[Completion, ...] | None:
        """Return the completions of a request that are not sampled, None if they are."""
        if request[0] == self.absent:
            return (REMOVED,) * choices
        recorded = self.answers.get(request)
        if request == self.anew or recorded is None or len(recorded) != choices:
            return None
        return recorded

    @property
    def stream(self) -> tuple[str | int, ...]:
        """The end of the names of random streams."""
        return () if self.anew is None else ("replay", self.sibling)

    def is_kept_by(self, answers: RecordedAnswers) -> bool:
        """Return whether a run has made the request that was to be sampled anew, and all requests before it."""
        if self.anew is None:
            return True
        for request in self.answers:
            if request not in answers:
                return False
            if request == self.anew:
                break
        return True


SAMPLED = Script()
"""All answers are sampled from the run's own streams."""


def choose_requests(
    answers: RecordedAnswers, agents: Collection[int], count: int, rng: random.Random
) -> tuple[list[RequestKey], float]:
    """Return at most `count` requests of these agents, drawn without replacement, and one by their probability.

    Example:
        >>> calls = {(0, (7,), 0): (REMOVED,), (1, (8,), 0): (REMOVED,), (1, (9,), 0): (REMOVED,)}
        >>> choose_requests(calls, [1], 1, random.Random(0))
        ([(1, (9,), 0)], 2.0)
    """
    # Sorted, because concurrent calls end in any order.
    requests = sorted(request for request in answers if request[0] in agents)
    chosen = rng.sample(requests, min(count, len(requests)))
    return chosen, len(requests) / max(len(chosen), 1)
