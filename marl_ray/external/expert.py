"""Another model as an expert: asked the environment's question, it suggests an edit for each part of an answer."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

from marl_ray.core.errors import UserError
from marl_ray.external.client import Client, EndpointError, first_object, pause_s
from marl_ray.external.endpoints import Endpoint

logger = logging.getLogger(__name__)

MAX_EDIT_CHARS = 2000


class Expert:
    """Asks one model, from one event loop. Each request has `timeout_s`; what fails is tried `retries` times more,
    with pauses."""

    def __init__(self, endpoint: Endpoint, timeout_s: float = 60.0, retries: int = 3) -> None:
        self._client = Client(endpoint, timeout_s)
        self._retries = retries
        self._told: set[str] = set()

    def __str__(self) -> str:
        return str(self._client)

    @property
    def key_variable(self) -> str:
        """Environment variable that holds its key."""
        return self._client.endpoint.key_variable

    async def edits(self, question: str, names: Sequence[str]) -> dict[str, str] | None:
        """The suggested edit for each of the names that the question asks for; None when the expert cannot be heard.

        Raises UserError when the key is refused, since no later request can do better.
        """
        for attempt in range(self._retries + 1):
            try:
                reply = await self._client.ask(question)
                return parse_edits(reply.text, names)
            except EndpointError as error:
                if error.refused:
                    raise UserError(f"the expert {self} refused the key in {self.key_variable} ({error})") from None
                if attempt == self._retries or not error.retry:
                    self._tell(error)
                    return None
            await asyncio.sleep(pause_s(attempt))
        return None

    def _tell(self, error: EndpointError) -> None:
        """Each kind of failure once: all are counted anyway."""
        if str(error) not in self._told:
            self._told.add(str(error))
            logger.warning("expert %s gave no edit (%s); more of this kind show in expert/failures alone", self, error)


def parse_edits(text: str, names: Sequence[str]) -> dict[str, str]:
    """The edits in a reply: its first JSON object with one of the names, fenced or within prose.

    Raises EndpointError when there is none. Names that are left out, or given nothing, have no edit.
    """
    found = first_object(text, names)
    edits = {name: _as_text(found.get(name)) for name in names}
    return {name: edit for name, edit in edits.items() if edit}


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:MAX_EDIT_CHARS].encode("utf-8", "replace").decode("utf-8").strip()
