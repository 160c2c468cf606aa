"""Upload of an export to a Hugging Face hub.

huggingface_hub reads the address from HF_ENDPOINT and the token from HF_TOKEN or its own login.
"""

from __future__ import annotations

from pathlib import Path

from marl_ray.core.errors import UserError
from marl_ray.models.names import is_hub_id


def check_repository(name: str) -> None:
    """Raise UserError unless `name` is a hub id with an owner."""
    if "/" not in name or not is_hub_id(name):
        raise UserError(f"--push {name} is not a hub id: write owner/name")


def push(folder: Path, repository: str, public: bool) -> str:
    """Upload an export in one commit and return its address. A new repository is private unless `public`.

    Raises UserError if the hub rejects the card, the token or the upload.
    """
    from huggingface_hub import HfApi, ModelCard
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    api = HfApi()
    try:
        card = ModelCard((folder / "README.md").read_text(encoding="utf-8"))
        card.validate(repo_type="model")
        api.create_repo(repository, private=not public, exist_ok=True)
        commit = api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Add team")
    except LocalTokenNotFoundError:
        raise UserError("the hub needs a token: set HF_TOKEN, or log in with `hf auth login`") from None
    except ValueError as error:
        raise UserError(f"the hub rejects the model card: {error}") from None
    except HfHubHTTPError as error:
        status: int | str = "no"
        if error.response is not None:
            status = error.response.status_code
        raise UserError(f"the hub refused {repository} (HTTP status {status}): check the token and the name") from None
    except OSError as error:
        raise UserError(f"the upload to {repository} failed: {error}. The export is in {folder}") from None
    return str(commit.commit_url)
