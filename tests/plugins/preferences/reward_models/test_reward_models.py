"""Reward models: the loss of Bradley and Terry, models that learn and load again, and the environment of scores."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from marl_ray.cli.main import main
from marl_ray.config import OptimizerConfig
from marl_ray.core.errors import UserError
from marl_ray.data.loading import load_rows, load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.models.names import resolve_model
from marl_ray.plugins.preferences.preference_file import PreferencesFile
from marl_ray.plugins.preferences.reward_models.environment import LearnedReward
from marl_ray.plugins.preferences.reward_models.joint_text import joint_text
from marl_ray.plugins.preferences.reward_models.make_reward_model import text_pairs
from marl_ray.plugins.preferences.reward_models.options import RewardModelConfig
from marl_ray.plugins.preferences.reward_models.preference_fit import RewardModelTrainer, TextPair
from marl_ray.plugins.preferences.reward_models.reward_model import RewardModel, is_reward_model
from marl_ray.sandbox import Sandbox
from marl_ray.testing import check_environment
from tests.environments.talk import TASK, Talk
from tests.factories import QUICKSTART, quickstart_config

BASE = "bundled:toy-base"
PAIRS = [
    TextPair("p", "def aux(x):\n    return x + 1", "def aux(x): x"),
    TextPair("q", "def main(x):\n    return aux(x)", "main = aux = None, and more words"),
    TextPair("r", "short", "a longer text that is rejected"),
]


def trainer(learning_rate: float = 1e-3) -> RewardModelTrainer:
    settings = OptimizerConfig(max_grad_norm=None, warmup_steps=0)
    return RewardModelTrainer(RewardModel.load(BASE), settings, learning_rate, steps=20)


def test_scores_are_0_before_training_and_learn_the_pairs() -> None:
    learner = trainer()
    before = learner.fit(PAIRS)
    assert (before.loss, before.accuracy) == (pytest.approx(math.log(2)), 0.0)
    for _ in range(12):
        learner.step(PAIRS)
    after = learner.fit(PAIRS)
    assert after.loss < 0.3
    assert after.accuracy == 1.0


def test_the_gradient_is_that_of_the_loss_of_bradley_and_terry() -> None:
    learner = trainer()
    learner.step(PAIRS)  # a head of 0 passes no gradient to the layers
    model = learner.model.model
    loss = learner.backward(PAIRS)
    found = {name: parameter.grad for name, parameter in model.named_parameters()}

    body = AutoModel.from_pretrained(resolve_model(BASE), dtype=torch.float32)
    body.load_state_dict(model.base_model.state_dict())
    head = model.score.weight.detach().clone().requires_grad_()
    losses = []
    for pair in PAIRS:
        scores = []
        for text in (pair.chosen, pair.rejected):
            ids = torch.tensor([learner.model.tokenizer(text).input_ids])
            scores.append(body(ids).last_hidden_state[0, -1] @ head[0])
        losses.append(torch.log1p(torch.exp(scores[1] - scores[0])))
    expected_loss = torch.stack(losses).mean()
    expected_loss.backward()
    assert loss == pytest.approx(float(expected_loss.detach()), rel=1e-5)
    expected = {f"model.{name}": parameter.grad for name, parameter in body.named_parameters()}
    expected["score.weight"] = head.grad
    assert found.keys() == expected.keys()
    one, other = (torch.cat([g[name].double().flatten() for name in sorted(found)]) for g in (found, expected))
    assert float(one @ other / (one.norm() * other.norm())) == pytest.approx(1.0, abs=1e-9)
    assert float(one.norm() / other.norm()) == pytest.approx(1.0, rel=1e-5)


def test_a_saved_model_has_the_same_scores_whatever_is_scored_beside(tmp_path: Path) -> None:
    learner = trainer()
    learner.step(PAIRS)
    texts = [pair.chosen for pair in PAIRS]
    scores = learner.model.score(texts)
    assert len(set(scores)) == 3
    learner.model.save(tmp_path)
    assert (is_reward_model(BASE), is_reward_model(str(tmp_path))) == (False, True)
    loaded = RewardModel.load(str(tmp_path))
    assert loaded.score(texts) == scores
    assert [loaded.score([text])[0] for text in texts] == pytest.approx(scores, abs=1e-5)


def test_a_long_text_keeps_its_end() -> None:
    model = RewardModel.load(BASE, max_length=5)
    (ids,) = model.token_ids(["a b c d e f g h"])
    assert ids == model.tokenizer("a b c d e f g h").input_ids[-5:]


def test_only_the_head_learns() -> None:
    model = RewardModel.load(BASE)
    learner = RewardModelTrainer(model, OptimizerConfig(), 1e-3, steps=2, head_only=True)
    before = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    learner.step(PAIRS)
    changed = [name for name, tensor in model.model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert changed == ["score.weight"]


# The environment


class Words(RewardModel):
    """The number of words of a text as its score, in place of a model, which the environment calls the same way."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def score(self, texts: Any) -> list[float]:
        self.calls.append(len(texts))
        return [float(len(text.split())) for text in texts]


def scored(base: Any) -> LearnedReward:
    environment = LearnedReward(base, RewardModelConfig(environment="talk", name="m"))
    environment.model = Words()  # type: ignore[misc]
    return environment


def test_the_reward_is_the_score_and_the_task_s_reward_a_metric() -> None:
    environment = scored(Talk(2))
    attempt = environment.attempt(TASK, ["Hello there.", "And you?"], True)
    assert attempt.text == joint_text(Talk(2).first_prompts(TASK), ["Hello there.", "And you?"])
    again = environment.attempt(TASK, ["Hello there.", "And you?"], True)
    reports = asyncio.run(environment.execute([*attempt.program, *again.program], None))
    assert environment.model.calls == [1]
    outcome = environment.outcome(attempt, (reports[0],))
    assert outcome.reward == float(len(attempt.text.text.split()))
    assert outcome.levels == {"reward_model": outcome.reward}
    assert outcome.metrics["task_reward"] == 20.0
    assert environment.feedback(attempt, outcome, "passed", 0) == ["20 characters"]


def test_programs_of_the_task_are_executed_too(sandbox: Sandbox) -> None:
    tasks = load_tasks("bundled:toy", "eval[:1]")
    entry_point = tasks[0].fields["entry_point"]
    answers = ["def aux(x):\n    return x + 1", f"def {entry_point}(x):\n    return aux(x) + 1"]
    environment = scored(CodeGeneration(2))

    def execute(programs: Any) -> list[Any]:
        class Executor:
            async def execute(self, given: Any) -> list[Any]:
                return sandbox.run_batch(given)

        return asyncio.run(environment.execute(programs, Executor()))

    check_environment(environment, tasks, [answers, answers[::-1]], execute=execute)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "set reward_model.name to a folder of marl-ray rewardmodel"),
        ({"reward_model.name": BASE}, f"{BASE} is no reward model: train one from it"),
        ({"reward_model.name": BASE, "reward_model.environment": "gateway"}, "gateway has no joint answers"),
        ({"reward_model.name": BASE, "reward_model.environment": "reward_model"}, "set reward_model.environment"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], says: str) -> None:
    config = quickstart_config(environment="reward_model", **settings)
    with pytest.raises(UserError, match=says):
        ENVIRONMENTS.get("reward_model").from_config(config)


# The command


def written(folder: Path, count: int = 6) -> Path:
    lines = []
    for row in load_rows("bundled:toy", f"train[:{count}]"):
        chosen = [row["aux_solution"], row["main_solution"]]
        rejected = ["def aux(x):\n    return x", row["main_solution"].replace("aux(", "abs(")]
        lines.append(json.dumps({"task_id": row["task_id"], "chosen": chosen, "rejected": rejected}))
    (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "pairs.jsonl"


def test_the_model_reads_what_the_environment_writes(tmp_path: Path) -> None:
    config = quickstart_config()
    pair = text_pairs([PreferencesFile(written(tmp_path), config, {})], 4)[0]
    task, row = load_tasks("bundled:toy", "train[:1]")[0], load_rows("bundled:toy", "train[:1]")[0]
    attempt = scored(CodeGeneration(2)).attempt(task, [row["aux_solution"], row["main_solution"]], True)
    assert pair.chosen == attempt.text.text


@pytest.mark.slow
def test_a_file_of_preferences_makes_a_reward_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "reward"
    arguments = ["--config", str(QUICKSTART), "--preferences", str(written(tmp_path)), "--to", str(target)]
    assert main(["rewardmodel", *arguments, "--epochs", "2"]) == 0
    out, err = capsys.readouterr()
    assert f"reward model in {target}; 6 preferences; held-out loss: 0.693 to 0." in out
    assert "6 preferences, 1 of them held out" in err
    assert is_reward_model(str(target))
