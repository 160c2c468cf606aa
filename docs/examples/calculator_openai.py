"""Two agents, one of them with a tool and a history. The program knows the openai client, and nothing of marl_ray."""

import json
import sys
from pathlib import Path

from openai import OpenAI

NUMBER = {"type": "integer"}
PARAMETERS = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}
ADD = {"type": "function", "function": {"name": "add", "description": "Add two numbers.", "parameters": PARAMETERS}}
MAX_ROUNDS = 4


def add(arguments: str) -> str:
    try:
        given = json.loads(arguments)
        return str(int(given["a"]) + int(given["b"]))
    except (ValueError, KeyError, TypeError) as error:
        return f"error: {type(error).__name__}"


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    history = []

    def ask(question: str) -> str:
        """Continue the conversation until there is an answer without a call of the tool."""
        history.append({"role": "user", "content": question})
        for _ in range(MAX_ROUNDS):
            reply = client.chat.completions.create(model="solver", messages=history, tools=[ADD])
            message = reply.choices[0].message
            history.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls or ():
                history.append({"role": "tool", "tool_call_id": call.id, "content": add(call.function.arguments)})
            if not message.tool_calls:
                break
        return message.content or ""

    answers = [ask(task["prompt"]), ask(task["second"])]
    right = [answer.strip() == str(result) for answer, result in zip(answers, task["results"], strict=True)]
    question = f"Is {answers[0].strip()} the answer to: {task['prompt']}"
    check = client.chat.completions.create(model="checker", messages=[{"role": "user", "content": question}])
    agrees = (check.choices[0].message.content or "").strip() == ("yes" if right[0] else "no")
    print(json.dumps({"rewards": {"solver": sum(right), "checker": float(agrees)}, "metrics": {"right": right[0] * 1}}))


if __name__ == "__main__":
    main()
