"""Prompts in the rows of data sets: texts, and chat messages as data sets store them.

Files of Arrow and Parquet give every message the same keys, so that keys which a message does not use are null there.
Contents may be lists of text parts, and newer models call the system's role `developer`. Messages that mean the same as
plain ones are read as plain ones.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from marl_ray.core.chat import Prompt
from marl_ray.environments.plugin_checks import ROLES

SAME_ROLES = {"developer": "system"}
"""Roles with another name here."""


class NotAPrompt(ValueError):
    """A value that is no prompt, for the reason in the message."""


def is_list(value: Any) -> bool:
    """Return whether the value is a list, tuple or array with one dimension."""
    return isinstance(value, list | tuple) or (getattr(value, "ndim", 0) == 1 and hasattr(value, "__getitem__"))


def is_one_prompt(value: Any) -> bool:
    """Return whether the value is a text or looks like chat messages, in contrast to one prompt per agent."""
    if isinstance(value, str):
        return True
    if not is_list(value) or len(value) == 0:
        return False
    return all(isinstance(message, Mapping) for message in value)


def read_prompt(value: Any) -> Prompt:
    """Return a text, or chat messages with the keys `role` and `content` alone. Raises NotAPrompt."""
    if isinstance(value, str):
        return value
    if not is_one_prompt(value):
        raise NotAPrompt("an entry is neither a text nor a list of messages")
    messages = []
    for number, message in enumerate(value, 1):
        messages.append(_read_message(message, f"message {number}"))
    # A completion answers the user; chat templates reject or ignore another last role.
    if messages[-1]["role"] != "user":
        raise NotAPrompt(f"the last message has the role {messages[-1]['role']}, not user")
    return messages


def _read_message(message: Mapping[str, Any], place: str) -> dict[str, str]:
    given = _without_unused_keys(message)
    for key in given:
        if key not in ("role", "content"):
            raise NotAPrompt(f"{place} has the key {key}, which a prompt cannot have")
    role = given.get("role")
    if isinstance(role, str):
        role = SAME_ROLES.get(role, role)
    if role not in ROLES:
        raise NotAPrompt(f"{place} has the role {role!r:.40}, not one of {', '.join(ROLES)}")
    content: Any = given.get("content")
    if is_list(content):
        content = "".join(_read_part(part, place) for part in content)
    if not isinstance(content, str):
        raise NotAPrompt(f"{place} has no content that is a text")
    return {"role": role, "content": content}


def _read_part(part: Any, place: str) -> str:
    """Return the text of a part of a content."""
    given: dict[str, Any] = {}
    if isinstance(part, Mapping):
        given = _without_unused_keys(part)
    if given.get("type") != "text" or not isinstance(given.get("text"), str):
        raise NotAPrompt(f"{place} has a part of its content that is no text, {part!r:.80}")
    for key in given:
        if key not in ("type", "text"):
            raise NotAPrompt(f"{place} has a part with the key {key}, which a prompt cannot have")
    return str(given["text"])


def _without_unused_keys(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys whose values are neither null nor an empty list."""
    used: dict[str, Any] = {}
    for key, value in message.items():
        is_empty_list = is_list(value) and len(value) == 0
        if value is not None and not is_empty_list:
            used[str(key)] = value
    return used


def copied(value: Any) -> Any:
    """Return a copy of a value of a row: its lists, mappings, sets and arrays are new, and other values the same."""
    if isinstance(value, Mapping):
        return {key: copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [copied(inner) for inner in value]
    if type(value) is tuple:  # the constructor of a subclass may take other arguments
        return tuple(copied(inner) for inner in value)
    if isinstance(value, set):
        return set(value)
    if hasattr(value, "ndim") and hasattr(value, "copy"):  # an array, which may hold mappings
        return copy.deepcopy(value)
    return value
