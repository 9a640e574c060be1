"""ComfyUI's database of files, which this engine does not keep: what clients are told of it."""

from __future__ import annotations

import pytest

from tests.engine.server.conftest import Server

ID = "11111111-1111-4111-8111-111111111111"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/assets"), ("POST", "/api/assets"), ("POST", "/api/assets/from-hash"), ("GET", "/api/tags"),
        ("GET", "/api/assets/tags/refine"), ("POST", "/api/assets/seed"), ("GET", "/api/assets/seed/status"),
        ("POST", "/api/assets/seed/cancel"), ("POST", "/api/assets/prune"), ("GET", f"/api/assets/{ID}"),
        ("PUT", f"/api/assets/{ID}"), ("DELETE", f"/api/assets/{ID}"), ("GET", f"/api/assets/{ID}/content"),
        ("POST", f"/api/assets/{ID}/tags"), ("DELETE", f"/api/assets/{ID}/tags"),
    ],
)  # fmt: skip
async def test_every_route_says_that_it_is_switched_off(server: Server, method: str, path: str) -> None:
    response = await server.client.request(method, path)
    assert response.status == 503
    error = (await response.json())["error"]
    assert error["code"] == "SERVICE_DISABLED" and error["message"].startswith("assets: ") and error["details"] == {}


async def test_a_hash_is_asked_for_without_a_body(server: Server) -> None:
    response = await server.client.head("/api/assets/hash/blake3:00")
    assert response.status == 503 and await response.read() == b""


async def test_other_paths_below_it_do_not_exist(server: Server) -> None:
    assert (await server.client.get("/api/assets/abc")).status == 404


async def test_the_feature_flags_have_it_switched_off_and_those_of_todays_comfyui(server: Server) -> None:
    assert await server.get("/features") == {
        "supports_preview_metadata": True,
        "supports_model_type_tags": True,
        "max_upload_size": round(server.settings.max_upload_mb * 1024 * 1024),
        "extension": {"manager": {"supports_v4": True}},
        "node_replacements": True,
        "assets": False,
    }
