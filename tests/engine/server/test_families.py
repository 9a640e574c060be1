"""`/api/v1/families` tells a front what it needs to draw a picture with each family."""

from __future__ import annotations

from engine.families import registry
from tests.engine.server.conftest import Server


async def test_every_family_is_told_with_its_defaults(server: Server) -> None:
    answer = await (await server.client.get("/api/v1/families")).json()
    assert [entry["name"] for entry in answer] == list(registry.family_names())
    for entry in answer:
        assert entry["label"] and entry["nodes"] and entry["scales"]
        default = entry["default"]
        assert default["width"] > 0 and default["height"] > 0 and default["steps"] > 0 and default["cost"] > 0
