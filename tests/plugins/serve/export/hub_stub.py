"""A stand-in for the HTTP API of a Hugging Face hub on localhost, because tests cannot reach a real one.

It accepts a repository, inline and LFS files and one commit, and keeps the contents.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_stub_token"


class StubState:
    """Requests that the stub has received."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.cards: list[str] = []
        self.files: dict[str, bytes] = {}
        self.objects: dict[str, bytes] = {}
        self.rejects_cards = False


class Handler(BaseHTTPRequestHandler):
    """The endpoints that an upload of a folder uses."""

    state: StubState
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self._body()
        self._reply(404, {"error": "not found"})

    def do_PUT(self) -> None:
        self.state.objects[self.path.rpartition("/")[2]] = self._body()
        self._reply(200, {})

    def do_POST(self) -> None:
        body, path = self._body(), self.path.partition("?")[0]
        if path != "/api/validate-yaml" and self.headers.get("authorization") != f"Bearer {TOKEN}":
            self._reply(401, {"error": "invalid token"})
        elif path == "/api/validate-yaml":
            self.state.cards.append(json.loads(body)["content"])
            self._reply(400 if self.state.rejects_cards else 200, {"errors": ["license"], "warnings": []})
        elif path == "/api/repos/create":
            self.state.created.append(json.loads(body))
            self._reply(200, {"url": f"{self._address()}/owner/team", "id": "owner/team", "name": "owner/team"})
        elif path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            modes = [
                {"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(".safetensors") else "regular"}
                for f in files
            ]
            self._reply(200, {"files": [m | {"shouldIgnore": False, "oid": None} for m in modes]})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [
                one | {"actions": {"upload": {"href": f"{self._address()}/lfs/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            self._reply(200, {"transfer": "basic", "objects": objects})
        elif path.endswith("/commit/main"):
            for line in body.splitlines():
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "file":
                    self.state.files[value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    self.state.files[value["path"]] = self.state.objects[value["oid"]]
            url = f"{self._address()}/owner/team/commit/0"
            self._reply(200, {"commitUrl": url, "commitOid": "0", "commitMessage": "", "commitDescription": ""})
        else:
            self._reply(404, {"error": path})

    def _address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def _reply(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def hub_stub() -> Iterator[tuple[str, StubState]]:
    """Yield the address of a stub and its state."""
    state = StubState()
    handler = type("BoundHandler", (Handler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
