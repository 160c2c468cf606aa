"""A scripted HTTP server on localhost with both vendors' protocols."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

JSON = {"content-type": "application/json"}


class Server:
    """An HTTP server that answers POST requests by a script: a list of functions of the handler, of which the last
    repeats."""

    def __init__(self) -> None:
        self.script: list[Callable[[BaseHTTPRequestHandler], None]] = []
        self.requests: list[SimpleNamespace] = []
        self.lock = threading.Lock()
        self.active = self.most_active = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.body = body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with outer.lock:
                    outer.requests.append(SimpleNamespace(path=self.path, headers=self.headers, body=body))
                    answer = outer.script.pop(0) if len(outer.script) > 1 else outer.script[0]
                    outer.active += 1
                    outer.most_active = max(outer.most_active, outer.active)
                try:
                    answer(self)
                except OSError:
                    pass
                finally:
                    with outer.lock:
                        outer.active -= 1

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def send(handler: BaseHTTPRequestHandler, status: int, data: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("content-length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


Answer = Callable[[BaseHTTPRequestHandler], None]


def says(text: str, pause: float = 0.0, usage: dict[str, int] | None = None) -> Answer:
    """Return a reply with this text in the protocol of the requested path."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(pause)
        body: dict[str, Any]
        if handler.path.endswith("/messages"):
            body = {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": text}]}
        else:
            body = {"choices": [{"message": {"role": "assistant", "content": text}}], "usage": usage}
        send(handler, 200, json.dumps(body).encode(), **JSON)

    return answer


def fails(status: int, body: bytes = b'{"error": "no, sk-very-secret"}', **headers: str) -> Callable[..., None]:
    return lambda handler: send(handler, status, body, **{**JSON, **headers})
