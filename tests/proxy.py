"""A real HTTP proxy in front of an MLflow server, that starts to misbehave when it is told to."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

DROPPED = ("connection", "transfer-encoding", "keep-alive")


class Proxy(ThreadingHTTPServer):
    """`mode` is "pass", "error" (every answer is a 500), or "hang" (no answer, until the mode is another)."""

    daemon_threads = True

    def __init__(self, upstream: str):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urlsplit(upstream).netloc
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.mode = "pass"
        self.changed = threading.Condition()

    def become(self, mode: str) -> None:
        with self.changed:
            self.mode = mode
            self.changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    server: Proxy

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.server.changed:
            hung = self.server.mode == "hang"
            while self.server.mode == "hang":
                self.server.changed.wait()
        if hung:
            self.close_connection = True  # whoever asked has given up
            return
        if self.server.mode == "error":
            self.send_error(500, "out of order")
            return
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=60)
        upstream.request(self.command, self.path, body, dict(self.headers))
        answer = upstream.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in (*DROPPED, "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        upstream.close()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def proxy(upstream: str) -> Iterator[Proxy]:
    made = Proxy(upstream)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    try:
        yield made
    finally:
        made.become("error")
        made.shutdown()
        made.server_close()
