"""A deterministic program for runs with faults: two agents answer a task, and then a question about both answers. It
uses the standard library only, so that an episode starts quickly.

python conversing_program.py TASK_FILE
"""

import json
import os
import sys
import urllib.request
from typing import Any


def answer(agent: str, messages: list[dict[str, str]]) -> str:
    """Return an agent's answer to a conversation, which then contains the answer."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": agent, "messages": messages}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request, timeout=600) as reply:
        text = json.load(reply)["choices"][0]["message"]["content"]
    messages.append({"role": "assistant", "content": text})
    return text


def main() -> None:
    with open(sys.argv[1]) as file:
        task: dict[str, Any] = json.load(file)
    conversations = {name: [{"role": "user", "content": prompt}] for name, prompt in task["prompts"].items()}
    answers = {name: answer(name, messages) for name, messages in conversations.items()}
    for name, messages in conversations.items():
        others = " ".join(text for other, text in answers.items() if other != name)
        messages.append({"role": "user", "content": f"The other function is {others}. Write yours again."})
        answer(name, messages)
    print(json.dumps({"answers": answers}))


if __name__ == "__main__":
    main()
