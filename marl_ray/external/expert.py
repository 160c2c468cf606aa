"""An expert model, which answers the environment's question with a suggested edit for each part of an answer."""

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
    """A client of one expert model, for one event loop. A failed request is retried up to `retries` times with pauses.
    Each request has a timeout of `timeout_s` seconds."""

    def __init__(self, endpoint: Endpoint, timeout_s: float = 60.0, retries: int = 3) -> None:
        self._client = Client(endpoint, timeout_s)
        self._retries = retries
        self._logged: set[str] = set()

    def __str__(self) -> str:
        return str(self._client)

    @property
    def key_variable(self) -> str:
        """Environment variable with the key."""
        return self._client.endpoint.key_variable

    async def edits(self, question: str, names: Sequence[str]) -> dict[str, str] | None:
        """Return the suggested edits by name, None if all attempts fail. Raises UserError if the key is refused."""
        for attempt in range(self._retries + 1):
            try:
                reply = await self._client.ask(question)
                return parse_edits(reply.text, names)
            except EndpointError as error:
                if error.refused:
                    raise UserError(f"the expert {self} refused the key in {self.key_variable} ({error})") from None
                if attempt == self._retries or not error.retry:
                    self._log_once(error)
                    return None
            await asyncio.sleep(pause_s(attempt))
        return None

    def _log_once(self, error: EndpointError) -> None:
        """Log each kind of failure once. The metric expert/failures counts all of them."""
        if str(error) not in self._logged:
            self._logged.add(str(error))
            logger.warning("expert %s gave no edit (%s); more of this kind show in expert/failures alone", self, error)


def parse_edits(text: str, names: Sequence[str]) -> dict[str, str]:
    """Return the edits in a reply, from its first JSON object with one of the names, fenced or within prose.

    Missing and empty values are no edits. Raises EndpointError if there is no such object.
    """
    values = first_object(text, names)
    edits = {name: _as_text(values.get(name)) for name in names}
    return {name: edit for name, edit in edits.items() if edit}


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:MAX_EDIT_CHARS].encode("utf-8", "replace").decode("utf-8").strip()
