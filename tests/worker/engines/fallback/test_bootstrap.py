"""The start of a ComfyUI by any Python: its liveness, its limits, and the socket that leads to its port."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

from darkroom.worker.engines.fallback.command import BOOTSTRAP

SCRIPT = """
import http.server, json, resource, sys
limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_DATA)]

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        content = json.dumps({"arguments": sys.argv[1:], "path": sys.path[0], "limits": limits}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

host, port = (sys.argv[sys.argv.index(flag) + 1] for flag in ("--listen", "--port"))
http.server.ThreadingHTTPServer((host, int(port)), Handler).serve_forever()
"""


def asked(path: Path) -> dict[str, object]:
    """Return the answer of the script through the socket, once there is one."""
    for _ in range(600):
        answer = b""
        with contextlib.suppress(ConnectionError), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            while data := client.recv(4096):
                answer += data
        if answer:
            found: dict[str, object] = json.loads(answer.partition(b"\r\n\r\n")[2])
            return found
        time.sleep(0.05)
    raise TimeoutError


def test_a_script_is_reached_by_its_socket_and_dies_with_the_pipe(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(SCRIPT)
    read_end, write_end = os.pipe()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "engine.sock"))
        listening.listen()
        flags = ["--listen-fd", str(listening.fileno()), "--liveness-fd", str(read_end)]
        flags += ["--limit-file-bytes", str(2**20), "--limit-memory-bytes", str(2**32), "--lowvram"]
        process = subprocess.Popen(
            [sys.executable, BOOTSTRAP, script, *flags],
            pass_fds=(listening.fileno(), read_end),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_end)
        try:
            found = asked(tmp_path / "engine.sock")
            arguments = found["arguments"]
            assert isinstance(arguments, list) and arguments[:3] == ["--lowvram", "--listen", "127.0.0.1"]
            assert found["path"] == str(tmp_path) and found["limits"] == [2**20, 2**32]
            assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 2**20
        finally:
            os.close(write_end)
            assert process.wait(timeout=10) != 0
