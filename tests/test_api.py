"""The Python API, as a program uses it. `slow` tests train."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import marl_ray as mr
from marl_ray import api
from marl_ray.cli import replay
from marl_ray.config import Config, from_tree
from marl_ray.config.keywords import from_keywords
from marl_ray.data.python_objects import ObjectNames
from marl_ray.environments.base import Environment
from marl_ray.launch import run as launch
from tests.factories import QUICKSTART, ROOT

MODEL = "bundled:toy-base"
README = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)


def length(prompt: Any, answers: list[str]) -> float:
    return float(sum(map(len, answers)))


def environment(**settings: Any) -> mr.RewardEnvironment:
    return mr.RewardEnvironment(**{"prompts": ["a", "b"], "reward": length, "agents": ["x", "y"]} | settings)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Configs of the runs that `train` would start; nothing starts."""
    configs: list[Config] = []

    def stop(config: Config, saved: object, startup: object) -> None:
        configs.append(config)
        raise mr.UserError("not started")

    monkeypatch.setattr(launch, "train", stop)
    return configs


def config_of(started: list[Config], *given: Any, **settings: Any) -> Config:
    with pytest.raises(mr.UserError, match="not started"):
        mr.train(*given, **settings)
    return started[-1]


def test_importing_the_package_imports_no_heavy_library() -> None:
    code = (
        "import sys, marl_ray as mr; e = mr.RewardEnvironment(prompts=['a'], reward=lambda p, a: 1, agents=['x'])\n"
        "mr.train, mr.evaluate, mr.score, mr.load_run\n"
        "print([m for m in ('torch', 'vllm', 'ray', 'transformers', 'datasets', 'pandas') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("[]\n", "")


def test_keywords_are_the_keys_of_a_file(started: list[Config]) -> None:
    agents = [{"learning_rate": 1e-3}, {}]
    config = config_of(
        started,
        model=MODEL,
        dataset="bundled:toy",
        num_turns=2,
        temperature=1.0,
        agents=agents,
        output={"run_name": "one"},
        overrides={"magrpo.num_generations": 8, "resources.sandbox.workers": 1},
        num_generations=2,
    )
    tree = {
        "model": {"name": MODEL, "temperature": 1.0},
        "dataset": {"name": "bundled:toy"},
        "magrpo": {"num_turns": 2, "num_generations": 8},
        "agents": agents,
        "output": {"run_name": "one"},
        "resources": {"sandbox": {"workers": 1}},
    }
    assert config == from_tree(tree, "magrpo")


def test_a_config_can_be_a_file_a_mapping_or_a_config(started: list[Config], tmp_path: Path) -> None:
    config = config_of(started, QUICKSTART, max_steps=3, output={"run_name": "r"})
    assert (config.training.max_steps, config.training.num_train_epochs, config.output.run_name) == (3, 3, "r")
    assert config.output.base_dir == "runs", "a mapping is merged into its section"
    (tmp_path / "again.yaml").write_text(config.to_yaml())
    assert config_of(started, tmp_path / "again.yaml") == config
    assert config_of(started, config) == config
    assert config_of(started, {"grpo": {}, "model": {"name": MODEL}}, dataset="bundled:toy").algorithm == "grpo"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_stepz": 3}, "unknown setting 'magrpo.max_stepz': did you mean 'magrpo.max_steps'?"),
        ({"enviroment": "x:y"}, "unknown keyword 'enviroment': did you mean 'environment'?"),
        ({"modle": "x"}, "unknown keyword 'modle': did you mean 'model'?"),
        ({"output": {"run_nam": 1}}, "unknown setting 'output.run_nam': did you mean 'output.run_name'?"),
        ({"run_name": "one"}, "unknown setting 'magrpo.run_name': did you mean 'output.run_name'?"),
        ({"external": "plain"}, "'external' should be a section with settings, got 'plain'"),
        ({"max_steps": 0}, "magrpo.max_steps should be above 0, got 0"),
        ({"algorithm": "ppo"}, "unknown algorithm 'ppo': there are magrpo and grpo"),
        ({"dataset": None, "environment": None}, "no dataset: set dataset.name"),
        ({"num_train_epochs": None, "max_steps": None}, "magrpo.num_train_epochs and magrpo.max_steps are null, so"),
        ({"environment": "no_such:Thing"}, "environment no_such:Thing: No module named 'no_such'"),
    ],
)
def test_a_mistake_has_the_message_of_the_commands(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(mr.UserError) as error:
        mr.train(**{"model": MODEL, "dataset": "bundled:toy"} | settings)
    assert str(error.value).startswith(message)


def test_an_environment_brings_its_prompts_and_its_number_of_agents(started: list[Config]) -> None:
    config = config_of(started, model=MODEL, environment=environment(agents=["x", "y", "z"]), max_steps=3)
    assert (config.num_agents, config.dataset.type, config.dataset.eval_split) == (3, "prompts", None)
    assert (config.environment, config.training.num_train_epochs) == ("in_memory:RewardEnvironment", None)
    assert re.fullmatch(r"in_memory:prompts_\w{8}", config.dataset.name)
    assert config.model.max_length == 1024, "the positions of the model"
    held_out = config_of(started, model=MODEL, environment=environment(eval_prompts=["c"]))
    assert (held_out.dataset.eval_split, held_out.dataset.name != config.dataset.name) == ("eval", True)


def test_other_plug_ins_can_be_objects(started: list[Config], tmp_path: Path) -> None:
    rows = [{"prompt": "a", "solution": "b"}]
    data = {"name": {"train": rows, "held_out": rows}, "eval_split": "held_out"}
    config = config_of(
        started,
        model=MODEL,
        environment=environment(prompts=None),
        dataset=data,
        estimator=lambda returns: returns,
        output={"base_dir": tmp_path},
    )
    assert config.agents[0].estimator == "in_memory:lambda"
    assert (config.dataset.eval_split, config.output.base_dir) == ("held_out", str(tmp_path))
    names = ObjectNames({"environment": mr.RewardEnvironment}, {})
    assert names.settings == {"environment": "marl_ray.environments.reward:RewardEnvironment"}, "importable"
    assert names.objects == {}


def test_an_instance_of_an_environment_class_is_rejected() -> None:
    class Own(Environment[Any]):
        roles = first_prompts = attempt = outcome = feedback = previous_answers = revisions = None  # type: ignore

    with pytest.raises(mr.UserError, match="environment is an instance of Own: give the class Own"):
        mr.train(model=MODEL, environment=Own(2))


def test_an_importable_environment_is_named_in_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = "mr.RewardEnvironment(prompts=['a'], reward=lambda p, a: 1.0, agents=['x', 'y'])"
    (tmp_path / "own_rewards.py").write_text(f"import marl_ray as mr\n\nenv = {env}\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = from_tree({"model": {"name": MODEL}, "environment": "own_rewards:env", "magrpo": {}}, "magrpo")
    assert (config.dataset.name, config.dataset.type) == ("python:own_rewards:env", "prompts")


def test_an_object_of_another_program_is_explained() -> None:
    with api._call(False, False, {"environment": environment(), "model": MODEL}, None) as call:
        config = from_keywords(None, None, call.settings)
    with pytest.raises(mr.UserError, match=r"pass it again, as in mr\.train\(resume=\.\.\., environment=\.\.\.\)"):
        mr.train(config, output={"base_dir": "runs"})


def test_completions_are_scored_by_a_function() -> None:
    def solved(prompt: str, answers: list[str], solution: str) -> dict[str, float]:
        return {"right": float(answers[0] == solution), "short": 0.5 * (len(answers[0]) < 3)}

    prompts = [{"task_id": "sum", "prompt": "1 + 1", "solution": "2"}]
    env = mr.RewardEnvironment(prompts=prompts, reward=solved, agents=["x"])
    scores = mr.score([{"task_id": "sum", "completions": [text]} for text in ("2", "three")], environment=env)
    assert [score["reward"] for score in scores] == [1.5, 0.0]
    assert scores[0]["levels"] == {"right": 1.0, "short": 0.5}
    with pytest.raises(mr.UserError, match="completions, row 0: the dataset has no task 'sun': did you mean sum"):
        mr.score([{"task_id": "sun", "completions": ["2"]}], environment=env)
    with pytest.raises(mr.UserError, match=r"row 0: expected a mapping with task_id and completions, got \['2'\]"):
        mr.score([["2"]], environment=env)  # type: ignore[list-item]
    with pytest.raises(mr.UserError, match="no dataset: give dataset, or an environment with prompts"):
        mr.score([])


def test_code_is_scored_in_the_sandbox(tmp_path: Path) -> None:
    prompt = 'def f(x):\n    """Add one."""\n'
    row = {"task_id": "HumanEval/0", "prompt": prompt, "entry_point": "f", "test": "assert f(1) == 2"}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row))
    rows = [{"task_id": "HumanEval/0", "completions": ["", "def f(x):\n    return x + 1"]}]
    (score,) = mr.score(rows, tmp_path / "tasks.jsonl", "humaneval")
    assert score["metrics"]["all_passed"] == 1.0


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(mr.UserError, match=r"is not a run folder: config\.yaml is missing$"):
        mr.load_run(tmp_path)
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "config.yaml").touch()
    os.utime(tmp_path / "two" / "config.yaml", (1, 1))
    with pytest.raises(mr.UserError, match=f"config.yaml is missing: did you mean {tmp_path / 'one'}"):
        mr.load_run(tmp_path)


@pytest.mark.slow
def test_the_example_of_the_readme_trains_and_prints_nothing_else(tmp_path: Path) -> None:
    assert len(README[0].splitlines()) <= 20
    result = subprocess.run(
        [sys.executable, "-c", README[0]], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    rewards = list(map(int, result.stdout.split()))
    assert len(rewards) == 20
    assert rewards[-1] > 2 * rewards[0], "it learns"
    (path,) = (tmp_path / "runs").iterdir()
    run = mr.load_run(path)
    assert run.to_pandas()["step"].to_list() == list(range(1, 21))
    episode = next(iter(run.episodes))
    responses = [group[0] for group in episode["nodes"][0]["responses"]]
    assert episode["nodes"][0]["joint_actions"][0]["reward"] == len(set("".join(responses)))
    assert run._repr_png_().startswith(b"\x89PNG")
    model, tokenizer = run.load_model(1)
    assert model.config.vocab_size >= len(tokenizer)
    assert "prompts_" in run.config.to_yaml()
    log = (run.path / "run.log").read_text()
    assert "step 20/20" in log, "messages are in the log"


@pytest.mark.slow
def test_a_run_in_a_thread_resumes_and_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = environment(prompts=["Say a colour."], eval_prompts=["Name a fruit."])
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    runs: list[mr.Run] = []

    def train() -> None:
        runs.append(mr.train(model=MODEL, environment=env, max_steps=1, max_new_tokens=8))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(600)
    run = mr.train(resume=runs[0], environment=env, max_steps=2)
    assert [row["step"] for row in run.metrics if "loss" in row or "turn_1/reward_mean" in row] == [1, 2]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
    with pytest.raises(mr.UserError, match="a resumed run keeps its dataset"):
        mr.train(resume=run, environment=environment(eval_prompts=["Other."]), max_steps=3)
    evaluation = mr.evaluate(["base", run], environment=env, samples=2)
    assert set(evaluation.metrics) == {"base", run.path.name}
    assert evaluation.metrics["base"]["return"]["mean"] > 0
    assert "return" in str(evaluation)


@pytest.mark.slow
def test_rewards_without_a_value_are_left_out_and_a_replay_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Say a colour."}\n{"prompt": "Name a fruit."}\n', encoding="utf-8")
    called: list[str] = []

    def reward(prompt: str, answers: list[str]) -> float | None:
        called.append(prompt)
        signal.setitimer(signal.ITIMER_REAL, 30)  # as graders with a limit of time do
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if len(called) == 5:
            raise ValueError("no answer")
        return None if len(called) % 4 == 0 else float(len(answers[0]) % 7)

    run = mr.train(
        model=MODEL,
        environment=mr.RewardEnvironment(reward=reward, agents=["x", "y"]),
        dataset={"name": str(prompts), "type": "prompts"},
        max_steps=2,
        num_generations=8,
        max_new_tokens=8,
        output={"keep_batches": True},
    )
    first, second = (row for row in run.metrics if "rollout/unscored" in row)
    assert (len(called), first["rollout/unscored"], second["rollout/unscored"]) == (32, 5, 4)
    assert first["rollout/joint_samples"] == 11
    log = (run.path / "run.log").read_text(encoding="utf-8")
    assert log.count("reward raised ValueError: no answer") == 1
    assert replay.main([str(run.path)]) == 0
