"""The prompts of function calls. All callers get the same text apart from their names."""

from __future__ import annotations

ALONE = "caller"


def roles(num_agents: int) -> list[str]:
    """Return the names of the agents."""
    if num_agents == 1:
        return [ALONE]
    return [f"caller {number}" for number in range(1, num_agents + 1)]


def first_prompt(request: str, functions: str, role: str, num_agents: int) -> str:
    """Return the prompt of the first turn. `functions` has one schema per line."""
    share = ""
    if num_agents > 1:
        share = (
            f"You are {role} of {num_agents}. All callers read this request at the same time, and their calls are "
            "collected. Make a fair share of the calls, at least one, and leave the others to your partners: calls "
            "that are made twice count against all of you.\n"
        )
    return (
        f"Functions, one JSON schema per line:\n{functions}\n\nRequest:\n{request.strip()}\n\n{share}"
        "Write function calls that serve the request, one per line, with named arguments, such as "
        'play(title="Blue", volume=3). Write nothing else.\n'
    )


def revision(role: str) -> str:
    """Return the closing instruction of later turns."""
    return f"Write the calls of {role} again, all of them, one per line and nothing else."
