"""Words that a limit of tokens leaves to agents that do not read: `python -m benchmarks.tags.bounds`.

Prints a Markdown table, on the held-out texts of the study tags-clock: an agent that copies the beginning of the text,
one that lists the ten words with the fewest tokens, and a pair that divides these words. Each with and without the rule
that words stand between commas (`tags.commas`).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from benchmarks.tags.clock import LIMITS
from marl_ray.core.episode import Task
from marl_ray.data.loading import load_tasks
from marl_ray.models.smollm2 import smollm2
from marl_ray.plugins.tags.environment import Tagging
from marl_ray.plugins.tags.words import content_words, split_words

TOTAL = 10


def main() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2())

    def tokens(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(f" {text}")
        return ids

    def answers(task: Task, separator: str) -> dict[str, list[str]]:
        """Return the answers of each way."""
        content = content_words(task.prompt)
        words = [word for word in dict.fromkeys(split_words(task.prompt)) if word in content]
        shortest = sorted(words, key=lambda word: len(tokens(word)))[:TOTAL]
        return {
            "one agent copies the beginning": [task.prompt],
            "one agent, ten shortest words": [separator.join(shortest)],
            "a pair, five of them each": [separator.join(shortest[::2]), separator.join(shortest[1::2])],
        }

    print(f"| | commas | {' | '.join(f'{limit} tokens' for limit in LIMITS)} |")
    print("|---|---|" + "---|" * len(LIMITS))
    for commas, separator in ((False, " "), (True, ", ")):
        found: dict[str, list[list[float]]] = {}
        for task in load_tasks("bundled:tags", "eval[:40]"):
            for title, texts in answers(task, separator).items():
                row = []
                for limit in LIMITS:
                    cut = [str(tokenizer.decode(tokens(text)[:limit])) for text in texts]
                    row.append(_different(task, cut, commas))
                found.setdefault(title, []).append(row)
        for title, rows in found.items():
            cells = " | ".join(f"{fmean(words):.2f}" for words in zip(*rows, strict=True))
            print(f"| {title} | {'yes' if commas else 'no'} | {cells} |")


def _different(task: Task, answers: Sequence[str], commas: bool) -> float:
    environment = Tagging(len(answers), TOTAL // len(answers), commas)
    return environment.outcome(environment.attempt(task, answers, last=True), None).metrics["different_words"]


if __name__ == "__main__":
    main()
