"""A store that answers without end, or never, costs the front neither memory nor time; a cancel leaves it at once."""

from __future__ import annotations

import asyncio
import gzip
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from darkroom.worker.guard.safe_address import AddressGuard
from darkroom.worker.inputs.refusals import DownloadFailed, InputTooLarge
from darkroom.worker.inputs.s3_source import S3Source
from darkroom.worker.outputs.targets.s3 import S3Uploader
from darkroom.worker.outputs.targets.target import UploadFailed
from darkroom.worker.s3.stores import PART_BYTES, S3Stores
from darkroom.worker.s3.targets import S3Target
from darkroom.worker.settings.outputs import InputLimits, S3Config
from tests.fakes import FakeEngine, draw, paint
from tests.security.lying_server import (
    BUFFERED_BYTES,
    MIB,
    LyingServer,
    Script,
    Wire,
    answer,
    answer_without_length,
    dribbling_head,
    endless,
    never_reading,
)
from tests.worker.inputs.test_fetch import image
from tests.worker.running_front import running_front
from tests.worker.running_front import until as wait_until

NO_STORE = S3Config(connect_timeout_seconds=2.0, connect_attempts=1, presign_seconds=600, key_template="{filename}")
LARGE_BYTES = PART_BYTES + MIB
LATE_SECONDS = (1.0, 4.0, 16.0)
"""Limits to try in turn: a busy machine may not even have sent the request within the first."""
SOON_SECONDS = 60.0


def target_at(liar: LyingServer, *, is_trusted: bool = False) -> S3Target:
    return S3Target("k", SecretStr("s"), "b", liar.url, "us-east-1", 5.0, 1, "path", is_trusted, False)


async def warm_stores(target: S3Target) -> S3Stores:
    """Ready to send: importing what signs takes longer than some of the deadlines here."""
    stores = S3Stores(AddressGuard(["127.0.0.1"]))
    await stores.link(target, "warm", 60)
    return stores


async def upload(liar: LyingServer, path: Path, *, seconds: float = SOON_SECONDS, is_trusted: bool = False) -> str:
    target = target_at(liar, is_trusted=is_trusted)
    stores = await warm_stores(target)
    until = asyncio.get_running_loop().time() + seconds
    try:
        return await S3Uploader(stores).upload(target, path, "k/a", "image/png", presign_seconds=60, until=until)
    finally:
        await stores.close()


async def download(liar: LyingServer, folder: Path, *, seconds: float = SOON_SECONDS) -> Path:
    target = replace(target_at(liar), connect_timeout_seconds=min(5.0, seconds))
    stores = await warm_stores(target)
    source = S3Source(stores, NO_STORE, InputLimits(max_bytes=MIB, timeout_seconds=seconds))
    try:
        await source.download(target, "a.png", folder / "got")
        return folder / "got"
    finally:
        await stores.close()


def file_of(folder: Path, num_bytes: int = 100) -> Path:
    path = folder / "a.png"
    path.write_bytes(bytes(num_bytes))
    return path


async def closed(liar: LyingServer) -> bool:
    return await asyncio.to_thread(liar.wait_until_closed)


@pytest.mark.parametrize("is_trusted", [True, False])
@pytest.mark.parametrize("status", [200, 403])
async def test_an_endless_answer_to_an_upload_is_read_up_to_a_bound(
    liar: LyingServer, tmp_path: Path, status: int, is_trusted: bool
) -> None:
    liar.scripts["PUT /"] = endless(status)
    with pytest.raises(UploadFailed):
        await upload(liar, file_of(tmp_path), is_trusted=is_trusted)
    assert await closed(liar) and liar.sent_bytes < BUFFERED_BYTES


async def test_an_endless_refusal_of_a_download_is_read_up_to_a_bound(liar: LyingServer, tmp_path: Path) -> None:
    liar.scripts["GET /"] = endless(403)
    with pytest.raises(DownloadFailed, match="403"):
        await download(liar, tmp_path)
    assert await closed(liar) and liar.sent_bytes < BUFFERED_BYTES


@pytest.mark.parametrize("script", [endless(), answer(200, bytes(2 * MIB)), answer_without_length(bytes(2 * MIB))])
async def test_an_endless_object_is_read_up_to_the_limit_of_inputs(
    liar: LyingServer, tmp_path: Path, script: Script
) -> None:
    liar.scripts["GET /"] = script
    with pytest.raises(InputTooLarge):
        await download(liar, tmp_path)
    assert await closed(liar) and liar.sent_bytes < BUFFERED_BYTES


async def test_an_object_without_a_length_is_read(liar: LyingServer, tmp_path: Path) -> None:
    liar.scripts["GET /"] = answer_without_length(b"picture")
    assert (await download(liar, tmp_path)).read_bytes() == b"picture"


async def test_an_encoded_object_is_refused(liar: LyingServer, tmp_path: Path) -> None:
    liar.scripts["GET /"] = answer(200, gzip.compress(b"picture"), Content_Encoding="gzip, gzip")
    with pytest.raises(DownloadFailed, match="Content-Encoding"):
        await download(liar, tmp_path)


async def test_what_some_stores_repeat_of_an_upload_is_no_encoding(liar: LyingServer, tmp_path: Path) -> None:
    liar.scripts["GET /"] = answer(200, b"picture", Content_Encoding="aws-chunked")
    assert (await download(liar, tmp_path)).read_bytes() == b"picture"


async def test_the_words_of_a_store_are_not_repeated(liar: LyingServer, tmp_path: Path) -> None:
    said = b"<Error><Code>planted secret words</Code><Message>planted</Message></Error>"
    liar.scripts["PUT /"] = answer(403, said)
    with pytest.raises(UploadFailed, match=r"refused \(403\)") as caught:
        await upload(liar, file_of(tmp_path))
    assert "planted" not in str(caught.value.as_json())


@pytest.mark.parametrize("num_bytes", [100, LARGE_BYTES])
@pytest.mark.parametrize("script", [dribbling_head, never_reading])
async def test_an_upload_that_is_late_ends_with_its_connections(
    liar: LyingServer, tmp_path: Path, script: Script, num_bytes: int
) -> None:
    liar.scripts["PUT /"] = liar.scripts["POST /"] = script
    for seconds in LATE_SECONDS:
        with pytest.raises(UploadFailed, match="took longer than"):
            await upload(liar, file_of(tmp_path, num_bytes), seconds=seconds)
        if liar.heads:
            break
    assert liar.heads and await closed(liar)


async def test_a_part_that_is_late_ends_the_upload_and_takes_back_the_others(liar: LyingServer, tmp_path: Path) -> None:
    liar.scripts["POST /"] = answer(200, b"<UploadId>u&amp;1</UploadId>")
    liar.scripts["PUT /"] = dribbling_head
    target, path = target_at(liar), file_of(tmp_path, LARGE_BYTES)
    stores = await warm_stores(target)
    for seconds in LATE_SECONDS:
        until = asyncio.get_running_loop().time() + seconds
        with pytest.raises(UploadFailed):
            await S3Uploader(stores).upload(target, path, "k", "image/png", presign_seconds=60, until=until)
        if any(head.startswith(b"PUT ") for head in liar.heads):
            break

    async def is_aborted() -> bool:
        return any(head.startswith(b"DELETE ") and b"uploadId=u%261" in head for head in liar.heads)

    await wait_until(is_aborted)
    await stores.close()
    assert await closed(liar)


async def test_an_upload_that_a_store_only_pretends_to_take_is_an_error(liar: LyingServer, tmp_path: Path) -> None:
    def finish(wire: Wire) -> None:
        told = b"<Error><Code>InternalError</Code></Error>"
        answer(200, told if b"uploadId" in wire.head.split(b"\r\n")[0] else b"<UploadId>u</UploadId>")(wire)

    liar.scripts |= {"POST /": finish, "PUT /": answer(200, ETag='"tag"'), "DELETE /": answer(204)}
    with pytest.raises(UploadFailed, match="InternalError"):
        await upload(liar, file_of(tmp_path, LARGE_BYTES))
    assert liar.received_bytes > LARGE_BYTES


@pytest.mark.parametrize("script", [dribbling_head, never_reading])
async def test_a_download_that_is_late_ends_with_its_connection(
    liar: LyingServer, tmp_path: Path, script: Script
) -> None:
    liar.scripts["GET /"] = script
    for seconds in LATE_SECONDS:
        with pytest.raises(DownloadFailed, match="took over"):
            await download(liar, tmp_path, seconds=seconds)
        if liar.heads:
            break
    assert liar.heads and await closed(liar)


def asked_of(liar: LyingServer) -> dict[str, Any]:
    return {"endpoint_url": liar.url, "access_key_id": "k", "secret_access_key": "s", "bucket_name": "b"}


async def test_a_cancel_ends_a_running_upload_at_once(liar: LyingServer, tmp_path: Path, engine: FakeEngine) -> None:
    liar.scripts["PUT /"] = dribbling_head
    async with running_front(tmp_path, engine, allowed_private_hosts=("127.0.0.1",)) as front:
        body = {"input": {"workflow_json": draw("x"), "request_id": "up", "s3": asked_of(liar)}}
        assert (await front.http.post("/generate", json=body)).status_code == 202

        async def is_uploading() -> bool:
            return bool(liar.heads)

        await wait_until(is_uploading)
        began = time.monotonic()
        await front.http.post("/cancel/up")
        await front.until("up", "cancelled")
        assert await closed(liar) and time.monotonic() - began < SOON_SECONDS


async def test_a_late_upload_is_an_upload_error_of_a_job_that_is_completed(
    liar: LyingServer, tmp_path: Path, engine: FakeEngine
) -> None:
    liar.scripts["PUT /"] = dribbling_head
    settings: dict[str, Any] = {
        "allowed_private_hosts": ("127.0.0.1",),
        "constants": {"s3": {"upload_timeout_seconds": LATE_SECONDS[0]}},
    }
    async with running_front(tmp_path, engine, **settings) as front:
        result = (await front.sync(draw("x"), s3=asked_of(liar))).json()
    assert result["status"] == "completed" and "took longer than" in result["output"][0]["upload_error"]
    assert result["output"][0]["url"] and await closed(liar)


async def test_an_input_of_a_lying_store_is_refused_by_its_job(
    liar: LyingServer, tmp_path: Path, engine: FakeEngine
) -> None:
    liar.scripts["GET /b/a.png"] = endless(200)
    liar.scripts["GET /b/good.png"] = answer_without_length(image())
    settings: dict[str, Any] = {"allowed_private_hosts": ("127.0.0.1",), "input_max_bytes": MIB}
    async with running_front(tmp_path, engine, **settings) as front:
        refused = await front.sync(paint("x", "s3://b/a.png"), s3=asked_of(liar))
        good = await front.sync(paint("x", "s3://b/good.png"), s3=asked_of(liar) | {"bucket_name": ""})
    assert (refused.status_code, good.status_code) == (422, 200), (refused.json(), good.json())
    assert await closed(liar) and liar.sent_bytes < BUFFERED_BYTES
