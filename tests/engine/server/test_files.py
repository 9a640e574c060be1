"""Uploads, views, masks and previews over HTTP, and every way out of a folder that is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import FormData
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.engine.server.conftest import Server


def png(color: tuple[int, ...] = (255, 0, 0), size: tuple[int, int] = (8, 4), **texts: str) -> bytes:
    buffer, info = io.BytesIO(), PngInfo()
    for key, text in texts.items():
        info.add_text(key, text)
    Image.new("RGBA" if len(color) == 4 else "RGB", size, color).save(buffer, "PNG", pnginfo=info)
    return buffer.getvalue()


async def upload(server: Server, name: str, data: bytes, kind: str = "image", **fields: str) -> tuple[int, Any]:
    form = FormData(quote_fields=False)
    form.add_field("image", data, filename=name)
    for key, value in fields.items():
        form.add_field(key, value)
    response = await server.client.post(f"/upload/{kind}", data=form)
    return response.status, await response.json() if response.status == 200 else await response.text()


async def test_an_upload_can_be_viewed(server: Server) -> None:
    data = png()
    assert await upload(server, "a.png", data) == (200, {"name": "a.png", "subfolder": "", "type": "input"})
    response = await server.client.get("/view?filename=a.png&type=input")
    assert response.content_type == "image/png" and await response.read() == data
    assert response.headers["Content-Disposition"] == 'filename="a.png"'


async def test_the_same_content_is_stored_once_and_another_gets_a_number(server: Server) -> None:
    names = [
        (await upload(server, "a.png", data))[1]["name"] for data in (png(), png(), png((0, 0, 0)), png((0, 0, 0)))
    ]
    assert names == ["a.png", "a.png", "a (1).png", "a (1).png"]
    _, answer = await upload(server, "a.png", png((1, 2, 3)), overwrite="true")
    assert answer["name"] == "a.png"
    assert (server.settings.input_path / "a.png").read_bytes() == png((1, 2, 3))
    assert sorted(path.name for path in server.settings.input_path.iterdir()) == ["a (1).png", "a.png"]


async def test_uploads_go_to_sub_folders_and_other_kinds(server: Server) -> None:
    await upload(server, "a.png", png(), subfolder="deep/er", type="temp")
    assert (server.settings.temp_path / "deep" / "er" / "a.png").is_file()


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("../esc.png", {}),
        ("a.png", {"subfolder": "../.."}),
        ("a.png", {"subfolder": "/tmp"}),
        ("a.png", {"type": "models"}),
        ("", {}),
    ],
)
async def test_uploads_that_leave_their_folder_are_refused(server: Server, name: str, fields: dict[str, str]) -> None:
    status, _ = await upload(server, name, png(), **fields)
    assert status == 400
    assert not list(server.settings.base_path.rglob("*.png"))


@pytest.mark.parametrize("kind", ["image", "mask"])
@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary=x"])
async def test_a_form_that_cannot_be_read_is_the_callers_mistake(server: Server, kind: str, content_type: str) -> None:
    headers = {"Content-Type": content_type}
    response = await server.client.post(f"/upload/{kind}", data=b"no parts", headers=headers)
    assert response.status == 400 and (await response.json())["error"]["type"] == "invalid_form"


async def test_uploads_beyond_the_limit_are_refused(server: Server) -> None:
    status, _ = await upload(server, "a.png", b"x" * 600_000)
    assert status == 413


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 404),
        ("?filename=nope.png", 404),
        ("?filename=../x.png", 400),
        ("?filename=%2Fetc%2Fpasswd", 400),
        ("?filename=a.png&type=bad", 400),
        ("?filename=", 400),
        ("?filename=a%00.png", 400),
        ("?filename=a.png&subfolder=..%2F..", 403),
        ("?filename=a.png&subfolder=%2Fetc", 403),
    ],
)
async def test_views_that_leave_their_folder_are_refused(server: Server, query: str, status: int) -> None:
    assert (await server.client.get(f"/view{query}")).status == status


async def test_previews_and_channels_are_made_of_the_image(server: Server) -> None:
    await upload(server, "a.png", png((10, 20, 30, 40)))
    made = {}
    for wish in ("preview=webp;90", "preview=jpeg;50", "preview=gif", "channel=rgb", "channel=a"):
        response = await server.client.get(f"/view?filename=a.png&type=input&{wish}")
        made[wish] = (response.content_type, Image.open(io.BytesIO(await response.read())))
    assert [made[wish][0] for wish in made] == ["image/webp", "image/jpeg", "image/webp", "image/png", "image/png"]
    assert made["channel=rgb"][1].getpixel((0, 0)) == (10, 20, 30)
    assert made["channel=a"][1].getpixel((0, 0)) == (0, 0, 0, 40)


async def test_what_is_no_image_has_no_preview_and_pages_are_downloads(server: Server) -> None:
    (server.settings.output_path / "page.html").write_text("<script>")
    page = await server.client.get("/view?filename=page.html")
    assert page.content_type == "application/octet-stream"
    assert (await server.client.get("/view?filename=page.html&preview=webp")).status == 422


async def test_a_mask_becomes_the_alpha_of_its_original(server: Server) -> None:
    await upload(server, "photo.png", png((1, 2, 3), prompt="{}"))
    reference = json.dumps({"filename": "photo.png", "type": "input", "subfolder": ""})
    status, answer = await upload(server, "masked.png", png((0, 0, 0, 77)), "mask", original_ref=reference)
    assert (status, answer["name"]) == (200, "masked.png")
    with Image.open(server.settings.input_path / "masked.png") as masked:
        assert masked.getpixel((0, 0)) == (1, 2, 3, 77)
        assert masked.info == {"prompt": "{}"}


async def test_a_mask_without_a_good_original_is_refused(server: Server) -> None:
    assert (await upload(server, "m.png", png(), "mask"))[0] == 400
    assert (await upload(server, "m.png", png(), "mask", original_ref='{"filename": "../x.png"}'))[0] == 400
    assert (await upload(server, "m.png", png(), "mask", original_ref='{"filename": "none.png"}'))[0] == 404


async def test_metadata_of_model_files_is_shown(server: Server, tmp_path: Path) -> None:
    header = json.dumps({"__metadata__": {"title": "a"}}).encode()
    folder = tmp_path / "models" / "loras"
    folder.mkdir(parents=True)
    (folder / "l.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (folder / "cut.safetensors").write_bytes(b"\x10")
    assert await server.get("/view_metadata/loras?filename=l.safetensors") == {"title": "a"}
    for query in ("loras?filename=cut.safetensors", "loras?filename=none.safetensors", "nokind?filename=l.safetensors"):
        assert (await server.client.get(f"/view_metadata/{query}")).status == 404
