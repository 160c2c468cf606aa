"""An expert for `external.mode: expert_edits` that knows the solutions of a bundled data set.

It serves OpenAI's API on localhost and suggests complete functions that pass all tests. An arm with this expert
therefore measures the benefit of a perfect hint in the second turn, and not the benefit of suggestions by a vendor's
model.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "openai:solutions"
"""The value of `external.expert_model` for this expert."""


def edits(rows: Sequence[dict[str, Any]], question: str) -> dict[str, str]:
    """Return the solution of both agents for the problem in the question; `rows` are the rows of the data set.

    Raises LookupError if the question contains no problem of the data set.
    """
    for row in rows:
        if row["prompt"].strip() in question:
            return {"aux": row["aux_solution"], row["entry_point"]: row["main_solution"]}
    raise LookupError("the question contains no problem of the data set")


@contextmanager
def serving(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Serve requests within the context, which is the value of `external.expert_base_url`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # keeps connections open for several requests
        disable_nagle_algorithm = True
        timeout = 60  # seconds without a request until the connection is closed

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
            """Log nothing: failures are in the log of the run."""

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
