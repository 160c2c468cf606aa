"""Names of models and datasets on the hub."""

from __future__ import annotations


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form of a hub's id: `owner/name`, or a name alone. Asks nobody."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True
