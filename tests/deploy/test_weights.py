"""The script that fetches weights takes only whole files with the right SHA-256, and fetches none twice."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from darkroom.worker.models.manifest import built_in_manifest
from tests.deploy.recipes import DEPLOY

WEIGHTS = b"weights" * 1000


class _Files(BaseHTTPRequestHandler):
    def __init__(self, asked: list[str], *connection: Any) -> None:
        self.asked = asked
        super().__init__(*connection)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(WEIGHTS)))
        self.end_headers()
        self.wfile.write(WEIGHTS)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def file_server() -> Iterator[tuple[str, list[str]]]:
    """Its address, and the paths that were asked for."""
    asked: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, asked)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def fetch(folder: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    (folder / "models.txt").write_text("# a remark\n\n" + "\n".join(lines))
    command = [sys.executable, str(DEPLOY / "weights" / "fetch.py"), str(folder / "models.txt"), str(folder / "models")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_file_is_fetched_once_and_checked(tmp_path: Path) -> None:
    right = hashlib.sha256(WEIGHTS).hexdigest()
    with file_server() as (url, asked):
        for _ in range(2):
            done = fetch(tmp_path, f"{right} checkpoints/own.safetensors {url}/own")
            assert done.returncode == 0, done.stderr
    assert asked == ["/own"]
    assert (tmp_path / "models/checkpoints/own.safetensors").read_bytes() == WEIGHTS


def test_another_file_or_a_place_outside_is_refused_and_the_rest_is_fetched(tmp_path: Path) -> None:
    right = hashlib.sha256(WEIGHTS).hexdigest()
    with file_server() as (url, _):
        lines = [f"{'0' * 64} vae/other.safetensors {url}/a", f"{right} ../out.safetensors {url}/b"]
        done = fetch(tmp_path, *lines, f"{right} loras/own.safetensors {url}/c")
    assert done.returncode == 1
    assert "SHA-256" in done.stderr and "outside" in done.stderr
    found = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(found) == ["models.txt", "models/loras/own.safetensors"]


def test_the_manifest_names_a_file_as_the_known_models_do() -> None:
    known = {entry.sha256: entry.place for entry in built_in_manifest().entries.values()}
    lines = (DEPLOY / "weights" / "models.txt").read_text(encoding="utf-8").splitlines()
    for line in (line for line in lines if line and not line.startswith("#")):
        sha256, place, url = line.split()
        assert known[sha256] == place and url.endswith(place.rpartition("/")[2])
