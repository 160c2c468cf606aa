"""On-policy distillation: the gradient of the divergence from teachers, per agent of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from marl_ray.config import AgentConfig, CreditConfig, ModelConfig, OptimizerConfig
from marl_ray.core.batch import Batch, Group, MiniBatch
from marl_ray.credit.groups import weight_group
from marl_ray.learning.learner import Learner
from marl_ray.models.tokenization import load_tokenizer
from tests.learning.builders import of_agent, some_groups, tiny_qwen2

COEFFICIENT, TEMPERATURE = 0.5, 0.7
AGENT = AgentConfig(
    name="tiny",
    temperature=TEMPERATURE,
    learning_rate=1e-2,
    reference_kl_coef=COEFFICIENT,
    estimator="distillation",
)


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory, tiny_policy: Path) -> list[Path]:
    """Return two models of another architecture with the vocabulary of the tiny policy."""
    folders = [tmp_path_factory.mktemp(f"teacher_{seed}") for seed in (1, 2)]
    for seed, folder in enumerate(folders, 1):
        model = tiny_qwen2(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 8  # far enough from the student, and from each other
        model.save_pretrained(folder)
        load_tokenizer(str(tiny_policy), ModelConfig()).save_pretrained(folder)
    return folders


def student(folder: Path, references: dict[int, str]) -> Learner:
    optimizer = OptimizerConfig(importance="none", reference_kl="k2_in_loss", max_grad_norm=None)
    arguments = (str(folder), AGENT, ModelConfig(), CreditConfig(), optimizer, "float32", 10, 1)
    return Learner(*arguments, references=references)


def distilled_groups(count: int, agents: Sequence[int]) -> list[Group]:
    groups = [of_agent(group, agents[i % len(agents)]) for i, group in enumerate(some_groups(count, 3))]
    return [weight_group(group, AGENT, CreditConfig()) for group in groups]


def logprobs(model: Any, group: Group) -> list[torch.Tensor]:
    """Return log-probabilities of each completion by the model alone."""
    found = []
    for completion in group.completions:
        ids = torch.tensor([[*group.prompt_ids, *completion.token_ids]])
        scores = (model(ids).logits[0, len(group.prompt_ids) - 1 : -1] / TEMPERATURE).log_softmax(-1)
        found.append(scores.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0])
    return found


def test_rewards_have_no_gradient() -> None:
    (group,) = distilled_groups(1, [0])
    assert len(set(group.returns)) > 1
    assert set(group.weights) == {0.0}


def test_the_gradient_is_that_of_each_token_times_its_log_ratio_to_the_agents_teacher(
    tiny_policy: Path, teachers: list[Path]
) -> None:
    # One policy learns from the teachers of two agents, as a team is distilled into one model.
    groups = distilled_groups(6, [0, 1])
    learner = student(tiny_policy, {agent: str(folder) for agent, folder in enumerate(teachers)})
    model = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32)
    references = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in teachers]
    loss = torch.zeros(())
    for group in groups:
        ours = logprobs(model, group)
        with torch.no_grad():
            theirs = logprobs(references[group.agent], group)
        for own, teacher in zip(ours, theirs, strict=True):
            advantages = teacher - own.detach()
            loss = loss - COEFFICIENT * (advantages * own).sum() / len(group.completions) / len(groups)
    loss.backward()
    learner.update(Batch(0, (MiniBatch(tuple(groups), len(groups)),)))
    for (name, found), wanted in zip(learner.policy.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_the_student_approaches_its_teacher(tiny_policy: Path, teachers: list[Path]) -> None:
    learner = student(tiny_policy, {0: str(teachers[0])})
    groups = tuple(distilled_groups(6, [0]))
    losses = [learner.update(Batch(step, (MiniBatch(groups, 6),))).loss for step in range(25)]
    assert losses[-1] < losses[0] / 2, "the loss is half of the squared log-ratios"


def test_agents_without_a_teacher_stay_near_the_initial_model(tiny_policy: Path, teachers: list[Path]) -> None:
    learner = student(tiny_policy, {0: str(teachers[0]), 1: str(tiny_policy)})
    of_agent_1 = tuple(distilled_groups(3, [1]))
    stats = learner.update(Batch(0, (MiniBatch(of_agent_1, 3),)))
    assert (stats.reference_kl, stats.optimizer_steps) == (0.0, 0)


def test_portions_of_several_teachers_are_bit_identical(tiny_policy: Path, teachers: list[Path]) -> None:
    groups = tuple(distilled_groups(6, [0, 1]))
    references = {agent: str(folder) for agent, folder in enumerate(teachers)}
    whole, portions = student(tiny_policy, references), student(tiny_policy, references)
    batch = Batch(0, (MiniBatch(groups, 6),))
    portions.accumulate(0, 0, groups[:1])
    portions.accumulate(0, 1, groups[1:4])
    rest = replace(batch, mini_batches=(MiniBatch(groups[4:], 6),))
    assert portions.finish(rest, 4) == whole.update(batch)
    for one, other in zip(whole.policy.parameters(), portions.policy.parameters(), strict=True):
        assert torch.equal(one, other)
