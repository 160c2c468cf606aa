"""Two agents write two functions, and may revise them. The program knows the openai client, and nothing of marl_ray."""

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
    task = json.loads(options.task.read_text(encoding="utf-8"))
    client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    conversations = {name: [{"role": "user", "content": prompt}] for name, prompt in task["prompts"].items()}

    def answer(name: str) -> str:
        reply = client.chat.completions.create(model=name, messages=conversations[name])
        return reply.choices[0].message.content or ""

    answers: dict[str, str] = {}
    for turn in range(options.turns):
        with ThreadPoolExecutor() as pool:
            latest = dict(zip(conversations, pool.map(answer, conversations), strict=True))
        # A revision that is no function does not replace the first answer.
        answers |= {name: text for name, text in latest.items() if not turn or text.startswith("def ")}
        if turn + 1 < options.turns:
            for name, messages in conversations.items():
                messages.append({"role": "assistant", "content": latest[name]})
                messages.append({"role": "user", "content": "Write it again, and correct mistakes."})
    print(json.dumps({"answers": answers}))


if __name__ == "__main__":
    main()
