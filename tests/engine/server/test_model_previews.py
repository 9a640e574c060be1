"""`/experiment/models/preview`: images beside model files and within them."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image

from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.server.model_previews import preview_of
from tests.engine.server.conftest import Server


def encoded(size: tuple[int, int]) -> bytes:
    buffer = BytesIO()
    Image.new("RGB", size, "red").save(buffer, "PNG")
    return buffer.getvalue()


def size_of(image: bytes | None) -> tuple[int, int] | None:
    return None if image is None else Image.open(BytesIO(image)).size


@pytest.mark.parametrize("beside", ["a.png", "a.preview.png"])
async def test_an_image_beside_a_file_is_sent(server: Server, tmp_path: Path, beside: str) -> None:
    folder = tmp_path / "models" / "loras" / "sub"
    folder.mkdir(parents=True)
    (folder / "a.safetensors").write_bytes(b"")
    (folder / beside).write_bytes(encoded((40, 20)))
    reply = await server.client.get("/experiment/models/preview/loras/0/sub/a.safetensors")
    assert (reply.status, reply.content_type, size_of(await reply.read())) == (200, "image/webp", (40, 20))
    smaller = await server.client.get("/experiment/models/preview/loras/0/sub/a.safetensors?longer_side=10")
    assert size_of(await smaller.read()) == (10, 5)


@pytest.mark.parametrize(
    ("path", "status"),
    [("loras/9/a.safetensors", 404), ("loras/x/a.safetensors", 400), ("loras/0/", 400), ("none/0/a.safetensors", 404),
     ("loras/0/a.safetensors?longer_side=x", 400), ("loras/0/..%2F..%2Fa.safetensors", 403)],
)  # fmt: skip
async def test_other_names_are_refused_as_comfyui_does(server: Server, path: str, status: int) -> None:
    assert (await server.client.get(f"/experiment/models/preview/{path}")).status == status


@pytest.mark.parametrize(
    "metadata",
    [
        {"ssmd_cover_images": json.dumps([base64.b64encode(encoded((6, 6))).decode()])},
        {"modelspec.thumbnail": f"data:image/png;base64,{base64.b64encode(encoded((6, 6))).decode()}"},
        {"ssmd_cover_images": "no list", "modelspec.thumbnail": base64.b64encode(encoded((6, 6))).decode()},
    ],
)
def test_an_image_within_a_file_is_found(tmp_path: Path, metadata: dict[str, str]) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"a": torch.zeros(1)}, metadata)
    assert size_of(preview_of(tmp_path / "a.safetensors", tmp_path)) == (6, 6)


@pytest.mark.parametrize("metadata", [{}, {"ssmd_cover_images": "[1]"}, {"modelspec.thumbnail": "data:,%%"}])
def test_a_file_without_an_image_has_none(tmp_path: Path, metadata: dict[str, str]) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"a": torch.zeros(1)}, metadata)
    (tmp_path / "b.png").write_bytes(encoded((6, 6)))
    assert preview_of(tmp_path / "a.safetensors", tmp_path) is None
    assert preview_of(tmp_path / "gone" / "a.safetensors", tmp_path) is None


def test_links_do_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(encoded((6, 6)))
    (tmp_path / "loras").mkdir()
    (tmp_path / "loras" / "a.png").symlink_to(tmp_path / "secret.png")
    assert preview_of(tmp_path / "loras" / "a.safetensors", tmp_path / "loras") is None
