"""A program with two agents that has no part of marl_ray: a coder writes two functions, and both agents revise."""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=1)
    options = parser.parse_args()
    task = json.loads(options.task.read_text())
    client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    conversations = {name: [{"role": "user", "content": prompt}] for name, prompt in task["prompts"].items()}

    def answer(name: str) -> str:
        reply = client.chat.completions.create(model=name, messages=conversations[name])
        return reply.choices[0].message.content or ""

    for turn in range(options.turns):
        with ThreadPoolExecutor() as pool:
            answers = dict(zip(conversations, pool.map(answer, conversations), strict=True))
        if turn + 1 < options.turns:
            for name, messages in conversations.items():
                messages.append({"role": "assistant", "content": answers[name]})
                messages.append({"role": "user", "content": "Write it again, and correct mistakes."})
    print(json.dumps({"answers": answers}))


if __name__ == "__main__":
    main()
