"""Uploads to real S3 servers, and what becomes of the ones that fail."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from moto.server import ThreadedMotoServer
from pydantic import SecretStr

from darkroom.worker.guard.safe_address import AddressGuard
from darkroom.worker.outputs.targets.s3 import S3Uploader
from darkroom.worker.outputs.targets.target import UploadFailed
from darkroom.worker.s3.stores import PART_BYTES, S3Stores
from darkroom.worker.s3.targets import S3Target, choose_target
from darkroom.worker.settings.outputs import S3Config
from tests.s3_server import S3Server, client
from tests.worker.running_front import until as wait_until

FROM_ENVIRONMENT = S3Config(
    access_key_id=SecretStr("env-key"),
    secret_access_key=SecretStr("env-secret"),
    bucket_name="env-bucket",
    endpoint_url="http://env.example",
    region="eu-central-1",
    connect_timeout_seconds=60.0,
    connect_attempts=3,
    presign_seconds=604800,
    key_template="{request_id}/{filename}",
)
NUM_CANCELLED_PARTS = 24  # far more than are sent before the test sees the upload
KEY_ID, SECRET, BUCKET = "test-key", "test-secret", "pictures"  # those of the real server

EMPTY = S3Config(region="eu-central-1")


@pytest.fixture(scope="module")
def seaweed_url(s3_server: S3Server) -> str:
    return s3_server.endpoint_url


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    plain_client(f"http://{host}:{port}").create_bucket(Bucket=BUCKET)
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["seaweed_url", "moto_url"])
def endpoint(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def plain_client(endpoint: str) -> Any:
    """A client of the tests' own, to look at what was stored."""
    return client(S3Server(endpoint, KEY_ID, SECRET, "us-east-1", BUCKET))


def uploader() -> S3Uploader:
    return S3Uploader(S3Stores(AddressGuard(["127.0.0.1"])))


async def upload(target: S3Target, path: Path, key: str, media_type: str, *, presign_seconds: int) -> str:
    until = asyncio.get_running_loop().time() + 60
    return await uploader().upload(target, path, key, media_type, presign_seconds=presign_seconds, until=until)


def target_at(endpoint: str, bucket: str = BUCKET, secret: str = SECRET) -> S3Target:
    asked = {
        "endpoint_url": endpoint,
        "access_key_id": KEY_ID,
        "secret_access_key": secret,
        "bucket_name": bucket,
        "connect_timeout": 2,
        "connect_attempts": 1,
    }
    target = choose_target(asked, EMPTY)
    assert target is not None
    return target


async def test_an_upload_can_be_fetched_by_its_link(endpoint: str, tmp_path: Path) -> None:
    path = tmp_path / "an image.png"
    path.write_bytes(b"\x89PNG data")
    link = await upload(target_at(endpoint), path, "job-1/an image+ü.png", "image/png", presign_seconds=604800)
    async with httpx.AsyncClient() as http:
        fetched = await http.get(link)
    assert (fetched.status_code, fetched.content) == (200, b"\x89PNG data")
    assert fetched.headers["content-type"] == "image/png"
    assert "X-Amz-Expires=604800" in link and SECRET not in link


async def test_a_large_file_goes_up_in_parts(endpoint: str, tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    path.write_bytes(bytes(PART_BYTES) + b"end")
    await upload(target_at(endpoint), path, "job-2/large.bin", "application/octet-stream", presign_seconds=60)
    head = plain_client(endpoint).head_object(Bucket=BUCKET, Key="job-2/large.bin")
    assert head["ContentLength"] == PART_BYTES + 3 and head["ETag"].strip('"').endswith("-2")


async def test_a_large_upload_that_is_cancelled_leaves_no_parts(moto_url: str, tmp_path: Path) -> None:
    path, key = tmp_path / "larger.bin", "job-3/larger.bin"
    with path.open("wb") as file:
        file.truncate(NUM_CANCELLED_PARTS * PART_BYTES)
    store = plain_client(moto_url)

    async def has_begun() -> bool:
        listed = await asyncio.to_thread(store.list_multipart_uploads, Bucket=BUCKET)
        return any(item["Key"] == key for item in listed.get("Uploads", ()))

    async def is_aborted() -> bool:
        return not await has_begun()

    ours = uploader()
    until = asyncio.get_running_loop().time() + 60
    sent = asyncio.create_task(
        ours.upload(target_at(moto_url), path, key, "video/mp4", presign_seconds=60, until=until)
    )
    await wait_until(has_begun)
    sent.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sent
    await wait_until(is_aborted)
    assert key not in [item["Key"] for item in store.list_objects_v2(Bucket=BUCKET).get("Contents", ())]


async def test_a_video_in_parts_comes_back_whole_and_in_any_piece(endpoint: str, tmp_path: Path) -> None:
    """Three parts of different bytes, sent at once: their order, their borders, the type, a piece across a border."""
    path, content = tmp_path / "clip.mp4", random.Random(5).randbytes(2 * PART_BYTES + 12345)
    path.write_bytes(content)
    link = await upload(target_at(endpoint), path, "job-3/clip.mp4", "video/mp4", presign_seconds=60)
    async with httpx.AsyncClient() as http:
        whole = await http.get(link)
        piece = await http.get(link, headers={"Range": f"bytes={PART_BYTES - 100}-{PART_BYTES + 99}"})
    assert (whole.headers["content-type"], whole.content == content) == ("video/mp4", True)
    assert (piece.status_code, piece.content) == (206, content[PART_BYTES - 100 : PART_BYTES + 100])


async def test_parts_of_an_upload_that_fails_are_taken_back(endpoint: str, tmp_path: Path) -> None:
    opened: list[str] = []

    class Shrinking(type(tmp_path)):  # type: ignore[misc]  # the class of paths of this system
        """A file that loses its end as soon as its third part is opened."""

        def open(self, *arguments: Any, **named: Any) -> Any:
            opened.append(self.name)
            if len(opened) == 3:
                os.truncate(self, 2 * PART_BYTES)
            return super().open(*arguments, **named)

    path, key, store = tmp_path / "clip.mp4", "job-4/clip.mp4", plain_client(endpoint)
    path.write_bytes(bytes(3 * PART_BYTES))
    with pytest.raises(UploadFailed, match="shorter than it was"):
        await upload(target_at(endpoint), Shrinking(path), key, "video/mp4", presign_seconds=60)

    async def nothing_is_left() -> bool:
        return not (await asyncio.to_thread(store.list_multipart_uploads, Bucket=BUCKET)).get("Uploads")

    await wait_until(nothing_is_left)
    assert len(opened) == 3 and store.list_objects_v2(Bucket=BUCKET, Prefix=key)["KeyCount"] == 0


async def test_a_missing_bucket_is_named_with_the_stores_code(moto_url: str, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"x")
    with pytest.raises(UploadFailed, match="NoSuchBucket") as caught:  # SeaweedFS would make the bucket
        await upload(target_at(moto_url, bucket="no-such-bucket-here"), path, "a.png", "image/png", presign_seconds=60)
    assert "no-such-bucket-here" in caught.value.message


async def test_a_wrong_secret_is_refused_and_not_repeated(seaweed_url: str, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"x")
    with pytest.raises(UploadFailed, match="403") as caught:
        await upload(target_at(seaweed_url, secret="planted-secret"), path, "a.png", "image/png", presign_seconds=60)
    assert "planted-secret" not in str(caught.value.as_json())


async def test_a_look_at_the_store_shows_what_is_wrong_with_it(seaweed_url: str, moto_url: str) -> None:
    look = uploader().find_problem
    assert (await look(target_at(seaweed_url)), await look(target_at(moto_url))) == (None, None)
    assert "SignatureDoesNotMatch" in str(await look(target_at(seaweed_url, secret="wrong")))
    assert "NoSuchBucket" in str(await look(target_at(moto_url, bucket="no-such-bucket-here")))
    assert (await look(target_at("http://127.0.0.1:9")) or "").startswith(
        "the store cannot be reached: the connection was refused"
    )


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "not a url", "https://["])
async def test_a_store_that_cannot_be_reached_is_an_upload_error(endpoint: str, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"x")
    with pytest.raises(UploadFailed):
        await upload(target_at(endpoint), path, "a.png", "image/png", presign_seconds=60)


async def test_a_file_that_is_gone_is_an_upload_error(tmp_path: Path) -> None:
    with pytest.raises(UploadFailed, match="the file is gone"):
        await upload(target_at("http://127.0.0.1:9"), tmp_path / "none.png", "a.png", "image/png", presign_seconds=60)


def test_each_empty_setting_of_a_request_falls_back_to_the_environments() -> None:
    target = choose_target({"bucket_name": "mine", "access_key_id": "", "region": None}, FROM_ENVIRONMENT)
    assert target is not None
    assert (target.bucket_name, target.access_key_id, target.region) == ("mine", "env-key", "eu-central-1")
    assert target.is_trusted


def test_an_endpoint_of_the_request_is_not_trusted() -> None:
    own = {"endpoint_url": "http://other.example", "access_key_id": "mine", "secret_access_key": "mine too"}
    target = choose_target(own, FROM_ENVIRONMENT)
    assert target is not None and not target.is_trusted


def test_the_operators_key_is_not_shown_to_another_endpoint() -> None:
    assert choose_target({"endpoint_url": "http://other.example"}, FROM_ENVIRONMENT) is None


def test_the_operators_key_reads_inputs_from_the_operators_bucket_alone() -> None:
    own_bucket = FROM_ENVIRONMENT.bucket_name
    assert choose_target(None, FROM_ENVIRONMENT, bucket=own_bucket) is not None
    assert choose_target(None, FROM_ENVIRONMENT, bucket="somebody-elses") is None


def test_without_key_secret_and_bucket_there_is_no_target() -> None:
    assert choose_target(None, EMPTY) is None
    assert choose_target({"access_key_id": "a", "secret_access_key": "b"}, EMPTY) is None
    assert choose_target({"bucket_name": "b"}, EMPTY) is None


def test_secrets_do_not_show_when_a_target_is_printed() -> None:
    assert "env-secret" not in repr(choose_target(None, FROM_ENVIRONMENT))


def test_the_addressing_style_is_the_requests_else_the_environments() -> None:
    config = FROM_ENVIRONMENT.model_copy(update={"addressing_style": "path"})
    styles = [choose_target(asked, config) for asked in (None, {"addressing_style": "virtual"})]
    assert [target and target.addressing_style for target in styles] == ["path", "virtual"]
