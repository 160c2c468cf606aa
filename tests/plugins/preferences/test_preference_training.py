"""Offline preference learning: the gradient of the joint-factorised loss, the file, and models that have learned."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from marl_ray.cli.main import main
from marl_ray.config import Config
from marl_ray.core.batch import Group
from marl_ray.core.episode import Completion, sibling_calls
from marl_ray.core.errors import UserError
from marl_ray.data.loading import load_rows
from marl_ray.models.names import resolve_model
from marl_ray.plugins.preferences.preference_file import PreferencesFile, WrittenPreference
from marl_ray.plugins.preferences.preference_training import PreferenceTrainer
from tests.factories import QUICKSTART, quickstart_config

BETAS = (0.5, 0.2)
PROMPTS = ((9, 10), (11, 12, 13))


def config() -> Config:
    changed = quickstart_config(**{"magrpo.max_grad_norm": None, "magrpo.learning_rate": 1e-3})
    agents = tuple(replace(agent, preference_beta=beta) for agent, beta in zip(changed.agents, BETAS, strict=True))
    return replace(changed, agents=agents)


def answer(agent: int, *ids: int) -> Group:
    return Group(0, sibling_calls(PROMPTS[agent], [Completion(ids, "", (0.0,) * len(ids), "stop", ())]), (1.0,))


PREFERENCES = [
    WrittenPreference((answer(0, 1, 2, 3), answer(1, 4, 5)), (answer(0, 3, 2), answer(1, 6, 7, 8))),
    WrittenPreference((answer(0, 5), answer(1, 9, 1, 2)), (answer(0, 5, 6, 7), answer(1, 3))),
]


def score(model: torch.nn.Module, group: Group, temperature: float) -> torch.Tensor:
    given = torch.tensor([[*group.prompt_ids, *group.completions[0].token_ids]])
    start = len(group.prompt_ids)
    logprobs = (model(given[:, :-1]).logits[0, start - 1 :].float() / temperature).log_softmax(-1)
    return logprobs.gather(1, given[0, start:, None]).sum()


def test_a_step_has_the_gradient_of_the_joint_factorised_loss() -> None:
    run = config()
    trainer = PreferenceTrainer(run, 1, has_reference=False)
    trainer.step(PREFERENCES)
    path = resolve_model("bundled:toy-base")
    for agent, learner in enumerate(trainer.learners.values()):
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        losses = []
        for one in PREFERENCES:
            temperature = run.agents[agent].temperature
            parts = [
                score(model, one.chosen[i], temperature) - score(model, one.rejected[i], temperature) for i in (0, 1)
            ]
            joint = parts[agent] + parts[1 - agent].detach()
            losses.append(-torch.nn.functional.logsigmoid(BETAS[agent] * joint))
        torch.stack(losses).mean().backward()
        expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double()
        found = torch.cat([p.grad.flatten() for p in learner.policy.parameters() if p.grad is not None]).double()
        assert float(expected @ found / (expected.norm() * found.norm())) == pytest.approx(1.0, abs=1e-6)
        assert float(found.norm() / expected.norm()) == pytest.approx(1.0, rel=1e-4)


def test_with_a_reference_training_begins_at_log_2_and_learns_the_pairs() -> None:
    trainer = PreferenceTrainer(config(), 4, has_reference=True)
    trainer.set_reference(PREFERENCES)
    before = trainer.fit(PREFERENCES)
    assert (before.loss, before.accuracy) == (pytest.approx(math.log(2)), 0.0)
    for _ in range(4):
        trainer.step(PREFERENCES)
    after = trainer.fit(PREFERENCES)
    assert after.loss < before.loss
    assert after.accuracy == 1.0


def lines(count: int) -> list[dict]:
    found = []
    for row in load_rows("bundled:toy", f"train[:{count}]"):
        chosen = [row["aux_solution"], row["main_solution"]]
        rejected = ["def aux(x):\n    return x", row["main_solution"].replace("aux(", "abs(")]
        found.append({"task_id": row["task_id"], "chosen": chosen, "rejected": rejected})
    return found


@pytest.mark.slow
def test_a_file_of_preferences_makes_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines(6)))
    target = tmp_path / "warm"
    arguments = ["--config", str(QUICKSTART), "--preferences", str(file), "--epochs", "2", "--to", str(target)]
    assert main(["warmstart", *arguments]) == 0
    out, err = capsys.readouterr()
    assert f"2 models in {target}; held-out loss of preferences: 0.693 to 0." in out
    assert "6 preferences, 1 of them held out" in err
    assert {path.name for path in (target / "models").iterdir()} == {"agent_0", "agent_1"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"chosen": ["a", "b"], "rejected": ["c"], "task_id": "toy/000"}, "1 completion for 2 agents"),
        ({"chosen": ["a", "b"], "task_id": "toy/000"}, "rejected should be a list of one text per agent"),
        ({"chosen": ["a", "b"], "rejected": ["c", "d"]}, "give either prompts or a task_id"),
        ({"chosen": ["a", "b"], "rejcted": ["c", "d"], "task_id": "toy/000"}, "unknown key 'rejcted'"),
    ],
)
def test_a_wrong_line_is_named(line: dict, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps(line) + "\n")
    arguments = ["--config", str(QUICKSTART), "--preferences", str(file), "--to", str(tmp_path / "warm")]
    assert main(["warmstart", *arguments]) == 1
    message = capsys.readouterr().err
    assert f"preferences file {file}, line 1: " in message
    assert says in message
    assert not (tmp_path / "warm").exists()


def episode(task: str, rewards: list[float], kind: str = "train") -> dict:
    node = {
        "turn": 1,
        "path": [],
        "prompts": ["Write aux.", "Write main."],
        "responses": [[f"aux {g}" for g in range(len(rewards))], [f"main {g}" for g in range(len(rewards))]],
        "joint_actions": [{"indices": [g, g], "reward": reward} for g, reward in enumerate(rewards)],
    }
    return {"step": 1, "kind": kind, "task": task, "stops": [], "nodes": [node]}


def test_answers_of_episodes_are_compared_by_their_rewards(tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    rows = [episode("a", [0.0, 2.0, 2.0]), episode("a", [0.0, 2.0, 2.0, 9.0]), episode("b", [3.0], "eval")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = PreferencesFile(file, config(), {}).pairs(2)
    assert [(pair.chosen.answers, pair.rejected.answers) for pair in pairs] == [
        (["aux 3", "main 3"], ["aux 0", "main 0"]),
        (["aux 3", "main 3"], ["aux 1", "main 1"]),
    ]
    assert {pair.task_id for pair in pairs} == {"a"}


def test_episodes_with_equal_rewards_have_no_pair(tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    file.write_text(json.dumps(episode("a", [1.0, 1.0])) + "\n")
    with pytest.raises(UserError, match="has no pair: all rewards of a prompt are equal"):
        PreferencesFile(file, config(), {}).pairs()
