"""Packs to sync: git repositories on disk, a registry over HTTP, wheels in a folder."""

from __future__ import annotations

import io
import json
import subprocess
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NODE = "NODE_CLASS_MAPPINGS = {}\n"


def write_repository(folder: Path, files: Mapping[str, str]) -> str:
    """Commit files to a git repository, made where there is none. Return the commit."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], [*who, "commit", "-q", "-m", "a version"]):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def write_manifest(base: Path, text: str) -> None:
    base.mkdir(parents=True, exist_ok=True)
    (base / "packs.toml").write_text(text)


@contextmanager
def serve_registry(packs: Mapping[str, Mapping[str, str]], version: str = "1.2.0") -> Iterator[str]:
    """Serve packs by id as ComfyUI's registry does, each in one version. Gives the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            parts = path.strip("/").split("/")
            if parts[0] == "nodes" and parts[1] in packs and query in ("", f"version={version}"):
                self._answer(json.dumps({"downloadUrl": f"{address}/zip/{parts[1]}", "version": version}).encode())
            elif parts[0] == "zip":
                archive = io.BytesIO()
                with zipfile.ZipFile(archive, "w") as packed:
                    for name, text in packs[parts[1]].items():
                        packed.writestr(name, text)
                self._answer(archive.getvalue())
            else:
                self.send_error(404)

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield address
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
