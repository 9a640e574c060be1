"""The holder of a port: a worker is told from another program, and the program is named."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from darkroom.host.port_holder import find_port_holder


@contextmanager
def answering(body: bytes) -> Iterator[int]:
    """A server that answers every GET with the body; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_what_answers_as_a_worker_is_one_and_its_process_is_named() -> None:
    with answering(json.dumps({"status": "alive"}).encode()) as port:
        holder = find_port_holder("127.0.0.1", port)
    assert (holder.is_worker, holder.process) == (True, os.getpid())
    assert str(holder) == f"a worker of Darkroom (process {os.getpid()})"


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"status": "ok"}', b"[1]", b"\xff\xfe"])
def test_any_other_server_is_another_program(body: bytes) -> None:
    with answering(body) as port:
        holder = find_port_holder("127.0.0.1", port)
    assert not holder.is_worker and str(os.getpid()) in str(holder)


def test_a_program_that_says_nothing_is_named_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        holder = find_port_holder("127.0.0.1", taken.getsockname()[1])
    assert (holder.is_worker, holder.process) == (False, os.getpid()) and holder.program


def test_a_program_whose_files_may_not_be_read_is_another_program(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        holder = find_port_holder("127.0.0.1", taken.getsockname()[1], proc=tmp_path)
    assert str(holder) == "another program"
