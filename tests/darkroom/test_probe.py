"""The probe of the image: healthy or not, and how long until no job is left."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from darkroom import probe
from tests.s3_server import free_ports


class _Worker(BaseHTTPRequestHandler):
    is_healthy = True
    left: list[int]

    def do_GET(self) -> None:
        sizes = {"generation_queue_size": self.left.pop(0) if len(self.left) > 1 else self.left[0], "engines": 1}
        self.send_response(200 if self.path == "/queue-info" or self.is_healthy else 503)
        self.end_headers()
        self.wfile.write(json.dumps(sizes).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def worker(monkeypatch: pytest.MonkeyPatch, left: tuple[int, ...] = (0,), *, is_healthy: bool = True) -> Iterator[None]:
    handler = type("Worker", (_Worker,), {"left": list(left), "is_healthy": is_healthy})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("WORKER_PORT", str(server.server_port))
        monkeypatch.setattr(probe, "POLL_SECONDS", 0.01)
        yield
        server.shutdown()


def test_a_worker_is_as_healthy_as_its_route_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(monkeypatch):
        assert probe.is_healthy()
    with worker(monkeypatch, is_healthy=False):
        assert not probe.is_healthy()


def test_waits_until_no_job_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(monkeypatch, (3, 2, 1, 0)):
        assert probe.becomes_idle(30)
    with worker(monkeypatch, (1,)):
        assert not probe.becomes_idle(0.05)


def test_a_worker_that_is_gone_has_no_job_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_PORT", str(free_ports(1)[0]))
    assert probe.becomes_idle(30)
    assert not probe.is_healthy()


@pytest.mark.parametrize(
    ("listens", "asked"), [("", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("10.0.0.5", "10.0.0.5")]
)
def test_asks_where_the_worker_listens(listens: str, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    urls: list[str] = []

    class Opener:
        def open(self, url: str, timeout: float) -> object:
            urls.append(url)
            raise OSError

    monkeypatch.setenv("WORKER_HOST", listens)
    monkeypatch.setenv("WORKER_PORT", "8123")
    monkeypatch.setattr(urllib.request, "build_opener", lambda *handlers: Opener())
    assert not probe.is_healthy()
    assert urls == [f"http://{asked}:8123/health"]
