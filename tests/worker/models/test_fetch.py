"""Model files: fetched from a hub that speaks the Hugging Face hub's protocol, listed and verified."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from modifiers.registry import build_registry
from worker.models import fetch
from worker.models.errors import DownloadBroke, HubUnreachable, ModelBroken, UnknownModel
from worker.models.fetch import fetch_model
from worker.models.files import checksum_path, find_problem, list_models
from worker.models.known import KnownModel, known_files, known_models, known_sets
from worker.models_command import commands

SMALL = KnownModel("A small model", "someone/small", "small.safetensors", "checkpoints")


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
    path = fetch_model(SMALL, tmp_path, said.append, endpoint=hub.url)
    assert path == tmp_path / "checkpoints" / SMALL.file_name
    assert path.read_bytes() == hub.content
    assert checksum_path(path).read_text().startswith(hub.sha256) and find_problem(path) is None
    assert "verified" in said[-1]


def test_a_download_that_breaks_off_goes_on_where_it_stopped(hub: Any, tmp_path: Path) -> None:
    hub.content = checkpoint(12_000_000)
    hub.sha256 = hashlib.sha256(hub.content).hexdigest()
    hub.cut_after = 11_000_000
    path = fetch_model(SMALL, tmp_path, lambda _: None, endpoint=hub.url)
    assert path.read_bytes() == hub.content
    first, again = [start for command, start in hub.asked if command == "GET"]
    assert first == 0 and again >= 10_000_000


def test_a_model_that_is_there_is_not_fetched_again(hub: Any, tmp_path: Path) -> None:
    fetch_model(SMALL, tmp_path, lambda _: None, endpoint=hub.url)
    hub.asked.clear()
    fetch_model(SMALL, tmp_path, lambda _: None, endpoint=hub.url)
    assert hub.asked == []


def test_content_that_is_not_what_the_hub_says_never_takes_its_place(hub: Any, tmp_path: Path) -> None:
    hub.sha256 = "0" * 64
    with pytest.raises((ModelBroken, DownloadBroke)):
        fetch_model(SMALL, tmp_path, lambda _: None, endpoint=hub.url)
    assert list_models(tmp_path) == []


def test_a_page_in_place_of_a_model_is_refused(hub: Any, tmp_path: Path) -> None:
    hub.content = b"<html>please log in</html>"
    hub.sha256 = hashlib.sha256(hub.content).hexdigest()
    with pytest.raises(ModelBroken, match="not a safetensors file"):
        fetch_model(SMALL, tmp_path, lambda _: None, endpoint=hub.url)
    assert list_models(tmp_path) == []


def test_a_hub_that_refuses_connections_is_out_of_reach(tmp_path: Path) -> None:
    with pytest.raises(HubUnreachable):
        fetch_model(SMALL, tmp_path, lambda _: None, endpoint="http://127.0.0.1:9")


def test_a_hub_that_never_answers_is_out_of_reach_after_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "REACH_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(HubUnreachable):
        fetch_model(SMALL, tmp_path, lambda _: None, endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_an_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(UnknownModel, match="got 'sdxl-refinr', expected .*sdxl-vae.*; did you mean sdxl-refiner"):
        known_files("sdxl-refinr")


@pytest.mark.parametrize("name", known_models())
def test_a_known_file_has_its_size_and_checksum_or_is_part_of_a_set(name: str) -> None:
    (known,) = known_files(name)
    assert known.label and known.repository.count("/") == 1 and known.file_name.endswith(".safetensors")
    assert known.folder in ("checkpoints", "vae", "diffusion_models", "text_encoders")
    if known.sha256 is None:
        assert known.size_bytes is None and any(name in item.files for item in known_sets().values())
    else:
        assert known.size_bytes is not None and known.size_bytes > 10**8
        assert len(known.sha256) == 64 and int(known.sha256, 16) > 0


@pytest.mark.parametrize("name", known_sets())
def test_a_model_of_several_files_has_all_that_draws(name: str) -> None:
    found = known_files(name)
    assert sorted(item.folder for item in found) == ["diffusion_models", "text_encoders", "vae"]
    assert known_sets()[name].label and "/" not in "".join(item.local_name for item in found)


def test_a_file_below_folders_of_its_repository_lies_in_its_own_folder(hub: Any, tmp_path: Path) -> None:
    known = replace(SMALL, file_name="split_files/vae/small.safetensors", folder="vae")
    path = fetch_model(known, tmp_path, lambda _: None, endpoint=hub.url)
    assert path == tmp_path / "vae" / "small.safetensors" and checksum_path(path).read_text().startswith(hub.sha256)


def test_the_checkpoint_that_modifiers_draw_with_is_a_known_model() -> None:
    own = build_registry().checkpoint_of("Text2Image", {})
    assert own in {known.file_name for known in known_models().values()}


@pytest.mark.parametrize("changes", [{"sha256": "0" * 64}, {"size_bytes": 5}])
def test_another_file_under_a_known_name_is_refused_before_it_is_downloaded(
    hub: Any, tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(ModelBroken, match="another file on the hub"):
        fetch_model(replace(SMALL, **changes), tmp_path, lambda _: None, endpoint=hub.url)
    assert all(command == "HEAD" for command, _ in hub.asked)


def test_a_file_with_the_published_size_and_checksum_is_taken(hub: Any, tmp_path: Path) -> None:
    known = replace(SMALL, sha256=hub.sha256, size_bytes=len(hub.content))
    assert fetch_model(known, tmp_path, lambda _: None, endpoint=hub.url).read_bytes() == hub.content


def test_lists_model_files_of_every_folder_and_nothing_else(tmp_path: Path) -> None:
    for name in ("checkpoints/a.safetensors", "loras/sub/b.safetensors", "vae/note.txt", ".downloads/c.safetensors"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(checkpoint())
    assert [model.name for model in list_models(tmp_path)] == ["checkpoints/a.safetensors", "loras/sub/b.safetensors"]


@pytest.mark.parametrize("content", [b"", b"short", checkpoint()[:-1], checkpoint() + b"x", b"\xff" * 100, b"{" * 40])
def test_a_damaged_file_is_reported(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    assert find_problem(path)


def test_a_changed_file_is_recognised_by_its_recorded_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(checkpoint())
    checksum_path(path).write_text(f"{'0' * 64}  a.safetensors\n")
    assert "SHA-256" in (find_problem(path) or "")


def test_the_commands_exit_codes_tell_what_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, at = CliRunner(), ["--base-directory", str(tmp_path)]
    monkeypatch.setattr(fetch, "ask_hub", _unreachable)
    assert run.invoke(commands, ["fetch", "sd15", *at]).exit_code == 3
    assert run.invoke(commands, ["fetch", "nope", *at]).exit_code == 2
    assert "sdxl-turbo" in run.invoke(commands, ["known"]).output
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.safetensors").write_bytes(checkpoint())
    assert "a.safetensors" in run.invoke(commands, ["list", *at]).output
    assert run.invoke(commands, ["verify", *at]).exit_code == 0
    (tmp_path / "models" / "a.safetensors").write_bytes(b"broken")
    assert run.invoke(commands, ["verify", *at]).exit_code == 4


def _unreachable(*_: object) -> None:
    raise HubUnreachable("The model hub cannot be reached")
