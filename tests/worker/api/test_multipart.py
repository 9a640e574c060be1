"""Files beside the JSON where the engine is somebody else's, and where not everybody may send any."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

import httpx

from darkroom.modifiers.example_image import EXAMPLE_IMAGE
from darkroom.worker.app.application import create_app
from darkroom.worker.inputs.fetch import decode_data_uri
from tests.fakes import FakeEngine, paint
from tests.worker.running_front import RunningFront, running_front

IMAGE = bytes(decode_data_uri(EXAMPLE_IMAGE))


def parts(workflow: dict[str, object]) -> list[tuple[str, tuple[str, bytes | str]]]:
    body = json.dumps({"input": {"workflow_json": workflow}})
    return [("photo", ("p.png", IMAGE)), ("input", ("body.json", body))]


async def test_a_stranger_is_refused_before_his_file_is_written(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, api_keys="hush") as front:
        outside = httpx.ASGITransport(create_app(front.front.services), client=("203.0.113.9", 1))
        async with httpx.AsyncClient(transport=outside, base_url="http://worker") as stranger:
            refused = await stranger.post("/generate/sync", files=parts(paint(image="photo")))
            assert refused.status_code == 401
            assert not list((tmp_path / "state").rglob("*.png")) + list((tmp_path / "state").rglob(".partial-*"))
            key = {"Authorization": "Bearer hush"}
            accepted = await stranger.post("/generate/sync", files=parts(paint(image="photo")), headers=key)
            assert accepted.status_code == 200, accepted.text
            (name,) = engine.uploaded  # somebody else's engine gets the file by its own way
            assert (engine.folder / name).read_bytes() == IMAGE


async def test_a_body_over_the_limit_is_413_and_leaves_nothing(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, max_request_bytes=len(IMAGE) + 100) as front:
        response = await front.http.post("/generate/sync", files=parts(paint(image="photo")))
        assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
        assert not list((tmp_path / "state").rglob(".partial-*"))


def zipped(compression: int = zipfile.ZIP_DEFLATED, /, **files: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def with_directory_of(num_bytes: int) -> bytes:
    """An archive whose end announces a list of files of this size."""
    archive = zipped(**{"photos/a.png": IMAGE})
    return archive[:-10] + struct.pack("<I", num_bytes) + archive[-6:]


async def sent(front: RunningFront, archive: bytes, image: str = "photos/a.png") -> httpx.Response:
    body = json.dumps({"workflow_json": paint(image=image)})
    return await front.http.post("/generate/sync", files=[("input", (None, body)), ("zip", ("in.zip", archive))])


async def test_the_files_of_an_archive_are_named_by_their_paths(front: RunningFront) -> None:
    archive = zipped(**{"photos/a.png": IMAGE, "__MACOSX/photos/a.png": b"x", "photos/.hidden": b"x"})
    response = await sent(front, archive)
    assert response.status_code == 200, response.text


async def test_an_archive_that_cannot_be_used_is_refused_and_leaves_nothing(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, max_request_bytes=200_000) as front:
        for archive, status in (
            (b"PK no archive", 422),
            (zipped(**{"photos/a.png": IMAGE})[:-30], 422),
            (zipped(**{"photos/a.png": bytes(10_000_000)}), 413),  # ten kilobytes on the wire
            (zipped(**{"photos/a.png": IMAGE, "unused.png": IMAGE}), 422),
            (zipped(zipfile.ZIP_BZIP2, **{"photos/a.png": bytes(50_000_000)}), 422),  # unpacked all at once
            (zipped(zipfile.ZIP_LZMA, **{"photos/a.png": IMAGE}), 422),
            (with_directory_of(2**21), 422),
            (zipped(**{f"{n}.png": b"" for n in range(70)}), 422),
        ):
            response = await sent(front, archive)
            assert response.status_code == status, response.text
        assert not list((tmp_path / "state").rglob(".partial-*"))
