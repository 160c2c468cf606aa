"""Programs in namespaces: a hostile program reaches nothing, an honest one gets the same answers, and both end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from marl_ray.core.episode import Episode
from marl_ray.core.errors import UserError
from marl_ray.environments import ENVIRONMENTS
from marl_ray.plugins.gateway.confinement import CONNECTIONS, LAUNCHER, launcher_options, own_paths
from marl_ray.toy import BASE_PATH
from tests.factories import ROOT
from tests.plugins.gateway.scripted_agents import ASK, TASK, ScriptedAgent, command, gateway_config, play, root
from tests.rollout.helpers import NoExecutor
from tests.sandbox.attacks.level_suite import ORDINARY_UID, python_for

HOSTILE = Path(__file__).with_name("hostile_program.py")
CONFINED: dict[str, Any] = {"sandbox": "namespaces", "memory_mb": 512, "max_processes": 64}


def reason_against() -> str:
    """Return why this machine has no namespaces for commands, "" if it has."""
    try:
        ENVIRONMENTS.get("gateway").from_config(gateway_config(command="true", **CONFINED))
    except UserError as error:
        return str(error)
    return ""


REASON = reason_against()
needs_namespaces = pytest.mark.skipif(bool(REASON), reason=REASON)


def agents() -> list[ScriptedAgent]:
    return [ScriptedAgent(str(BASE_PATH), lambda _, seed: f"return {seed}") for _ in range(2)]


def run(tmp_path: Path, script: str, *arguments: str, **gateway: Any) -> Episode:
    """Return the episode of a script in a folder of its own, which the script may read."""
    folder = tmp_path / "program"
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(ASK + script)
    own = {"readable": [str(folder)]} | CONFINED | gateway
    config = gateway_config(command=command(folder / "script.py", *arguments), **own)
    (episode,) = asyncio.run(play(config, agents()))
    return episode


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """A port and a local socket of the machine, whose connections succeed without the confinement."""
    path = f"/tmp/{os.getpid()}.marl_ray.socket"
    sockets = [socket.create_server(("127.0.0.1", 0))]
    for address in (path, "\0" + path):
        sockets.append(socket.socket(socket.AF_UNIX))
        sockets[-1].bind(address)
        sockets[-1].listen()
    os.chmod(path, 0o777)
    yield sockets[0].getsockname()[1], path
    for one in sockets:
        one.close()
    os.unlink(path)


def hostile(
    tmp_path: Path, listening: tuple[int, str], attempts: Sequence[str] = (), **gateway: Any
) -> dict[str, float]:
    """Return which attempts of the hostile program succeed (default: all attempts)."""
    (tmp_path / "secret").write_text("SECRET")
    (tmp_path / "secret").chmod(0o644)
    (tmp_path / "program").mkdir()
    script = Path(shutil.copy(HOSTILE, tmp_path / "program"))
    port, path = listening
    words = [str(tmp_path / "secret"), str(port), path, str(os.getpid()), *attempts]
    config = gateway_config(
        command=command(script, *words), timeout_s=120, readable=[str(tmp_path / "program")], **gateway
    )
    (episode,) = asyncio.run(play(config, agents()))
    return dict(root(episode).joint_actions[0].outcome.metrics)


@needs_namespaces
def test_a_hostile_program_reaches_nothing(
    tmp_path: Path, listening: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "SECRET")
    succeeded = hostile(tmp_path, listening, **CONFINED)
    assert {name for name, value in succeeded.items() if value} == set()
    assert len(succeeded) > 30
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o644
    assert not (tmp_path / "program" / "new").exists()
    assert not Path(f"/tmp/new{os.getpid()}").exists()
    assert not running(f"9{os.getpid()}")


@needs_namespaces
def test_without_the_confinement_its_attempts_succeed(tmp_path: Path, listening: tuple[int, str]) -> None:
    # The attempts are real. Only harmless ones are made here.
    attempts = ("read_secret", "change_secret", "follow_link", "write_beside_program", "connect_port", "connect_local")
    attempts += ("connect_abstract", "signal_driver", "see_driver", "processes", "fill_disk")
    succeeded = hostile(tmp_path, listening, attempts)
    assert [name for name in attempts if not succeeded[name]] == []


@needs_namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user")
def test_a_command_of_an_ordinary_user_reaches_nothing_either(listening: tuple[int, str]) -> None:
    python = python_for(ordinary_user=True)
    if python is None:
        pytest.skip("no Python on this machine that an ordinary user can run")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "secret").write_text("SECRET")
        shutil.copy(HOSTILE, folder)
        os.mkdir(Path(folder) / "episode")
        for name in ("task.json", "reward.json"):
            (Path(folder) / "episode" / name).write_text("{}")
        for path in (folder, *map(str, Path(folder).rglob("*"))):
            os.chown(path, ORDINARY_UID, ORDINARY_UID)
        script = Path(folder) / "hostile_program.py"
        confinement = {
            "folder": str(Path(folder) / "episode"),
            "files": ["task.json", "reward.json"],
            "readable": [str(script), str(Path(python).parents[1])],
            "port": 1,
            "connections": 16,
            "processes": 64,
        }
        options = json.dumps({"memory_mb": 512, "confinement": confinement})
        words = [str(Path(folder) / "secret"), str(listening[0]), listening[1], str(os.getpid())]
        launcher = [python, *LAUNCHER[1:], options, str(os.getpid()), python, str(script), *words]
        own: dict[str, Any] = {"user": ORDINARY_UID, "group": ORDINARY_UID, "extra_groups": []}
        variables = {"PATH": os.defpath, "TMPDIR": str(Path(folder) / "episode")}
        done = subprocess.run(launcher, env=variables, cwd=folder, capture_output=True, text=True, timeout=120, **own)
        assert done.returncode == 0, done.stderr
        succeeded = json.loads(done.stdout)["metrics"]
        assert {name for name, value in succeeded.items() if value} == set()
        assert (Path(folder) / "secret").read_text() == "SECRET"
    assert not running(f"9{os.getpid()}")


def running(word: str) -> list[int]:
    """Return the processes with this word in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@needs_namespaces
def test_an_honest_program_gets_the_same_answers_as_without_it(tmp_path: Path) -> None:
    script = """
from concurrent.futures import ThreadPoolExecutor
task = json.load(open(sys.argv[1]))
with ThreadPoolExecutor(8) as pool:
    texts = list(pool.map(lambda number: ask('coder', f'x{number}'), range(8)))
ask('tester', ' '.join(texts))
open(os.path.join(os.environ['TMPDIR'], 'notes'), 'w').write('x')
open(sys.argv[2], 'w').write(json.dumps(task['limit']))
"""
    words = ("{task_file}", "{reward_file}")
    confined = root(run(tmp_path, script, *words, reward="file"))
    free = root(run(tmp_path, script, *words, reward="file", sandbox="none"))
    assert [action.reward for action in confined.joint_actions] == [3.0, 3.0]
    for agent in (0, 1):  # concurrent calls arrive in any order
        own, others = (sorted(call.completion.token_ids for call in node.calls[agent]) for node in (confined, free))
        assert own == others


@needs_namespaces
@pytest.mark.parametrize("place", [".", "agents"])
def test_the_working_folder_is_not_shown_with_the_program(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / place
    folder.mkdir(exist_ok=True)
    (tmp_path / "secret.env").write_text("SECRET")
    (folder / "helpers.py").write_text("")
    script = folder / "program.py"
    script.write_text("import os\nprint(sum(map(os.path.exists, ['secret.env', 'agents/helpers.py', __file__])))\n")
    monkeypatch.chdir(tmp_path)
    config = gateway_config(command=command(script.relative_to(tmp_path)), **CONFINED)
    (episode,) = asyncio.run(play(config, agents()))
    # The program itself; and the modules beside it where its folder is not the working folder.
    assert root(episode).joint_actions[0].reward == (1.0 if place == "." else 2.0)


def test_paths_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("home/.keep", "home/work/one.py", "home/work/agents/main.py", "data/rows.jsonl", "home/away.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    work = tmp_path / "home" / "work"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(work)
    rows = str(tmp_path / "data" / "rows.jsonl")
    assert list(own_paths(["python", "one.py", "{task_file}"])) == [str(work / "one.py")]
    assert list(own_paths(["python", "agents/main.py", rows])) == [str(work / "agents"), rows]
    assert list(own_paths(["python", "-m", "agents.main"])) == [str(work / "agents")]
    assert list(own_paths(["python", "-m", "one"])) == [str(work / "one.py")]
    assert list(own_paths(["python", "../away.py"])) == [str(tmp_path / "home" / "away.py")]
    assert list(own_paths(["python", "one.py", "--root", "."])) == [str(work / "one.py")]
    assert list(own_paths(["agents/main.py"])) == [str(work / "agents")]
    assert list(own_paths(["agents/main.py", "--config", rows])) == [str(work / "agents"), rows]
    assert list(own_paths(["uv", "run", "agents/main.py", rows])) == [str(work / "agents"), rows]
    assert list(own_paths(["python", "-m", "json.tool", rows])) == [rows], "no folder of a file of data"
    assert list(own_paths(["mytool", "--config", rows])) == [rows]
    assert list(own_paths(["true"])) == []


@needs_namespaces
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("sys.exit('no luck')", "exit code 1: no luck"),
        ("os.kill(os.getpid(), 9)", "signal 9"),
        ("x = bytearray(1 << 30)", "MemoryError"),
        ("import time; time.sleep(1000)", "longer than 8 s"),
    ],
)
def test_a_failed_program_says_why(tmp_path: Path, script: str, reason: str) -> None:
    assert reason in run(tmp_path, script, timeout_s=8).stops[0].detail


@needs_namespaces
def test_a_program_that_multiplies_is_killed_as_a_whole(tmp_path: Path) -> None:
    script = """
import subprocess, time
for _ in range(30):
    subprocess.Popen(["/bin/sleep", "876543"], start_new_session=True)
time.sleep(1000)
"""
    assert "longer than 8 s" in run(tmp_path, script, timeout_s=8).stops[0].detail
    assert not running("876543")


@needs_namespaces
def test_a_program_ends_at_once_while_it_connects(tmp_path: Path) -> None:
    # Threads of the launcher come and go with the connections, and the system may give its SIGTERM to any of them.
    folder, script = tmp_path / "episode", tmp_path / "program" / "script.py"
    folder.mkdir()
    script.parent.mkdir()
    script.write_text(
        """
import socket
print("ready", flush=True)
while True:
    socket.create_connection(("127.0.0.1", 1)).close()
"""
    )
    config = gateway_config(command=command(script), readable=[str(script.parent)], **CONFINED)
    words = [sys.executable, str(script)]
    options = launcher_options(config.gateway, words, str(folder), (), "http://127.0.0.1:1")
    for _ in range(6):
        launcher = subprocess.Popen([*LAUNCHER, options, str(os.getpid()), *words], env={}, stdout=subprocess.PIPE)
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"ready\n"
        launcher.terminate()
        assert launcher.wait(timeout=20) == 1
        launcher.stdout.close()


@needs_namespaces
def test_a_program_has_few_connections_to_the_driver(tmp_path: Path) -> None:
    script = """
import socket, urllib.parse
where = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
held = [socket.create_connection((where.hostname, where.port)) for _ in range(100)]
for connection in held[:50]:
    connection.sendall(b"GET /health HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n")
held[49].recv(1)
print(1)
"""
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "script.py").write_text(ASK + script)
    config = gateway_config(command=command(folder / "script.py"), readable=[str(folder)], **CONFINED)
    environment = ENVIRONMENTS.get("gateway").from_config(config)
    runner = environment.player(config, agents(), NoExecutor())

    async def most_connections() -> int:
        server = await environment.server()
        playing = asyncio.ensure_future(runner.run_episode(TASK, 1, "train", 0))
        most = 0
        while not playing.done():
            await asyncio.sleep(0.005)
            most = max(most, len(server.listening.connections))
        assert [action.reward for action in root(playing.result()).joint_actions] == [1.0]
        await environment.close()
        return most

    assert 1 < asyncio.run(most_connections()) <= CONNECTIONS


@needs_namespaces
def test_a_service_may_be_confined(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    script = tmp_path / "program" / "script.py"
    script.write_text(
        ASK
        + """
def get(path, token):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, headers={"Authorization": "Bearer " + token})
    return json.loads(urllib.request.urlopen(request).read() or b"null")

while True:
    episode = get("/tasks/next", os.environ["MARL_RAY_SERVICE_TOKEN"])
    if episode is not None:
        os.environ["OPENAI_API_KEY"] = episode["token"]
        call("/episode/reward", episode["task"]["limit"])
"""
    )
    own: dict[str, Any] = {"readable": [str(script.parent)], "service": True, "reward": "post"}
    config = gateway_config(command=command(script), **own, **CONFINED)
    (episode,) = asyncio.run(play(config, agents()))
    assert [action.reward for action in root(episode).joint_actions] == [3.0, 3.0]


@pytest.mark.parametrize(
    ("gateway", "message"),
    [
        ({"memory_mb": None}, "set gateway.memory_mb"),
        ({"readable": ["/nowhere"]}, "/nowhere does not exist"),
        ({"command": None, "function": "tests.plugins.games.test_game_adapters:play"}, "runs in the driver"),
        ({"command": None, "service": True, "reward": "post"}, "gateway.command"),
    ],
)
def test_a_confinement_without_its_settings_is_refused(gateway: dict[str, Any], message: str) -> None:
    config = gateway_config(**{"command": "true"} | CONFINED | gateway)
    with pytest.raises(UserError, match=message):
        ENVIRONMENTS.get("gateway").from_config(config)


@needs_namespaces
def test_a_machine_without_namespaces_refuses_in_one_line() -> None:
    # The filter of commands forbids namespaces: a run inside it stands for a machine that has none.
    script = f"""
from marl_ray.core.errors import UserError
from marl_ray.environments import ENVIRONMENTS
from marl_ray.sandbox.inside.isolation import process, seccomp
from tests.plugins.gateway.scripted_agents import gateway_config

config = gateway_config(command="true", **{CONFINED!r})
process.no_new_privs()
seccomp.Filter(seccomp.build_command_filter()).install()
try:
    ENVIRONMENTS.get("gateway").from_config(config)
except UserError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    (line,) = done.stdout.splitlines()
    assert line.startswith("gateway.sandbox namespaces is not available here (the command cannot be confined: no ")
