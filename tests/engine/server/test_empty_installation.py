"""Files that a web interface of ComfyUI asks for and nobody has stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.server.conftest import Server, serving


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/settings", {}),
        ("/settings/Comfy.Locale", None),
        ("/users", {"storage": "server", "migrated": True}),
        ("/v2/userdata", []),
        ("/i18n", {}),
        ("/workflow_templates", {}),
        ("/internal/logs", ""),
        ("/global_subgraphs", {}),
        ("/global_subgraphs/a", None),
        ("/node_replacements", {}),
    ],
)
async def test_nothing_has_been_stored(server: Server, path: str, answer: object) -> None:
    assert await server.get(path) == answer
    assert await server.get(f"/api{path}") == answer


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/userdata", 400),
        ("/userdata?dir=workflows", 404),
        ("/userdata?dir=../..", 403),
        ("/userdata/workflows%2Fa.json", 404),
        ("/userdata/..%2F..%2Fa.json", 403),
        ("/v2/userdata?path=workflows", 404),
        ("/v2/userdata?path=../..", 400),
        ("/experiment/models/nothing", 404),
        ("/experiment/models/preview/checkpoints/0/a.safetensors", 404),
    ],
)
async def test_what_is_not_there_has_comfyuis_status(server: Server, path: str, status: int) -> None:
    assert (await server.client.get(path)).status == status


async def test_settings_are_taken_and_files_refused(server: Server) -> None:
    assert (await server.client.post("/settings", json={"a": 1})).status == 200
    assert (await server.client.post("/settings/a", json=1)).status == 200
    assert await server.get("/settings") == {}
    assert (await server.client.post("/userdata/a.json", data=b"{}")).status == 403
    assert (await server.client.post("/users", json={"username": "ann"})).status == 403


async def test_model_files_are_listed_with_size_and_time(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "loras" / "sub"
    folder.mkdir(parents=True)
    (folder / "a.safetensors").write_bytes(b"123")
    (entry,) = await server.get("/experiment/models/loras")
    assert (entry["name"], entry["pathIndex"], entry["size"]) == ("sub/a.safetensors", 0, 3)
    assert entry["modified"] > 0 and entry["created"] > 0
    assert str(tmp_path / "models" / "loras") in (await server.get("/internal/folder_paths"))["loras"]


async def test_embeddings_are_named_without_ending(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "embeddings"
    folder.mkdir(parents=True)
    (folder / "bad-hands.pt").write_bytes(b"")
    assert await server.get("/embeddings") == ["bad-hands"]


async def test_cors_headers_come_only_when_asked_for(tmp_path: Path) -> None:
    name = "Access-Control-Allow-Origin"
    async with serving(tmp_path / "closed") as closed:
        assert name not in (await closed.client.get("/features")).headers
    async with serving(tmp_path / "open", cors_origin="https://page.example") as opened:
        asked = await opened.client.options("/prompt", headers={"Origin": "https://page.example"})
        assert (asked.status, asked.headers[name]) == (200, "https://page.example")
        refused = await opened.client.get("/nothing", headers={"Origin": "https://page.example"})
        assert (refused.status, refused.headers[name]) == (404, "https://page.example")
