"""The prompts of readers: two examples, the text, and the beginning of the agent's line.

All readers see the same examples, which therefore do not divide the text between them.
"""

from __future__ import annotations

ROLES = ["first reader", "second reader", "third reader", "fourth reader", "fifth reader", "sixth reader"]
EXAMPLES = (
    (
        "The school choir sang on the market square at noon. Rain had emptied the benches, but a baker opened his "
        "window, put down his tray and hummed the melody.",
        ("baker", "choir", "melody", "square", "rain", "window", "school", "benches", "noon", "tray"),
    ),
    (
        "A carpenter repaired the broken gate with oak and brass screws. The farmer paid him in apples, potatoes and "
        "a promise to close it more gently.",
        ("brass", "apples", "gate", "farmer", "screws", "promise", "potatoes", "carpenter", "broken", "repaired"),
    ),
)
"""Texts with tags in an order that is not the text's."""


def first_prompt(text: str, role: str, words: int) -> str:
    """Return an agent's prompt of the first turn, whose examples have as many tags as the agent shall write."""
    prompt = ""
    for example, tags in EXAMPLES:
        prompt += f"{_asked(example, role)} {', '.join(tags[:words])}\n\n"
    return prompt + _asked(text, role)


def revision(text: str, role: str) -> str:
    """Return an agent's closing instruction of a later turn."""
    return f"Text: {text.strip()}\nBetter tags of the {role}:"


def first_line(response: str) -> str:
    """Return the first line of a response that is not blank, or an empty string."""
    for line in response.splitlines():
        if line.strip():
            return line
    return ""


def _asked(text: str, role: str) -> str:
    return f"Text: {text.strip()}\nTags of the {role}:"
