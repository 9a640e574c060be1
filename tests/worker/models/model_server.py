"""A server of model files: a hub, Civitai and a plain web server in one, which drops, stalls and lies when told to.

It notes every range that was asked for and every byte that it sent, so that a test sees what was downloaded twice.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

PIECE_BYTES = 64 * 1024


def checkpoint(num_bytes: int = 64, fill: int = 0) -> bytes:
    """A whole safetensors file with one tensor."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes([fill]) * num_bytes


@dataclass
class ModelServer:
    """`files` are contents by path. The other fields say how it behaves."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    has_ranges: bool = True
    has_length: bool = True
    published_sha256: str | None = None
    drop_after: dict[int, int] = field(default_factory=dict)
    """Bytes after which the answer with this number, counted from 1, breaks off."""
    stall_after: dict[int, int] = field(default_factory=dict)
    statuses: list[int] = field(default_factory=list)
    """Statuses of the next answers, before any good one."""
    token: str = ""
    """The bearer token without which the hub and Civitai answer nothing."""
    gate: str = ""
    """The hub's error code for a request without the token."""
    redirect: str = ""
    """The address to which every file redirects."""
    hold: threading.Event | None = None
    """Bodies wait for it after their first piece."""
    heads: list[dict[str, str]] = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)
    was_asked: threading.Event = field(default_factory=threading.Event)
    sent: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Ranges of a path that were sent, from a place to another (exclusive)."""
    num_answers: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def sha256(self, path: str) -> str:
        return hashlib.sha256(self.files[path]).hexdigest()

    def sent_bytes(self, path: str) -> int:
        with self.lock:
            return sum(stop - start for start, stop in self.sent.get(path, ()))

    def count(self, path: str, start: int, num_bytes: int) -> None:
        with self.lock:
            self.sent.setdefault(path, []).append((start, start + num_bytes))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        host: Any = self.server
        server: ModelServer = host.state
        path = unquote(urlsplit(self.path).path)
        with server.lock:
            server.heads.append(dict(self.headers))
            status = server.statuses.pop(0) if server.statuses else 0
        if status:
            self._refuse(status)
        elif path.startswith("/cdn/"):
            self._send(server, path.removeprefix("/cdn"))
        elif path.startswith("/api/v1/model-versions/"):
            self._describe(server, path)
        elif "/resolve/" in path or path.startswith("/api/download/"):
            self._redirect(server, path)
        elif server.redirect:
            self._head(302, {"Location": server.redirect, "Content-Length": "0"})
        else:
            self._send(server, path)

    def _redirect(self, server: ModelServer, path: str) -> None:
        if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
            self._refuse(403 if server.gate == "GatedRepo" else 401, {"X-Error-Code": server.gate})
        elif path not in server.files:
            self._refuse(404, {"X-Error-Code": "EntryNotFound"})
        else:
            tag = server.published_sha256 or server.sha256(path)
            headers = {"Location": f"{server.url}/cdn{path}", "X-Linked-ETag": f'"{tag}"', "Content-Length": "0"}
            self._head(302, headers)

    def _describe(self, server: ModelServer, path: str) -> None:
        version = path.rpartition("/")[2]
        digest = server.published_sha256 or server.sha256(f"/api/download/models/{version}")
        body = json.dumps({"files": [{"primary": True, "hashes": {"SHA256": digest.upper()}}]}).encode()
        self._head(200, {"Content-Length": str(len(body)), "Content-Type": "application/json"})
        self.wfile.write(body)

    def _send(self, server: ModelServer, path: str) -> None:
        content = server.files.get(path)
        if content is None:
            self._refuse(404)
            return
        asked = self.headers.get("Range")
        start, stop = 0, len(content)
        is_part = asked is not None and server.has_ranges
        if is_part:
            first, _, last = str(asked).removeprefix("bytes=").partition("-")
            start, stop = int(first), min(len(content), int(last) + 1)
        with server.lock:
            server.num_answers += 1
            number = server.num_answers
            server.asked.append((path, start))
        server.was_asked.set()
        headers = {"ETag": f'"{server.sha256(path)[:16]}"'}
        if is_part:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        if server.has_length:
            headers["Content-Length"] = str(stop - start)
        else:
            headers["Connection"] = "close"
        self._head(206 if is_part else 200, headers)
        limit = start + server.drop_after.get(number, stop)
        stall = start + server.stall_after.get(number, stop)
        at = start
        while at < stop and not server.stopped.is_set():
            if at >= limit:
                self.close_connection = True
                self.connection.close()
                return
            if at >= stall:
                server.stopped.wait(60)
                return
            piece = content[at : min(at + PIECE_BYTES, stop, max(limit, at + 1), max(stall, at + 1))]
            self.wfile.write(piece)
            server.count(path, at, len(piece))
            at += len(piece)
            if server.hold is not None:
                server.hold.wait(60)

    def _refuse(self, status: int, headers: dict[str, str] | None = None) -> None:
        self._head(status, {"Content-Length": "0", **(headers or {})})

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that left."""


@contextmanager
def model_server(**behaviour: Any) -> Iterator[ModelServer]:
    """Run a server on a free port of this machine."""
    server: Any = _QuietServer(("127.0.0.1", 0), _Handler)
    state = server.state = ModelServer(url=f"http://127.0.0.1:{server.server_port}", **behaviour)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield state
    finally:
        state.stopped.set()
        if state.hold is not None:
            state.hold.set()
        server.shutdown()
        server.server_close()
