"""Inputs that lie in a bucket of a real store."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from darkroom.worker.guard.safe_address import AddressGuard, AddressRefused
from darkroom.worker.inputs.refusals import DownloadFailed, InputTooLarge
from darkroom.worker.inputs.s3_source import S3Address, S3Source, parse_s3_url
from darkroom.worker.s3.stores import S3Stores
from darkroom.worker.s3.targets import S3Target
from darkroom.worker.settings.outputs import InputLimits, S3Config
from tests.s3_server import S3Server, client

NO_STORE = S3Config(connect_timeout_seconds=20.0, connect_attempts=1, presign_seconds=600, key_template="{filename}")
LIMITS = InputLimits(max_bytes=1000, timeout_seconds=60.0)
KEY = "some folder/a?b=c ü.png"


@pytest.fixture(scope="module")
def store(s3_server: S3Server) -> S3Server:
    client(s3_server).put_object(Bucket=s3_server.bucket, Key=KEY, Body=b"picture")
    client(s3_server).put_object(Bucket=s3_server.bucket, Key="big", Body=bytes(1001))
    return s3_server


def asked(store: S3Server) -> dict[str, str]:
    return {
        "access_key_id": store.access_key_id,
        "secret_access_key": store.secret_access_key,
        "endpoint_url": store.endpoint_url,
    }


def source(*allowed: str, config: S3Config = NO_STORE) -> S3Source:
    return S3Source(S3Stores(AddressGuard(allowed)), config, LIMITS)


def target_of(source: S3Source, store: S3Server) -> S3Target:
    target = source.target(asked(store), store.bucket)
    assert target is not None
    return target


async def test_an_object_is_read_with_the_credentials_of_the_request(store: S3Server, tmp_path: Path) -> None:
    reader = source("127.0.0.1")
    found = await reader.download(target_of(reader, store), KEY, tmp_path / "x")
    assert found == (hashlib.sha256(b"picture").hexdigest(), 7) and (tmp_path / "x").read_bytes() == b"picture"


async def test_the_workers_bucket_is_read_with_the_workers_whose_endpoint_may_be_private(
    store: S3Server, tmp_path: Path
) -> None:
    own = {
        "access_key_id": SecretStr(store.access_key_id),
        "secret_access_key": SecretStr(store.secret_access_key),
        "endpoint_url": store.endpoint_url,
        "bucket_name": store.bucket,
    }
    reader = source(config=NO_STORE.model_copy(update=own))
    target = reader.target(None, store.bucket)
    assert target is not None and (await reader.download(target, KEY, tmp_path / "x"))[1] == 7


async def test_what_is_missing_or_too_large_or_refused_is_said_without_secrets(store: S3Server, tmp_path: Path) -> None:
    reader = source("127.0.0.1")
    target = target_of(reader, store)
    with pytest.raises(DownloadFailed, match="NoSuchKey"):
        await reader.download(target, "none", tmp_path / "x")
    with pytest.raises(InputTooLarge):
        await reader.download(target, "big", tmp_path / "y")
    wrong = replace(target, secret_access_key=SecretStr("planted-secret"))
    with pytest.raises(DownloadFailed, match="403") as caught:
        await reader.download(wrong, KEY, tmp_path / "z")
    assert "planted-secret" not in str(caught.value.as_json())


async def test_a_private_endpoint_of_a_request_is_refused(store: S3Server, tmp_path: Path) -> None:
    with pytest.raises(AddressRefused):
        reader = source()
        await reader.download(target_of(reader, store), KEY, tmp_path / "x")


def test_an_address_is_a_bucket_and_a_key_as_it_stands() -> None:
    assert parse_s3_url("s3://pictures/a b/c%20d?x.png") == S3Address("pictures", "a b/c%20d?x.png")
    for wrong in ("s3://", "s3://bucket", "s3://bucket/", "s3:///key", "s3://me@host:1/key"):
        with pytest.raises(ValueError, match="bucket/key"):
            parse_s3_url(wrong)


def test_without_credentials_there_is_no_target() -> None:
    assert source().target(None, "pictures") is None
