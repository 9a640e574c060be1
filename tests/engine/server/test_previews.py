"""Images of unfinished latents over the WebSocket."""

from __future__ import annotations

import asyncio
import json
import struct
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from PIL import Image

from darkroom.engine.models.kinds.tiny_decoder import TinyDecoder
from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Socket
from darkroom.engine.settings import PreviewMethod
from tests.engine.server.conftest import Server, serving

NUMBER = Annotated[int, Socket("NUMBER")]


class RedGreenFormat:
    """A latent of two channels: how red and how green a cell is, on a blue ground."""

    latent_channels = 2
    taesd_decoder_name = "tiny_decoder"
    latent_rgb_factors = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))
    latent_rgb_factors_bias = (0.0, 0.0, 1.0)


@node("Paint", category="test")
def paint(context: NodeContext) -> NUMBER:
    if context.report_preview is not None:
        latent = torch.stack([torch.ones(16, 32), -torch.ones(16, 32)])[None]  # red, not green
        context.report_preview(latent, RedGreenFormat())
    context.report_progress(1, 1)
    return 1


@node("Photograph", category="test", is_output=True)
def photograph(context: NodeContext, *, number: NUMBER) -> NodeOutput:
    if context.report_preview is not None:
        context.report_preview(("PNG", Image.new("RGBA", (100, 50), "blue"), 20))
    context.report_progress(1, 1)
    return NodeOutput({"number": [number]})


PROMPT = {
    "1": {"class_type": "Paint", "inputs": {}},
    "2": {"class_type": "Photograph", "inputs": {"number": ["1", 0]}},
}


async def binary_messages(server: Server, extra_data: dict[str, Any] | None = None, **flags: Any) -> list[bytes]:
    socket = await server.client.ws_connect("/ws?clientId=me")
    if flags:
        await socket.send_json({"type": "feature_flags", "data": flags})
        await asyncio.sleep(0.05)
    await server.post("/prompt", prompt=PROMPT, client_id="me", extra_data=extra_data or {})
    found: list[bytes] = []
    async with asyncio.timeout(60):
        while True:
            message = await socket.receive()
            if isinstance(message.data, bytes):
                found.append(message.data)
            elif json.loads(message.data)["type"] == "execution_success":
                return found


@pytest.mark.parametrize("method", ["auto", "latent2rgb", "taesd"])
async def test_a_latent_is_shown_in_the_colours_of_its_own_format(tmp_path: Path, method: PreviewMethod) -> None:
    async with serving(tmp_path, paint, photograph, preview_method=method, preview_size_px=64) as server:
        painted, photographed = await binary_messages(server)
    assert struct.unpack(">II", painted[:8]) == (1, 1)
    image = Image.open(BytesIO(painted[8:]))
    assert (image.format, image.size) == ("JPEG", (64, 32))
    red, green, blue = image.getpixel((9, 9))  # type: ignore[misc]
    assert red > 250 and green < 5 and blue > 250
    assert struct.unpack(">II", photographed[:8]) == (1, 2)


async def test_a_small_decoder_draws_the_latent_where_there_is_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    decoder = TinyDecoder(latent_channels=2)
    (tmp_path / "models" / "vae_approx").mkdir(parents=True)
    torch.save(decoder.state_dict(), tmp_path / "models" / "vae_approx" / "tiny_decoder.pth")
    async with serving(tmp_path, paint, photograph, preview_method="taesd", preview_size_px=512) as server:
        painted, _ = await binary_messages(server)
    image = Image.open(BytesIO(painted[8:]))
    latent = torch.stack([torch.ones(16, 32), -torch.ones(16, 32)])[None]
    expected = ((decoder.decode(latent)[0].movedim(0, -1) + 1) / 2).clamp(0, 1) * 255
    assert (image.format, image.size) == ("JPEG", (512, 256))
    resized = torch.tensor(np.asarray(image)).float()[::2, ::2]
    assert (resized - expected[: resized.shape[0], : resized.shape[1]]).abs().mean() < 8


async def test_without_a_method_only_images_that_nodes_make_are_shown(tmp_path: Path) -> None:
    async with serving(tmp_path, paint, photograph) as server:
        (photographed,) = await binary_messages(server)
    image = Image.open(BytesIO(photographed[8:]))
    assert (image.format, image.size) == ("PNG", (20, 10))


async def test_a_client_that_asks_for_it_learns_which_node_a_preview_is_of(tmp_path: Path) -> None:
    async with serving(tmp_path, paint, photograph, preview_method="auto") as server:
        painted, _ = await binary_messages(server, supports_preview_metadata=True)
    kind, length = struct.unpack(">II", painted[:8])
    about = json.loads(painted[8 : 8 + length])
    assert kind == 4 and about["node_id"] == "1" and about["image_type"] == "image/jpeg"
    assert Image.open(BytesIO(painted[8 + length :])).format == "JPEG"


async def test_a_prompt_chooses_its_own_method(tmp_path: Path) -> None:
    async with serving(tmp_path, paint, photograph) as server:
        painted, _ = await binary_messages(server, {"preview_method": "auto"})
        assert Image.open(BytesIO(painted[8:])).format == "JPEG"
        refused = await server.client.post("/prompt", json={"prompt": PROMPT, "extra_data": {"preview_method": "best"}})
        assert (refused.status, (await refused.json())["error"]["type"]) == (400, "invalid_extra_data")


async def test_a_prompt_may_have_no_previews_of_latents(tmp_path: Path) -> None:
    async with serving(tmp_path, paint, photograph, preview_method="auto") as server:
        assert len(await binary_messages(server, {"preview_method": "none"})) == 1
