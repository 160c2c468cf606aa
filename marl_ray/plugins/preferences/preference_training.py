"""Offline preference learning from a file of joint preferences, by the learners of a run and without Ray.

The loss is the one of estimator `madpo` (`marl_ray.credit.preferences`): in each step every policy scores its answers,
the sums of all agents give the weight of a pair, and every learner takes one step of its policy gradient. All policies
are in this process at once, because the weight of a pair depends on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from marl_ray.config import Config
from marl_ray.core.batch import Group
from marl_ray.core.episode import Completion, sibling_calls
from marl_ray.core.errors import UserError
from marl_ray.credit.groups import build_batch
from marl_ray.credit.preferences import preference_slope
from marl_ray.learning.arguments import learner_arguments
from marl_ray.learning.learner import Learner
from marl_ray.learning.micro_batches import unweighted_row
from marl_ray.plugins.preferences.epochs import HeldOutFit, progress_bar
from marl_ray.plugins.preferences.preference_file import WrittenPreference
from marl_ray.plugins.preferences.selection import hold_out
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
        self.learners = {policy: Learner(*learner_arguments(self.config, policy, steps)) for policy in config.policies}
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
                self._references |= {id(one): value for one, value in zip(part, self._differences(part), strict=True)}
                bar.update(len(part))

    def differences(self, preferences: Sequence[WrittenPreference]) -> list[float]:
        """Return log pi(chosen) - log pi(rejected) of the joint policy, less the reference's, per preference."""
        current = self._differences(preferences)
        return [value - self._references.get(id(one), 0.0) for one, value in zip(preferences, current, strict=True)]

    def fit(self, preferences: Sequence[WrittenPreference]) -> HeldOutFit:
        """Return the loss on these preferences, a mean over preferences and agents, and the share of them whose chosen
        joint answer is more likely, relative to the reference, than the rejected one."""
        differences = self.differences(preferences)
        return HeldOutFit(self._loss(differences), sum(d > 0 for d in differences) / len(differences))

    def step(self, preferences: Sequence[WrittenPreference]) -> float:
        """Take one optimizer step per policy and return the loss before. Raises UserError for a loss that is not
        finite."""
        differences = self.differences(preferences)
        for policy, learner in self.learners.items():
            weights: dict[PromptAndCompletion, float] = {}
            for preference, difference in zip(preferences, differences, strict=True):
                for agent in policy.agents:
                    slope = preference_slope(difference, self.config.agents[agent].preference_beta)
                    for weight, side in ((slope, preference.chosen), (-slope, preference.rejected)):
                        answer = answer_of(side[agent])
                        weights[answer] = weights.get(answer, 0.0) + weight
            groups = grouped(list(weights))
            # The learner divides by the number of groups, and the loss is the mean over pairs and agents.
            scale = len(groups) / (len(preferences) * len(policy.agents))
            weighted = [
                replace(group, weights=tuple(scale * weights[one] for one in answers)) for group, answers in groups
            ]
            if learner.update(build_batch(weighted, learner.step, self.config.training)).skipped_steps:
                raise UserError(f"{policy}: the loss is not finite in step {learner.step}: lower --learning-rate")
        return self._loss(differences)

    def export(self, policy_folder: dict[str, Path], prompts: Sequence[WrittenPreference]) -> None:
        """Write the model of each policy to its folder, by the policy's key."""
        for policy, learner in self.learners.items():
            texts = [learner.tokenizer.decode(one.chosen[policy.first_agent].prompt_ids) for one in prompts]
            learner.export(str(policy_folder[policy.key]), texts)

    def _loss(self, differences: Sequence[float]) -> float:
        betas = [agent.preference_beta for agent in self.config.agents]
        return fmean(softplus(-beta * difference) for difference in differences for beta in betas)

    def _differences(self, preferences: Sequence[WrittenPreference]) -> list[float]:
        totals = [0.0] * len(preferences)
        for policy, learner in self.learners.items():
            sides = [side for one in preferences for side in (one.chosen, one.rejected)]
            groups = grouped([answer_of(side[agent]) for side in sides for agent in policy.agents])
            rows = [unweighted_row(group) for group, _ in groups]
            scored = learner.logprob_model.logprobs(rows, learner.settings.tokens_per_microbatch)
            answers = [answer for _, of_prompt in groups for answer in of_prompt]
            sums = {answer: float(own.double().sum()) for answer, own in zip(answers, scored, strict=True)}
            for number, one in enumerate(preferences):
                for agent in policy.agents:
                    totals[number] += sums[answer_of(one.chosen[agent])] - sums[answer_of(one.rejected[agent])]
        return totals


def answer_of(group: Group) -> PromptAndCompletion:
    """Return the prompt and the completion of a group of one completion."""
    return group.prompt_ids, group.completions[0]


def grouped(answers: Sequence[PromptAndCompletion]) -> list[tuple[Group, list[PromptAndCompletion]]]:
    """Return the distinct answers, each prompt's as one group, whose prompt is computed once."""
    of_prompt: dict[tuple[int, ...], list[PromptAndCompletion]] = {}
    for answer in dict.fromkeys(answers):
        of_prompt.setdefault(answer[0], []).append(answer)
    groups: list[tuple[Group, list[PromptAndCompletion]]] = []
    for prompt, found in of_prompt.items():
        calls = sibling_calls(prompt, [completion for _, completion in found])
        groups.append((Group(0, calls, (0.0,) * len(found)), found))
    return groups


def hold_out_preferences(
    preferences: Sequence[WrittenPreference], share: float, seed: int
) -> tuple[list[WrittenPreference], list[WrittenPreference]]:
    """Return the preferences to train on and the held-out ones, of a random `share` of the first agent's prompts and at
    least one. Raises UserError if all have one prompt."""
    groups = [one.chosen[0] for one in preferences]
    held = {group.prompt_ids for group in hold_out(groups, share, seed, "preferences")[1]}
    parts = [[one for one in preferences if (one.chosen[0].prompt_ids in held) is side] for side in (False, True)]
    return parts[0], parts[1]


def softplus(value: float) -> float:
    """Return log(1 + exp(value))."""
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))
