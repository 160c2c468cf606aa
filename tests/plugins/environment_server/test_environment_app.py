"""Episodes that are played over HTTP and WebSocket: prompts, rewards, equality with a rollout, and refused requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from marl_ray.config import Config
from marl_ray.core import connections
from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.environments import ENVIRONMENTS
from marl_ray.http import server as http_server
from marl_ray.http.request_guard import RequestGuard
from marl_ray.plugins.environment_server import environment_app
from marl_ray.plugins.environment_server.environment_app import EnvironmentApp
from marl_ray.plugins.environment_server.serve_environment import LIMITS
from marl_ray.plugins.environment_server.served_episode import check_served
from marl_ray.rollout.turn_player import TurnPlayer
from marl_ray.sandbox import Sandbox
from tests.rollout.helpers import AUX, GOOD, TASK, WRONG, DirectExecutor, FailingExecutor, rollout_config

TASKS = [TASK, Task("t/2", TASK.prompt, TASK.fields)]


def client_of(executor: Any, config: Config | None = None) -> TestClient:
    config = config or rollout_config()
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    routes = EnvironmentApp(config, environment, TASKS, executor).routes()
    return TestClient(RequestGuard(routes, LIMITS), base_url="http://localhost")


@pytest.fixture
def client(sandbox: Sandbox) -> Iterator[TestClient]:
    with client_of(DirectExecutor(sandbox)) as client:
        yield client


def step(client: TestClient, result: dict[str, Any], text: str) -> dict[str, Any]:
    body = {"action": {"text": text}, "episode_id": result["observation"]["episode_id"]}
    return client.post("/step", json=body).json()


def test_an_episode_asks_each_agent_in_each_turn(client: TestClient) -> None:
    result = client.post("/reset", json={"task": "t/1"}).json()
    asked = []
    for text in (AUX, WRONG, AUX, GOOD):
        assert not result["done"]
        asked.append((result["observation"]["agent"], result["reward"]))
        result = step(client, result, text)
    assert [agent for agent, _ in asked] == [0, 1, 0, 1]
    first = asked[2][1]
    assert [reward for _, reward in asked] == [None, None, first, None]
    assert result["done"]
    assert result["reward"] > first
    assert result["observation"]["rewards"] == [result["reward"]] * 2
    assert result["observation"]["metrics"]["all_passed"] == 1.0
    assert result["observation"]["prompt"] is None


def test_prompts_and_rewards_are_those_of_a_rollout(client: TestClient, sandbox: Sandbox) -> None:
    prompts: list[Any] = []

    class Recording:
        def __init__(self, text: str) -> None:
            self.text = text

        async def generate(self, prompt: Any, *rest: Any) -> Any:
            from marl_ray.core.episode import Completion, Generation

            prompts.append(prompt)
            return Generation((), (Completion((), self.text, (), "stop", ()),))

    config = rollout_config()
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    agents = [Recording(AUX), Recording(WRONG)]
    runner = TurnPlayer(config, environment, agents, DirectExecutor(sandbox))
    episode = asyncio.run(runner.run_episode(TASK, 1, "eval", evaluation=True))
    result, seen, rewards = client.post("/reset", json={"seed": 0}).json(), [], []
    for text in (AUX, WRONG, AUX, WRONG):
        seen.append(result["observation"]["prompt"])
        result = step(client, result, text)
        rewards += [result["reward"]] if result["reward"] is not None else []
    assert seen == prompts
    assert episode.root is not None
    assert rewards == [node.joint_actions[0].reward for node in (episode.root, episode.root.children[0])]


def test_a_connection_plays_episodes_of_its_own(client: TestClient) -> None:
    with client.websocket_connect("ws://localhost/ws") as socket:

        def ask(kind: str, data: Any = None) -> dict[str, Any]:
            socket.send_json({"type": kind} | ({} if data is None else {"data": data}))
            return socket.receive_json()

        assert ask("step", {"text": "x"})["data"]["code"] == "SESSION_ERROR"
        assert [ask("reset")["data"]["observation"]["task"] for _ in range(3)] == ["t/1", "t/2", "t/1"]
        assert ask("step", {"text": AUX})["data"]["observation"]["agent"] == 1
        state = ask("state")
        assert (state["type"], state["data"]["step_count"], state["data"]["task"]) == ("state", 1, "t/1")
        assert ask("step", {"code": "x"})["type"] == "error"
        assert ask("dance")["data"]["code"] == "UNKNOWN_TYPE"
        assert ask("step", {"text": GOOD})["data"]["reward"] > 0  # the errors have not ended the episode
        socket.send_text("not JSON")
        assert socket.receive_json()["type"] == "error"
        socket.send_json({"type": "close"})


def test_a_connection_of_an_episode_may_be_silent_for_longer_than_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    websockets = pytest.importorskip("websockets.asyncio.client")
    monkeypatch.setattr(connections, "HEADER_S", 1.0)
    monkeypatch.setattr(http_server, "CHECK_S", 0.05)
    config = rollout_config()
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    routes = EnvironmentApp(config, environment, TASKS, FailingExecutor()).routes()

    async def play() -> None:
        ready = asyncio.Event()
        guard = RequestGuard(routes, LIMITS)
        with connections.bind("127.0.0.1", 0) as listening:
            serving = asyncio.ensure_future(http_server.serve_http(guard, listening, ready.set, ws="auto"))
            await asyncio.wait({serving, asyncio.ensure_future(ready.wait())}, return_when=asyncio.FIRST_COMPLETED)
            async with websockets.connect(f"ws://127.0.0.1:{listening.getsockname()[1]}/ws", proxy=None) as client:
                await asyncio.sleep(2.0)
                await client.send('{"type": "reset"}')
                assert '"observation"' in await client.recv()
                assert len(listening.connections) == 1
            while listening.connections:
                await asyncio.sleep(0.01)
            serving.cancel()
            await asyncio.wait({serving})

    asyncio.run(asyncio.wait_for(play(), 60))


def test_the_description_of_the_environment(client: TestClient) -> None:
    assert client.get("/tasks").json() == {"tasks": ["t/1", "t/2"], "agents": 2}
    assert client.get("/health").json() == {"status": "healthy"}
    assert set(client.get("/schema").json()) == {"action", "observation", "state"}
    result = client.post("/reset", json={"episode_id": "mine"}).json()
    assert set(client.get("/schema").json()["observation"]["properties"]) == set(result["observation"])
    assert client.get("/state", params={"episode_id": "mine"}).json()["step_count"] == 0


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/reset", [], 400),
        ("/reset", {"seed": -1}, 400),
        ("/reset", {"seed": "x"}, 400),
        ("/reset", {"task": "none"}, 404),
        ("/reset", {"task": ["t/1"]}, 404),
        ("/reset", {"episode_id": 3}, 400),
        ("/step", {"action": {"text": "x"}}, 404),
        ("/step", {"episode_id": "none", "action": {"text": "x"}}, 404),
    ],
)
def test_malformed_requests_are_refused(client: TestClient, path: str, body: Any, status: int) -> None:
    assert client.post(path, json=body).status_code == status


def test_an_answer_that_is_no_text_leaves_the_episode_open(client: TestClient) -> None:
    result = client.post("/reset", json={}).json()
    body = {"episode_id": result["observation"]["episode_id"], "action": {"text": 3}}
    assert client.post("/step", json=body).status_code == 400
    assert step(client, result, AUX)["observation"]["agent"] == 1


def test_pages_of_other_sites_are_refused(client: TestClient) -> None:
    assert client.post("/reset", content="{}", headers={"content-type": "text/plain"}).status_code == 415
    assert client.get("/tasks", headers={"host": "other.example"}).status_code == 421
    for headers in ({"origin": "http://localhost"}, {"host": "other.example"}):
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("ws://localhost/ws", headers=headers):
            pass


def test_an_episode_without_a_verdict_is_an_error() -> None:
    with client_of(FailingExecutor()) as client:
        result = step(client, client.post("/reset", json={}).json(), AUX)
        body = {"action": {"text": GOOD}, "episode_id": result["observation"]["episode_id"]}
        reply = client.post("/step", json=body)
        assert reply.status_code == 409
        assert "no verdict" in reply.text


def test_the_number_of_open_episodes_is_limited(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_app, "MAX_EPISODES", 2)
    results = [client.post("/reset", json={}).json() for _ in range(3)]
    status = [
        client.get("/state", params={"episode_id": result["observation"]["episode_id"]}).status_code
        for result in results
    ]
    assert status == [404, 200, 200]


def test_environments_that_need_engines_are_refused() -> None:
    config = rollout_config(sections={"external": {"composition": "chat"}})
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    with pytest.raises(UserError, match="composition"):
        check_served(environment, config.environment, config.external, TASKS)
