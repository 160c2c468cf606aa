"""The input of a reward model: all prompts and all answers of one joint answer as one text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marl_ray.core.chat import Prompt, as_text


@dataclass(frozen=True, slots=True)
class JointText:
    """The text of a joint answer, which is an attempt's program in the environment `reward_model`."""

    text: str


def joint_text(prompts: Sequence[Prompt], answers: Sequence[str]) -> JointText:
    """Return the text: the prompts of all agents, then their answers, so that a text that is cut at its start keeps
    every answer.

    >>> joint_text(["Write f.", "Write g."], ["f", "g"]).text
    '## Prompt 1\\nWrite f.\\n\\n## Prompt 2\\nWrite g.\\n\\n## Answer 1\\nf\\n\\n## Answer 2\\ng'
    """
    parts = []
    for number, prompt in enumerate(prompts, 1):
        parts.append(f"## Prompt {number}\n{as_text(prompt).strip()}")
    for number, answer in enumerate(answers, 1):
        parts.append(f"## Answer {number}\n{answer.strip()}")
    return JointText("\n\n".join(parts))
