"""`/api/v1/families` tells a front what it needs to draw an image with each family."""

from __future__ import annotations

from darkroom.engine.families import registry
from darkroom.engine.models.random_weights import write_random_checkpoint
from tests.engine.server.conftest import Server


async def test_every_family_is_reported_with_its_defaults(server: Server) -> None:
    answer = await (await server.client.get("/api/v1/families")).json()
    assert [entry["name"] for entry in answer] == list(registry.family_names())
    for entry in answer:
        assert entry["label"] and entry["nodes"] and entry["scales"]
        default = entry["default"]
        assert default["width"] > 0 and default["height"] > 0 and default["steps"] > 0 and default["cost"] > 0


async def test_the_family_of_a_checkpoint_is_recognised_by_its_name(server: Server) -> None:
    family = registry.families()[-1]
    folder = server.settings.models_path / "checkpoints"
    write_random_checkpoint(folder / "a & b.safetensors", family=family)
    params = {"name": "a & b.safetensors"}
    answer = await (await server.client.get("/api/v1/checkpoints", params=params)).json()
    size_bytes = (folder / "a & b.safetensors").stat().st_size
    told = {"name": "a & b.safetensors", "size_bytes": size_bytes, "family": family.name, "variant": ""}
    (item,) = answer["checkpoints"]
    assert item == {**told, "scale": "small", "has_text": None, "num_weights": item["num_weights"]}
    assert item["num_weights"] > 1000
    all_of_them = await server.get("/api/v1/checkpoints")
    assert answer["checkpoints"][0] in all_of_them["checkpoints"]
    assert (await server.get("/api/v1/checkpoints?kind=diffusion_models")) == {"checkpoints": []}


async def test_another_kind_of_file_is_refused_by_name(server: Server) -> None:
    response = await server.client.get("/api/v1/checkpoints", params={"kind": "loras"})
    assert response.status == 400
    assert "got 'loras', expected checkpoints, diffusion_models" in (await response.json())["error"]
