"""An expert for `external.mode: expert_edits` that knows the solutions of a bundled set: OpenAI's protocol, localhost.

Its edits are the whole functions of one way that passes all tests. So an arm that is told them shows what a second turn
can make of a perfect hint; it says nothing of what a vendor's model would suggest.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "openai:solutions"
"""As which `external.expert_model` asks it."""


def edits(rows: Sequence[dict[str, Any]], question: str) -> dict[str, str]:
    """The functions of the set's pair for the problem that stands in the question; `rows` are the set's file. Raises
    LookupError where it holds no problem of the set."""
    for row in rows:
        if row["prompt"].strip() in question:
            return {"aux": row["aux_solution"], row["entry_point"]: row["main_solution"]}
    raise LookupError("the question holds no problem of the set")


@contextmanager
def serving(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Serves while the block runs; gives the value of `external.expert_base_url`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # a connection for many questions
        disable_nagle_algorithm = True
        timeout = 60  # seconds without one, and it ends

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            try:
                text, status = json.dumps(edits(rows, request["messages"][-1]["content"])), 200
            except LookupError as error:
                text, status = str(error), 404
            message = {"role": "assistant", "content": text}
            reply = json.dumps({"choices": [{"index": 0, "message": message}]}).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: Any) -> None:
            """Nothing: a run's log tells of failures."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
