"""A real HTTP receiver for webhooks, and a host of input files."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True)
class Delivery:
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Receiver:
    """`deliveries` are the POSTs in their order; `files` are served by path; POSTs below /refuse-once fail the first
    time."""

    url: str = ""
    deliveries: queue.Queue[Delivery] = field(default_factory=queue.Queue)
    files: dict[str, bytes] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    def next(self, timeout_seconds: float = 30.0) -> Delivery:
        return self.deliveries.get(timeout=timeout_seconds)


@contextmanager
def running_receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # noqa: N802 - the name the base class calls
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.deliveries.put(Delivery(self.path, dict(self.headers.items()), body))
            is_refused = self.path.startswith("/refuse-once") and self.path not in receiver.refused
            if is_refused:
                receiver.refused.add(self.path)
            self.reply(503 if is_refused else 200, b"")

        def do_GET(self) -> None:  # noqa: N802
            content = receiver.files.get(self.path)
            self.reply(404 if content is None else 200, content or b"")

        def reply(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
