"""The two writers as a service: one process that asks for tasks and plays several episodes at the same time."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import Request, urlopen

from openai import OpenAI

GATEWAY, TOKEN = os.environ["OPENAI_BASE_URL"], os.environ["MARL_RAY_SERVICE_TOKEN"]
CLIENT = OpenAI(api_key="of each episode")  # one pool of connections, because a new client takes 0.1 s


def call(path: str, token: str, body: Any = None) -> Any:
    """Return the content of a reply; None if there is none."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(GATEWAY + path, data, headers), timeout=600) as reply:
        return json.loads(reply.read() or b"null")


def play(episode: dict[str, Any]) -> None:
    client, answers = CLIENT.with_options(api_key=episode["token"]), {}
    for name, prompt in episode["task"]["prompts"].items():
        reply = client.chat.completions.create(model=name, messages=[{"role": "user", "content": prompt}])
        answers[name] = reply.choices[0].message.content or ""
    call("/episode/reward", episode["token"], {"answers": answers})


def work(_: int) -> None:
    while True:
        episode = call("/tasks/next", TOKEN)
        if episode is not None:
            try:
                play(episode)
            except Exception as error:  # the next episode may succeed
                call("/episode/reward", episode["token"], {"failed": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    workers = int(sys.argv[1])
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
