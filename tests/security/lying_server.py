"""A server that speaks HTTP as badly as a test wants: raw sockets, each connection on a thread of its own.

`sent_bytes` counts what clients have taken, socket buffers included, so a test sees how far a client has read without
looking at anybody's memory.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

MIB = 1024 * 1024
BUFFERED_BYTES = 12 * MIB
"""More than the sockets of both sides hold, so more than a client that stopped reading can have taken."""
GIVES_UP_AFTER_BYTES = 64 * MIB
HEAD_END = b"\r\n\r\n"

Script = Callable[["Wire"], None]


@dataclass
class Wire:
    """One connection after its request has been read; `head` is the request's, `body` as much as was asked for."""

    connection: socket.socket
    server: LyingServer
    head: bytes
    body: bytes

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)
        self.server.count(len(data))

    def pause(self, seconds: float) -> None:
        self.server.stopped.wait(seconds)


@dataclass
class LyingServer:
    """`scripts` maps a method and path prefix, as in `GET /a`, to what is sent; the longest prefix that fits wins."""

    scripts: dict[str, Script] = field(default_factory=dict)
    heads: list[bytes] = field(default_factory=list)
    sent_bytes: int = 0
    received_bytes: int = 0
    num_open: int = 0
    url: str = ""
    stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, num_bytes: int) -> None:
        with self._lock:
            self.sent_bytes += num_bytes

    def wait_until_closed(self, seconds: float = 60) -> bool:
        """True once no client holds a connection."""
        deadline = time.monotonic() + seconds
        while self.num_open and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.num_open == 0

    def serve(self, connection: socket.socket) -> None:
        with self._lock:
            self.num_open += 1
        try:
            with connection, contextlib.suppress(OSError):
                self._answer(connection)
        finally:
            with self._lock:
                self.num_open -= 1

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(60)
        data = b""
        while HEAD_END not in data:
            if not (more := connection.recv(65536)):
                return
            data += more
        head, _, body = data.partition(HEAD_END)
        self.heads.append(head)
        method, path, _ = head.split(b"\r\n")[0].decode().split(" ", 2)
        script = self._script(f"{method} {path}")
        if not getattr(script, "reads_body_itself", False):
            body = self._rest(connection, head, body)
        script(Wire(connection, self, head, body))

    def _rest(self, connection: socket.socket, head: bytes, body: bytes) -> bytes:
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        parts, size = [body], len(body)
        while size < length and (more := connection.recv(65536)):
            parts.append(more)
            size += len(more)
        with self._lock:
            self.received_bytes += size
        return b"".join(parts)

    def _script(self, asked: str) -> Script:
        fitting = [prefix for prefix in self.scripts if asked.startswith(prefix)]
        return self.scripts[max(fitting, key=len)] if fitting else answer(404)


def answer(status: int = 200, body: bytes = b"", **headers: str) -> Script:
    """A whole answer with its length."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in named.items())]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "Connection: close", "", ""]).encode()

    def script(wire: Wire) -> None:
        wire.send(head + body)

    return script


def answer_without_length(body: bytes, status: int = 200) -> Script:
    """An answer whose end is that of its connection."""

    def script(wire: Wire) -> None:
        wire.send(f"HTTP/1.1 {status} X\r\nConnection: close\r\n\r\n".encode() + body)

    return script


def endless(status: int = 200, **headers: str) -> Script:
    """An answer in chunks that does not end, until the client has taken far too much."""
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} X\r\n{named}Transfer-Encoding: chunked\r\n\r\n".encode()
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"

    def script(wire: Wire) -> None:
        wire.send(head)
        while wire.server.sent_bytes < GIVES_UP_AFTER_BYTES and not wire.server.stopped.is_set():
            wire.send(chunk)

    return script


def dribbling_head(wire: Wire) -> None:
    """Send a head that never ends, a letter at a time, so that no single read takes long."""
    wire.send(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not wire.server.stopped.is_set():
        wire.send(b"a")
        wire.pause(0.05)


def never_reading(wire: Wire) -> None:
    """Leave the request's body unread and answer nothing until the client closes."""
    wire.connection.settimeout(None)
    while not wire.server.stopped.is_set():
        wire.pause(0.05)
        # A byte now and then is progress, so that no single write takes long.
        if not wire.connection.recv(64):
            return


never_reading.reads_body_itself = True  # type: ignore[attr-defined]


@contextlib.contextmanager
def running_lying_server(scripts: dict[str, Script] | None = None) -> Iterator[LyingServer]:
    """Serve on a free port of this machine until the block ends."""
    server = LyingServer(dict(scripts or {}))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=server.serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield server
        finally:
            server.stopped.set()
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
