"""Model files: fetched from a hub that speaks the Hugging Face hub's protocol, listed and verified."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from worker import models
from worker.models import (
    KNOWN_MODELS,
    DownloadBroke,
    HubUnreachable,
    ModelBroken,
    UnknownModel,
    checksum_path,
    commands,
    fetch_model,
    find_problem,
    list_models,
)


def checkpoint(num_bytes: int = 64) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(range(256)) * (num_bytes // 256) + bytes(num_bytes % 256)


class Hub(BaseHTTPRequestHandler):
    """One file of the hub: its metadata by HEAD, its bytes by GET, in part where a range is asked for."""

    def do_HEAD(self) -> None:
        self._answer(send_body=False)

    def do_GET(self) -> None:
        self._answer(send_body=True)

    def _answer(self, send_body: bool) -> None:
        hub: Any = self.server
        asked = self.headers.get("Range", "bytes=0-")
        first = int(asked.removeprefix("bytes=").split("-")[0]) if "Range" in self.headers else 0
        body = hub.content[first:]
        hub.asked.append((self.command, first))
        self.send_response(206 if first else 200)
        self.send_header("ETag", f'"{hub.sha256}"')
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("X-Linked-Size", str(len(hub.content)))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(body)))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(hub.content) - 1}/{len(hub.content)}")
        self.end_headers()
        if send_body:
            self.wfile.write(body[: hub.cut_after])
            hub.cut_after = None

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def hub() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.content = checkpoint(3000)
    server.sha256 = hashlib.sha256(server.content).hexdigest()
    server.asked = []
    server.cut_after = None
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_known_model_is_fetched_verified_and_put_in_place(hub: Any, tmp_path: Path) -> None:
    said: list[str] = []
    path = fetch_model("sd15", tmp_path, said.append, endpoint=hub.url)
    assert path == tmp_path / "checkpoints" / KNOWN_MODELS["sd15"].file_name
    assert path.read_bytes() == hub.content
    assert checksum_path(path).read_text().startswith(hub.sha256) and find_problem(path) is None
    assert "verified" in said[-1]


def test_a_download_that_breaks_off_goes_on_where_it_stopped(hub: Any, tmp_path: Path) -> None:
    hub.content = checkpoint(12_000_000)
    hub.sha256 = hashlib.sha256(hub.content).hexdigest()
    hub.cut_after = 11_000_000
    path = fetch_model("sd15", tmp_path, lambda _: None, endpoint=hub.url)
    assert path.read_bytes() == hub.content
    first, again = [start for command, start in hub.asked if command == "GET"]
    assert first == 0 and again >= 10_000_000


def test_a_model_that_is_there_is_not_fetched_again(hub: Any, tmp_path: Path) -> None:
    fetch_model("sd15", tmp_path, lambda _: None, endpoint=hub.url)
    hub.asked.clear()
    fetch_model("sd15", tmp_path, lambda _: None, endpoint=hub.url)
    assert hub.asked == []


def test_content_that_is_not_what_the_hub_says_never_takes_its_place(hub: Any, tmp_path: Path) -> None:
    hub.sha256 = "0" * 64
    with pytest.raises((ModelBroken, DownloadBroke)):
        fetch_model("sd15", tmp_path, lambda _: None, endpoint=hub.url)
    assert list_models(tmp_path) == []


def test_a_page_in_place_of_a_model_is_refused(hub: Any, tmp_path: Path) -> None:
    hub.content = b"<html>please log in</html>"
    hub.sha256 = hashlib.sha256(hub.content).hexdigest()
    with pytest.raises(ModelBroken, match="not a safetensors file"):
        fetch_model("sd15", tmp_path, lambda _: None, endpoint=hub.url)
    assert list_models(tmp_path) == []


def test_a_hub_that_refuses_connections_is_out_of_reach(tmp_path: Path) -> None:
    with pytest.raises(HubUnreachable):
        fetch_model("sd15", tmp_path, lambda _: None, endpoint="http://127.0.0.1:9")


def test_a_hub_that_never_answers_is_out_of_reach_after_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "REACH_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(HubUnreachable):
        fetch_model("sd15", tmp_path, lambda _: None, endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_an_unknown_model_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match="sd15"):
        fetch_model("sd99", tmp_path, lambda _: None)


def test_lists_model_files_of_every_folder_and_nothing_else(tmp_path: Path) -> None:
    for name in ("checkpoints/a.safetensors", "loras/sub/b.safetensors", "vae/note.txt", ".downloads/c.safetensors"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(checkpoint())
    assert [model.name for model in list_models(tmp_path)] == ["checkpoints/a.safetensors", "loras/sub/b.safetensors"]


@pytest.mark.parametrize("content", [b"", b"short", checkpoint()[:-1], checkpoint() + b"x", b"\xff" * 100, b"{" * 40])
def test_a_damaged_file_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    assert find_problem(path)


def test_a_changed_file_is_told_by_its_recorded_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(checkpoint())
    checksum_path(path).write_text(f"{'0' * 64}  a.safetensors\n")
    assert "SHA-256" in (find_problem(path) or "")


def test_the_commands_exit_codes_tell_what_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, at = CliRunner(), ["--base-directory", str(tmp_path)]
    monkeypatch.setattr(models, "ask_hub", _unreachable)
    assert run.invoke(commands, ["fetch", "sd15", *at]).exit_code == 3
    assert run.invoke(commands, ["fetch", "nope", *at]).exit_code == 2
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.safetensors").write_bytes(checkpoint())
    assert "a.safetensors" in run.invoke(commands, ["list", *at]).output
    assert run.invoke(commands, ["verify", *at]).exit_code == 0
    (tmp_path / "models" / "a.safetensors").write_bytes(b"broken")
    assert run.invoke(commands, ["verify", *at]).exit_code == 4


def _unreachable(*_: object) -> None:
    raise HubUnreachable("The model hub cannot be reached")
