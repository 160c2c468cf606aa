"""A warm start of the toy policies: from a file and from a run's log, its loss, its files and its errors."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from marl_ray.cli.main import main
from marl_ray.config import Config, to_yaml
from marl_ray.config.loader import load
from marl_ray.config.values import read_yaml
from marl_ray.core.batch import Group
from marl_ray.core.episode import Completion, sibling_calls
from marl_ray.core.ids import PolicyId
from marl_ray.credit.groups import build_batch, weight_group
from marl_ray.data.loading import load_rows
from marl_ray.evaluation.model_sources import find_model_sources
from marl_ray.learning.arguments import learner_arguments
from marl_ray.learning.learner import Learner
from marl_ray.models.names import resolve_model
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.plugins.preferences.selection import demonstration
from marl_ray.plugins.preferences.warm_start import supervised
from marl_ray.storage.batch_log import LoggedStep
from marl_ray.storage.run_folder import RunFolder
from tests.factories import QUICKSTART, quickstart_config

TASKS = 6


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Solutions of a few toy tasks, with a reward that says that every second one is wrong."""
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    rows = [
        {"task_id": row["task_id"], "completions": [row["aux_solution"], row["main_solution"]], "reward": number % 2}
        for number, row in enumerate(load_rows("bundled:toy", f"train[:{TASKS}]"))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_update_is_that_of_cross_entropy() -> None:
    config = supervised(quickstart_config(**{"magrpo.max_grad_norm": None}), 1e-3)
    learner = Learner(*learner_arguments(config, PolicyId((0,)), 1))
    tokens = [(1, 2, 3), (4, 5, 6, 7, 8)]
    groups = [demonstration((9, 10), Completion(ids, "", (0.0,) * len(ids), "stop", ())) for ids in tokens]
    model, losses = AutoModelForCausalLM.from_pretrained(resolve_model("bundled:toy-base"), dtype=torch.float32), []
    for ids in tokens:
        given = torch.tensor([[9, 10, *ids]])
        logits = model(given[:, :-1]).logits[0, 1:] / config.agents[0].temperature
        losses.append(torch.nn.functional.cross_entropy(logits.float(), given[0, 2:], reduction="sum"))
    expected = sum(losses) / 8
    expected.backward()
    norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None))
    weighted = [weight_group(group, config.agents[0], config.training) for group in groups]
    stats = learner.update(build_batch(weighted, 0, config.training))
    assert stats.loss == pytest.approx(expected.item(), rel=1e-4)
    assert stats.grad_norm == pytest.approx(norm, rel=1e-3)
    assert stats.optimizer_steps == 1


@pytest.mark.slow
def test_a_file_of_answers_makes_models_that_a_run_starts_from(
    answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ["--config", str(QUICKSTART), "--answers", str(answers), "--min-return", "1"]
    arguments = [*source, "--epochs", "3", "--to", str(tmp_path / "warm")]
    assert main(["warmstart", *arguments, "--override", "output.run_name=one"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert f"2 models in {tmp_path / 'warm'}; held-out loss: agent_0 " in out
    assert out.endswith(f"next: marl-ray train magrpo --config {tmp_path / 'warm' / 'config.yaml'}\n")
    assert "agent_0: 3 demonstrations, 1 of them held out" in err
    assert "agent_1: epoch 3 of 3: loss " in err
    config = load(tmp_path / "warm" / "config.yaml", "magrpo")
    folders = [str(tmp_path / "warm" / "models" / f"agent_{agent}") for agent in (0, 1)]
    assert [agent.name for agent in config.agents] == folders
    assert (config.output.run_name, config.model.use_chat_template) == (None, False)
    assert config.agents[0].learning_rate == quickstart_config().agents[0].learning_rate
    (source_of_models,) = find_model_sources([str(tmp_path / "warm")], quickstart_config().agents)
    assert list(source_of_models.weights) == folders
    before = _loss(quickstart_config(), answers)
    assert _loss(config, answers) < before - 0.01
    assert main(["warmstart", *arguments]) == 1
    assert "is not empty: give another --to" in capsys.readouterr().err


def _loss(config: Config, answers: Path) -> float:
    """Return agent 1's mean loss per token on the answers of reward 1, without their prompts."""
    learner = Learner(*learner_arguments(config, PolicyId((1,)), 1))
    tokenizer = load_tokenizer(resolve_model(config.agents[1].name), config.model)
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    ids = [tuple(tokenizer(row["completions"][1]).input_ids) for row in rows if row["reward"]]
    groups = []
    for one in ids:
        answer = Completion(one[1:], "", (0.0,) * len(one[1:]), "", ())
        groups.append(Group(0, sibling_calls(one[:1], [answer]), (1.0,)))
    return learner.logprob_gap(groups)  # to a sampler with log-probability 0


@pytest.mark.slow
def test_the_best_answers_of_a_run_are_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = quickstart_config(**{"magrpo.policy": 0})
    run = RunFolder(tmp_path / "run")
    run.make()
    run.write_config(to_yaml(config), 0)
    assert main(["warmstart", "--run", str(run), "--to", str(tmp_path / "warm")]) == 1
    assert "has no logged batch: a run with output.keep_batches: true keeps" in capsys.readouterr().err
    groups = [
        Group(0, sibling_calls((9, prompt), [_completion(prompt, g) for g in range(3)]), (0.0, 1.0, 4.0), (0.0,) * 3)
        for prompt in range(20, 30)
    ]
    batches = [build_batch([replace(g, turn=0) for g in groups], 0, config.training)] * 2
    run.log.append(LoggedStep(0, tuple(batches), 30, {}, ()))
    assert main(["warmstart", "--run", str(run), "--to", str(tmp_path / "warm"), "--held-out", "0.3"]) == 0
    out, err = capsys.readouterr()
    assert "1 model in " in out
    assert "policy_0: 20 demonstrations, 6 of them held out" in err
    assert read_yaml(tmp_path / "warm" / "config.yaml")["magrpo"]["policy"] == 0
    again = ["warmstart", "--run", str(run), "--min-return", "5", "--to", str(tmp_path / "other")]
    assert main(again) == 1
    assert "agent 0 has no demonstration: the highest return of 30 answers is 4" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def _completion(prompt: int, sibling: int) -> Completion:
    ids = (prompt, 40 + sibling, 50)
    return Completion(ids, "", (-1.0,) * 3, "stop", ((0, 3),))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--answers", "a.jsonl"], "needs the config of the agents: give --config FILE"),
        (["--run", "none"], "none is not a run folder"),
        (["--answers", "a.jsonl", "--config", str(QUICKSTART)], "answers file a.jsonl cannot be read"),
    ],
)
def test_a_missing_source_is_an_error_of_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["warmstart", *arguments, "--to", "warm"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_rewards_are_needed_to_select(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"prompts": "a", "completions": ["b", "c"]}\n')
    source = ["--config", str(QUICKSTART), "--answers", str(path), "--to", str(tmp_path / "warm")]
    assert main(["warmstart", *source, "--best", "1"]) == 1
    assert "has no rewards: leave out --min-return and --best" in capsys.readouterr().err
    assert main(["warmstart", *source]) == 1
    assert "agent_0 has answers to one prompt only" in capsys.readouterr().err


def test_frozen_agents_need_a_learning_rate(answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = ["--config", str(QUICKSTART), "--answers", str(answers), "--to", str(tmp_path / "warm"), "--min-return=0"]
    frozen = "agents=[{}, {learning_rate: 0}]"
    assert main(["warmstart", *source, "--override", frozen]) == 1
    assert "agent 1 has learning_rate 0: give --learning-rate" in capsys.readouterr().err
