"""The custom environments in docs/examples, started as by a user."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marl_ray import registry
from marl_ray.cli.main import main
from marl_ray.config import load
from marl_ray.core.episode import Generation, SamplingSpec
from marl_ray.core.errors import UserError
from marl_ray.data import DATASETS
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.external.llm_judge import Judgement
from marl_ray.rollout.turn_player import TurnPlayer
from marl_ray.telemetry.metrics import episode_metrics, rollout_metrics
from marl_ray.testing import check_dataset, check_environment
from tests.end_to_end.helpers import rows, train
from tests.external.fake_endpoint import Server, fails, says
from tests.factories import make_completion

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
TOPICS = [{"topic": "bread", "ratio": 2}, {"topic": "snow"}]
JUDGED = {"environment": "judged:Judged", "judge.model": "m", "judge.key_variable": "MY_JUDGE"}


@pytest.fixture(autouse=True)
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in the examples' folder, and remove its modules afterwards."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(registry, "_named", [])
    yield
    for path in EXAMPLES.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    running = Server()
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("MY_JUDGE", "any")
    yield running
    running.close()


@pytest.mark.parametrize("name", ["ratio", "initials"])
def test_the_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 60


def test_a_plug_in_adds_names_rows_and_a_section() -> None:
    config = load("initials.yaml", "magrpo", {"initials.max_words": 2})
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    tasks = load_tasks(config.dataset.name, "test", config.dataset.type)
    check_environment(environment, tasks, [["moss otter", "wind ash nut"], ["", "w"]])
    attempt = environment.attempt(tasks[1], ["moss otter", "wind ash nut"], last=True)
    assert tasks[1].prompt == "island"
    assert environment.outcome(attempt, None).reward == pytest.approx(1 / 6)
    with pytest.raises(UserError, match=r"did you mean 'initials\.max_words'"):
        load("initials.yaml", "magrpo", {"initials.max_word": 2})


@pytest.mark.slow
def test_a_plug_in_trains(tmp_path: Path) -> None:
    small = ["magrpo.max_steps=1", f"output.base_dir={tmp_path}", "output.run_name=r", "output.save_final_model=false"]
    result = train("--config", "initials.yaml", "--override", *small, folder=EXAMPLES)
    assert result.returncode == 0, result.stderr
    (first,) = rows(tmp_path / "r", "step")
    assert 0 <= first["turn_1/level/letters"] < 1


def test_ratio_conforms() -> None:
    dataset = DATASETS.get("ratio:TOPICS")
    check_dataset(dataset, TOPICS)
    tasks = [dataset.task(row, number) for number, row in enumerate(TOPICS)]
    environment = ENVIRONMENTS.get(dataset.environment)(2)
    check_environment(environment, tasks, [["one two", "one two three"], ["", "one"]])
    attempt = environment.attempt(tasks[0], ["one two", "one two three"], last=False)
    assert environment.outcome(attempt, None).reward == 3 / 4
    assert environment.feedback(attempt, environment.outcome(attempt, None), "level_feedback", 0) == [
        "beginning: 2 words",
        "end: 3 words of 4",
    ]


@pytest.mark.slow
def test_ratio_trains(tmp_path: Path) -> None:
    small = ["magrpo.max_steps=2", f"output.base_dir={tmp_path}", "output.run_name=r", "output.save_final_model=false"]
    result = train("--config", "ratio.yaml", "--override", *small, folder=EXAMPLES)
    assert result.returncode == 0, result.stderr
    first, second = rows(tmp_path / "r", "step")
    assert 0 < first["turn_1/level/ratio"] < 1
    assert {"turn_2/words", "turn_2/reward_mean"} <= set(first)
    assert second["agent_0/weight_version"] == second["agent_1/weight_version"] == 2
    assert first["agent_0/optimizer_steps"] == 1


class Author:
    """A substitute for an agent's generators."""

    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        texts = [" ".join(["word"] * (number + 1)) for number in range(sampling.num_generations)]
        return Generation((1,), tuple(map(make_completion, texts)))


class Nothing:
    """A substitute for the sandbox, which executes nothing."""

    async def execute(self, programs: Any) -> list[Any]:
        raise AssertionError("a judge's question is no program")


def test_the_judge_gives_half_of_the_reward_and_its_cost_is_logged(server: Server) -> None:
    server.script = [says('{"score": 4}', usage={"prompt_tokens": 50, "completion_tokens": 5})]
    config = load("ratio.yaml", "magrpo", JUDGED | {"judge.base_url": f"{server.url}/v1", "magrpo.num_turns": 1})
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    runner = TurnPlayer(config, environment, [Author(), Author()], Nothing())
    task = load_tasks("topics.jsonl", "train", "ratio:TOPICS")[0]
    episode = asyncio.run(runner.run_episode(task, 8, "train", 0))
    assert [action.reward for action in episode.root.joint_actions] == pytest.approx([0.25 + 0.2] * 8)
    assert episode_metrics([episode], 1.0, 1)["turn_1/level/judge"] == pytest.approx(0.2)
    row = rollout_metrics([episode], 1.0)
    assert (row["judge/requests"], row["judge/prompt_tokens"], row["judge/completion_tokens"]) == (8, 400, 40)
    assert "----\nword word\n----\nword word\n----" in "".join(
        request.body["messages"][0]["content"] for request in server.requests
    )
    server.script = [fails(400)]
    lost = asyncio.run(runner.run_episode(task, 2, "train", 1))
    assert (lost.root, lost.stops[0].reason) == (None, "infra_error")
    assert "HTTP 400" in lost.stops[0].detail


def test_judged_conforms(server: Server) -> None:
    config = load("ratio.yaml", "magrpo", JUDGED | {"judge.base_url": f"{server.url}/v1"})
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    tasks = load_tasks("topics.jsonl", "train[:1]", "ratio:TOPICS")
    given = [["one two", "three"]]
    check_environment(environment, tasks, given, execute=lambda asked: [Judgement(0.5, 1, 9, 2) for _ in asked])


def test_a_judge_without_a_key_is_rejected_at_the_start() -> None:
    config = load("ratio.yaml", "magrpo", JUDGED | {"judge.key_variable": "NOT_SET"})
    with pytest.raises(UserError, match="set the environment variable NOT_SET"):
        ENVIRONMENTS.get(config.environment).from_config(config)


def test_explain_knows_the_section_of_a_plug_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--config", "initials.yaml", "initials.max_words"]) == 0
    assert capsys.readouterr().out.startswith("initials.max_words: a whole number above 0; default 3\n")
