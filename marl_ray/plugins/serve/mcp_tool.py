"""The MCP tool `ask_team`, for programs that call tools through the Model Context Protocol.

The endpoint /mcp needs the package `mcp` (extra `serve`). Each call is independent: there are no sessions.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from typing import Any

from marl_ray.http.request_formats import TEAM, ApiError, SamplingRequest, TeamFields
from marl_ray.plugins.serve.team_player import TeamPlayer
from marl_ray.plugins.serve.team_tasks import read_tasks

DESCRIPTION = """Ask a team of language models for a Python program. `task` describes the function to write,
`entry_point` is its name, and `tests` are assert statements or a test program. The team reads the results of the tests
between its turns."""


def mcp_installed() -> bool:
    """Return whether the package `mcp` is installed."""
    return importlib.util.find_spec("mcp") is not None


def mcp_app(player: TeamPlayer, answer_s: float, body_bytes: int) -> Any:
    """Return an ASGI application with the endpoint /mcp; its `lifespan` has to run."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.transport_security import TransportSecuritySettings

    root = logging.getLogger()
    handlers = root.handlers[:]
    level = root.level
    server: Any = MCPServer("marl_ray", log_level="ERROR")
    root.handlers[:] = handlers  # the constructor adds a handler, which would repeat all records
    root.setLevel(level)

    async def ask_team(
        task: str, entry_point: str | None = None, tests: str | list[str] | None = None
    ) -> dict[str, Any]:
        try:
            given = TeamFields.model_validate({"entry_point": entry_point, "tests": tests or None})
            async with asyncio.timeout(answer_s):
                request = SamplingRequest(model=TEAM)
                (read,) = await read_tasks([task], given)
                answer = await player.ask_team(read, request)
        except ApiError as error:
            raise ToolError(error.message) from None
        except TimeoutError:
            raise ToolError(f"no answer within {answer_s:g} s") from None
        except ValueError as error:  # pydantic's errors too
            raise ToolError(f"invalid arguments: {str(error)[:300]}") from None
        return {"program": answer.text, "turns": answer.turns, "usage": answer.usage.to_dict()}

    server.tool(name="ask_team", description=DESCRIPTION)(ask_team)
    return server.streamable_http_app(
        json_response=True,
        stateless_http=True,
        max_request_body_size=body_bytes,
        # The server's own guard checks hosts.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
