"""Commands as programs: rewards, failures, limits, and the environment of their processes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from marl_ray.core.episode import Episode, Task
from marl_ray.core.errors import UserError
from marl_ray.environments import ENVIRONMENTS
from marl_ray.sandbox import Sandbox
from marl_ray.toy import BASE_PATH
from tests.plugins.gateway.scripted_agents import ASK, ScriptedAgent, command, gateway_config, play, root
from tests.rollout.helpers import AUX, GOOD, WRONG, DirectExecutor
from tests.rollout.helpers import TASK as CODE_TASK


def agents() -> list[ScriptedAgent]:
    return [ScriptedAgent(str(BASE_PATH), lambda *_: "return 1") for _ in range(2)]


def run(tmp_path: Path, script: str, *arguments: str, **gateway: Any) -> Episode:
    """Return the episode of a script, which begins with the functions of `ASK`."""
    path = tmp_path / "script.py"
    path.write_text(ASK + script)
    config = gateway_config(command=command(path, *arguments), **gateway)
    (episode,) = asyncio.run(play(config, agents()))
    return episode


def test_the_last_line_is_the_reward(tmp_path: Path) -> None:
    script = "task = json.load(open(sys.argv[1]))\nask('coder', task['prompt'])\nprint('talk')\nprint(task['limit'])\n"
    node = root(run(tmp_path, script, "{task_file}"))
    assert [action.reward for action in node.joint_actions] == [3.0, 3.0]
    assert node.prompts[0] == [{"role": "user", "content": "Count."}]
    assert node.calls[1][0].completion.finish_reason == "not_called"


def test_agents_may_have_rewards_of_their_own(tmp_path: Path) -> None:
    script = "ask('tester', 'x')\nprint(json.dumps({'rewards': {'coder': 1, 'tester': 0}, 'metrics': {'won': 1}}))\n"
    (action, _) = root(run(tmp_path, script)).joint_actions
    assert (action.reward, action.rewards, action.outcome.metrics) == (0.5, (1.0, 0.0), {"won": 1.0})


@pytest.mark.parametrize(
    ("reward", "script", "arguments"),
    [
        ("file", "open(sys.argv[1], 'w').write('2.5')", ("{reward_file}",)),
        ("post", "call('/episode/reward', 1.0)\ncall('/episode/reward', {'reward': 2.5})", ()),
    ],
)
def test_the_reward_may_be_in_a_file_or_posted(
    tmp_path: Path, reward: str, script: str, arguments: tuple[str, ...]
) -> None:
    assert root(run(tmp_path, script, *arguments, reward=reward)).joint_actions[0].reward == 2.5


def test_an_environment_may_judge_the_answers(tmp_path: Path, sandbox: Sandbox) -> None:
    script = (
        ASK + "task = json.load(open(sys.argv[1]))\nfor name, prompt in task['prompts'].items(): ask(name, prompt)\n"
        "print(json.dumps({'metrics': dict.fromkeys(task, 1)}))\n"
    )
    (tmp_path / "script.py").write_text(script)
    own = {"command": command(tmp_path / "script.py", "{task_file}"), "reward": "judge", "judge": "code_generation"}
    config = gateway_config(sections={"code_generation": {"helper_reward": "static"}}, **own)
    rewards = []
    for main in (GOOD, WRONG):
        team = [ScriptedAgent(str(BASE_PATH), lambda *_, text=text: text) for text in (AUX, main)]
        (episode,) = asyncio.run(play(config, team, CODE_TASK, executor=DirectExecutor(sandbox)))
        rewards.append(root(episode).joint_actions[0].reward)
        metrics = root(episode).joint_actions[0].outcome.metrics
        assert metrics["all_passed"] == float(main == GOOD)
        assert {"id", "prompt", "prompts", "entry_point"} <= metrics.keys()
        assert "tests" not in metrics, "the judge's tests are not in the task file"
    assert rewards[0] > rewards[1]


def test_a_program_reads_the_fields_that_the_config_names(tmp_path: Path) -> None:
    task = Task("task/1", "Count.", {"limit": 3, "hidden": 4})
    script = "print(json.dumps({'reward': 0, 'metrics': dict.fromkeys(json.load(open(sys.argv[1])), 1)}))"
    (tmp_path / "script.py").write_text(ASK + script)
    read = {}
    for fields in (None, ["limit"], []):
        config = gateway_config(command=command(tmp_path / "script.py", "{task_file}"), task_fields=fields)
        (episode,) = asyncio.run(play(config, agents(), task))
        read[str(fields)] = set(root(episode).joint_actions[0].outcome.metrics)
    own = {"id", "prompt"}
    assert read == {"None": own | {"limit", "hidden"}, "['limit']": own | {"limit"}, "[]": own}
    environment = ENVIRONMENTS.get("gateway").from_config(gateway_config(command="true", task_fields=["other"]))
    with pytest.raises(UserError, match=r"gateway\.task_fields: task task/1 has no field other"):
        environment.check_task(task)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("sys.exit('no luck')", "exit code 1: no luck"),
        ("os.kill(os.getpid(), 9)", "signal 9"),
        ("import time; os.kill(os.getppid(), 9); time.sleep(1000)", "signal 9"),  # it ends with its launcher
        ("print('not a number')", "is not JSON"),
        ("print('NaN')", "number"),
        ("print(1e300)", "the reward 1e+300 is beyond 1e+06"),
        ("print(10**400)", "number"),
        ("print(json.dumps({'rewards': {'coder': 1e308, 'tester': -1e308}}))", "beyond 1e+06"),
        ("print(json.dumps({'reward': 1, 'metrics': {'size': 1e308}}))", "the metric size 1e+308 is beyond"),
        ("print(json.dumps({'reward': 1, 'metrics': {'size': 10**400}}))", "numbers by name"),
        ("", "printed no line"),
        ("ask('other', 'x')", "404"),
        ("print('x' * 300_000)", "not JSON"),
    ],
)
def test_an_episode_without_a_reward_is_lost_and_said(
    tmp_path: Path, script: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    episode = run(tmp_path, script)
    assert episode.root is None
    assert reason in episode.stops[0].detail
    assert episode.stops[0].reason == "infra_error"
    assert caplog.text.count("an episode of task task/1 failed") == 2


def test_a_command_that_cannot_be_started_is_the_failure_of_its_episode() -> None:
    too_long = gateway_config(command="true " + "x" * 200_000)
    (episode,) = asyncio.run(play(too_long, agents()))
    assert "cannot be started (Argument list too long)" in episode.stops[0].detail


def test_a_failed_episode_may_count_as_zero(tmp_path: Path) -> None:
    node = root(run(tmp_path, "ask('coder', 'x')\nsys.exit(1)", on_failure="zero"))
    assert [action.reward for action in node.joint_actions] == [0.0, 0.0]
    assert sum(action.outcome.counts["gateway/failed"] for action in node.joint_actions) == 2


def test_a_lost_sibling_is_counted_beside_the_others(tmp_path: Path) -> None:
    mark = tmp_path / "first"
    script = f"try:\n    open({str(mark)!r}, 'x')\nexcept FileExistsError:\n    sys.exit(1)\nprint(1)\n"
    node = root(run(tmp_path, script))
    assert len(node.joint_actions) == 1
    assert node.joint_actions[0].outcome.counts["gateway/failed"] == 1


def test_a_program_beyond_its_time_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = (
        "import subprocess, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}} {{child.pid}} ')\ntime.sleep(1000)\n"
    )
    episode = run(tmp_path, script, timeout_s=5)
    assert "longer than 5 s" in episode.stops[0].detail
    started = list(map(int, pids.read_text().split()))
    assert len(started) == 4
    for pid in started:
        status = Path(f"/proc/{pid}/stat")
        assert not status.exists() or status.read_text().split(")")[1].split()[0] in "ZX"


def test_a_child_that_outlives_its_program_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = (
        "import subprocess\nsleep = [sys.executable, '-c', 'import time; time.sleep(1000)']\n"
        "child = subprocess.Popen(sleep, start_new_session=True)\n"
        f"open({str(pids)!r}, 'a').write(f'{{child.pid}} ')\nprint(1)\n"
    )
    root(run(tmp_path, script))
    for pid in map(int, pids.read_text().split()):
        status = Path(f"/proc/{pid}/stat")
        assert not status.exists() or status.read_text().split(")")[1].split()[0] in "ZX"


def test_a_command_receives_no_variable_that_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("MY_SETTING", "shown")
    script = "print(json.dumps({'reward': len(os.environ), 'metrics': {k: 1 for k in os.environ}}))"
    seen = root(run(tmp_path, script, pass_variables=["MY_SETTING"])).joint_actions[0].outcome.metrics
    assert "MY_SETTING" in seen
    assert not {"HF_TOKEN", "RAY_AUTH_TOKEN", "PYTHONPATH"} & set(seen)
    assert set(seen) <= {
        *(
            "PATH",
            "HOME",
            "LANG",
            "LC_ALL",
            "LC_CTYPE",
            "NO_PROXY",
            "no_proxy",
            "TZ",
            "TMPDIR",
            "PYTHONHASHSEED",
            "MY_SETTING",
        ),
        *("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    }


def test_memory_is_limited(tmp_path: Path) -> None:
    episode = run(tmp_path, "x = bytearray(1 << 30)\nprint(1)", memory_mb=512)
    assert "MemoryError" in episode.stops[0].detail
    assert os.getpid() > 0


@pytest.mark.parametrize(
    ("sections", "gateway", "message"),
    [
        ({}, {}, "needs one program"),
        ({}, {"command": "a", "function": "b:c"}, "needs one program"),
        ({}, {"command": "a 'b"}, "split into words"),
        ({}, {"command": "a", "roles": ["x"]}, "2 different names"),
        ({}, {"command": "a", "reward": "judge"}, "belong together"),
        ({}, {"function": "os:getcwd"}, "async function"),
        ({"agents": [{"estimator": "remax"}, {}]}, {"command": "a"}, "magrpo, marloo"),
    ],
)
def test_settings_without_meaning_are_refused(sections: dict[str, Any], gateway: dict[str, Any], message: str) -> None:
    config = gateway_config(sections={"agents": [{}, {}]} | sections, **gateway)
    with pytest.raises(UserError, match=message):
        ENVIRONMENTS.get("gateway").from_config(config)
