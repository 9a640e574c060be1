"""`/experiment/models/preview`: the image beside a model file."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from tests.engine.server.conftest import Server


def encoded() -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (40, 20), "red").save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("beside", ["a.png", "a.preview.png"])
async def test_an_image_beside_a_file_is_sent(server: Server, tmp_path: Path, beside: str) -> None:
    folder = tmp_path / "models" / "loras" / "sub"
    folder.mkdir(parents=True)
    (folder / "a.safetensors").write_bytes(b"")
    (folder / beside).write_bytes(encoded())
    reply = await server.client.get("/experiment/models/preview/loras/0/sub/a.safetensors")
    assert (reply.status, reply.content_type, Image.open(BytesIO(await reply.read())).size) == (
        200,
        "image/webp",
        (40, 20),
    )
    smaller = await server.client.get("/experiment/models/preview/loras/0/sub/a.safetensors?longer_side=10")
    assert Image.open(BytesIO(await smaller.read())).size == (10, 5)


@pytest.mark.parametrize(
    ("path", "status"),
    [("loras/9/a.safetensors", 404), ("loras/x/a.safetensors", 400), ("loras/0/", 400), ("none/0/a.safetensors", 404),
     ("loras/0/a.safetensors?longer_side=x", 400), ("loras/0/..%2F..%2Fa.safetensors", 403)],
)  # fmt: skip
async def test_other_names_are_refused_as_comfyui_does(server: Server, path: str, status: int) -> None:
    assert (await server.client.get(f"/experiment/models/preview/{path}")).status == status
