"""Offline preference learning from a file of joint preferences, by the learners of a run and without Ray.

The loss is the one of estimator `madpo` (`marl_ray.credit.preferences`): in each step every policy scores its answers,
the sums of all agents give the weight of a pair, and every learner takes one step of its policy gradient. All policies
are in this process at once, because the weight of a pair depends on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from marl_ray.config import Config
from marl_ray.core.batch import Group
from marl_ray.core.episode import Completion, sibling_calls
from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from marl_ray.credit.groups import build_batch
from marl_ray.credit.preferences import preference_slope
from marl_ray.learning.arguments import learner_arguments
from marl_ray.learning.learner import Learner
from marl_ray.learning.micro_batches import unweighted_row
from marl_ray.plugins.preferences.epochs import HeldOutFit, progress_bar
from marl_ray.plugins.preferences.preference_file import WrittenPreference
from marl_ray.plugins.preferences.supervised import supervised

PromptAndCompletion = tuple[tuple[int, ...], Completion]
"""A prompt's token ids and one completion."""
SCORED_AT_ONCE = 64
"""Preferences between two movements of the progress bar."""


class PreferenceTrainer:
    """Trains the policies of `config`, one learner each, on joint preferences.

    With `has_reference`, log-probabilities are relative to the policies before training, as in DPO; without, the loss
    is MADPO of CoMLRL 1.4.3. `beta` is each agent's `preference_beta`.
    """

    def __init__(self, config: Config, steps: int, has_reference: bool) -> None:
        self.config = supervised(config, loss_aggregation="sequence_sum")
        self.learners: dict[PolicyId, Learner] = {}
        for policy in config.policies:
            arguments = learner_arguments(self.config, policy, steps)
            self.learners[policy] = Learner(*arguments)
        self.has_reference = has_reference
        self._references: dict[int, float] = {}
        """Differences of the joint log-probabilities before training, by the identity of the preference."""

    def set_reference(self, preferences: Sequence[WrittenPreference]) -> None:
        """Score the preferences with the policies before training, if the loss has a reference."""
        if not self.has_reference:
            return
        with progress_bar(len(preferences), "reference") as bar:
            for start in range(0, len(preferences), SCORED_AT_ONCE):
                part = preferences[start : start + SCORED_AT_ONCE]
                differences = self._differences(part)
                for preference, difference in zip(part, differences, strict=True):
                    self._references[id(preference)] = difference
                bar.update(len(part))

    def differences(self, preferences: Sequence[WrittenPreference]) -> list[float]:
        """Return log pi(chosen) - log pi(rejected) of the joint policy, less the reference's, per preference."""
        differences = self._differences(preferences)
        for number, preference in enumerate(preferences):
            differences[number] -= self._references.get(id(preference), 0.0)
        return differences

    def fit(self, preferences: Sequence[WrittenPreference]) -> HeldOutFit:
        """Return the loss on these preferences, a mean over preferences and agents, and the share of them whose chosen
        joint answer is more likely, relative to the reference, than the rejected one."""
        differences = self.differences(preferences)
        correct = sum(difference > 0 for difference in differences)
        return HeldOutFit(self._loss(differences), correct / len(differences))

    def step(self, preferences: Sequence[WrittenPreference]) -> float:
        """Take one optimizer step per policy and return the loss before. Raises UserError for a loss that is not
        finite."""
        differences = self.differences(preferences)
        for policy, learner in self.learners.items():
            weights = self._weights(policy, preferences, differences)
            groups = grouped(weights)
            # The learner divides by the number of groups, and the loss is the mean over pairs and agents.
            scale = len(groups) / (len(preferences) * len(policy.agents))
            weighted = []
            for group in groups:
                scaled = [scale * weights[answer] for answer in answers_of(group)]
                weighted.append(replace(group, weights=tuple(scaled)))
            stats = learner.update(build_batch(weighted, learner.step, self.config.training))
            if stats.skipped_steps:
                raise UserError(f"{policy}: the loss is not finite in step {learner.step}: lower --learning-rate")
        return self._loss(differences)

    def export(self, policy_folder: dict[str, Path], prompts: Sequence[WrittenPreference]) -> None:
        """Write the model of each policy to its folder, by the policy's key."""
        for policy, learner in self.learners.items():
            texts = []
            for preference in prompts:
                group = preference.chosen[policy.first_agent]
                texts.append(learner.tokenizer.decode(group.prompt_ids))
            learner.export(str(policy_folder[policy.key]), texts)

    def _weights(
        self, policy: PolicyId, preferences: Sequence[WrittenPreference], differences: Sequence[float]
    ) -> dict[PromptAndCompletion, float]:
        """Return the weight of each distinct answer of a policy: the sum over its pairs."""
        weights: dict[PromptAndCompletion, float] = {}
        for preference, difference in zip(preferences, differences, strict=True):
            for agent in policy.agents:
                beta = self.config.agents[agent].preference_beta
                slope = preference_slope(difference, beta)
                (chosen,) = answers_of(preference.chosen[agent])
                weights[chosen] = weights.get(chosen, 0.0) + slope
                (rejected,) = answers_of(preference.rejected[agent])
                weights[rejected] = weights.get(rejected, 0.0) - slope
        return weights

    def _loss(self, differences: Sequence[float]) -> float:
        losses = []
        for difference in differences:
            for agent in self.config.agents:
                losses.append(softplus(-agent.preference_beta * difference))
        return fmean(losses)

    def _differences(self, preferences: Sequence[WrittenPreference]) -> list[float]:
        """Return log pi(chosen) - log pi(rejected) of the joint policy, the sum over all agents, per preference."""
        totals = [0.0] * len(preferences)
        for policy, learner in self.learners.items():
            answers: list[PromptAndCompletion] = []
            for preference in preferences:
                for side in (preference.chosen, preference.rejected):
                    for agent in policy.agents:
                        answers += answers_of(side[agent])
            logprobs = answer_logprobs(learner, answers)
            for number, preference in enumerate(preferences):
                for agent in policy.agents:
                    (chosen,) = answers_of(preference.chosen[agent])
                    (rejected,) = answers_of(preference.rejected[agent])
                    totals[number] += logprobs[chosen] - logprobs[rejected]
        return totals


def answer_logprobs(learner: Learner, answers: Iterable[PromptAndCompletion]) -> dict[PromptAndCompletion, float]:
    """Return the log-probability of each distinct answer, summed over its tokens."""
    groups = grouped(answers)
    rows = [unweighted_row(group) for group in groups]
    token_logprobs = learner.logprob_model.logprobs(rows, learner.settings.tokens_per_microbatch)
    scored: list[PromptAndCompletion] = []
    for group in groups:
        scored += answers_of(group)
    sums = {}
    for answer, logprobs in zip(scored, token_logprobs, strict=True):
        sums[answer] = float(logprobs.double().sum())
    return sums


def answers_of(group: Group) -> list[PromptAndCompletion]:
    """Return the completions of a group, each with its prompt."""
    return [(group.prompt_ids, completion) for completion in group.completions]


def grouped(answers: Iterable[PromptAndCompletion]) -> list[Group]:
    """Return the distinct answers, each prompt's as one group, whose prompt is computed once."""
    completions: dict[tuple[int, ...], list[Completion]] = {}
    for prompt, completion in dict.fromkeys(answers):
        completions.setdefault(prompt, []).append(completion)
    groups = []
    for prompt, of_prompt in completions.items():
        calls = sibling_calls(prompt, of_prompt)
        groups.append(Group(0, calls, (0.0,) * len(of_prompt)))
    return groups


def softplus(value: float) -> float:
    """Return log(1 + exp(value))."""
    # The exponential function of a large positive number overflows.
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))
