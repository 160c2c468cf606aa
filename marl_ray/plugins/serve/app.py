"""The application of a trained team: the API, the MCP tool and the page."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route

from marl_ray.http.request_guard import LOCAL_NAMES, RequestGuard, ServerLimits
from marl_ray.plugins.serve.api_routes import ApiRoutes
from marl_ray.plugins.serve.mcp_tool import mcp_app, mcp_installed
from marl_ray.plugins.serve.team_player import TeamPlayer

PAGE_HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "x-frame-options": "DENY"}
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def make_app(player: TeamPlayer, roles: list[str | None], limits: ServerLimits, key: str | None) -> RequestGuard:
    """Return the guarded ASGI application. Without a key, it answers requests for this machine only."""
    routes: list[Any] = [*ApiRoutes(player, roles, limits).routes(), Route("/", _page)]
    lifespan: Any = None
    if mcp_installed():
        mounted = mcp_app(player, limits.answer_s, limits.body_bytes)
        routes.append(Mount("/", mounted))
        # Starlette does not run the lifespan of a mounted application.
        lifespan = mounted.router.lifespan_context
    # A page of another site cannot send the key, so that a server with a key may have any name.
    return RequestGuard(routes, limits, key, LOCAL_NAMES if key is None else None, lifespan)


@cache
def page() -> tuple[str, str]:
    """Return the page and its Content-Security-Policy, which names the hashes of its script and style."""
    text = resources.files("marl_ray.plugins.serve").joinpath("templates/page.html").read_text(encoding="utf-8")
    hashes = {}
    for tag in ("script", "style"):
        sources = []
        for content in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL):
            digest = hashlib.sha256(content.encode()).digest()
            sources.append(f"'sha256-{base64.b64encode(digest).decode()}'")
        hashes[tag] = " ".join(sources)
    policy = (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


async def _page(request: Request) -> Response:
    text, policy = page()
    return HTMLResponse(text, headers=PAGE_HEADERS | {"content-security-policy": policy})
