"""Model files from a real S3 store, in ranges."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.models.download.bucket_level import parse_level
from darkroom.worker.models.download.open_source import SourceAccess
from darkroom.worker.models.download.part_file import BLOCK_BYTES
from darkroom.worker.models.errors import ModelBroken, SourceMissing, SourceRefused
from darkroom.worker.settings.environment import load_settings
from darkroom.worker.settings.outputs import S3Config
from tests.s3_server import S3Server, client
from tests.worker.models.downloading import downloader_at, entry_of
from tests.worker.models.model_server import checkpoint

LARGE = checkpoint(2 * BLOCK_BYTES + 100)


def access_to(store: S3Server, secret: str = "") -> SourceAccess:
    config = S3Config(
        access_key_id=SecretStr(store.access_key_id),
        secret_access_key=SecretStr(secret or store.secret_access_key),
        endpoint_url=store.endpoint_url,
        region=store.region,
        connect_attempts=1,
    )
    return SourceAccess(s3=config, timeout_seconds=10)


async def test_an_object_is_fetched_with_the_operators_credentials(s3_server: S3Server, tmp_path: Path) -> None:
    client(s3_server).put_object(Bucket=s3_server.bucket, Key="models/small.safetensors", Body=LARGE)
    source = f"s3://{s3_server.bucket}/models/small.safetensors"
    async with downloader_at(tmp_path / "models", access_to(s3_server)) as downloader:
        assert (await downloader.fetch(entry_of(source))).read_bytes() == LARGE
        with pytest.raises(SourceMissing, match="404"):
            await downloader.fetch(entry_of(f"s3://{s3_server.bucket}/nothing.safetensors", name="n.safetensors"))
    async with downloader_at(tmp_path / "other", access_to(s3_server, "wrong")) as downloader:
        with pytest.raises(SourceRefused, match="expected S3 credentials"):
            await downloader.fetch(entry_of(source))


async def test_workers_fill_a_bucket_for_each_other(s3_server: S3Server, tmp_path: Path) -> None:
    level = parse_level(f"s3://{s3_server.bucket}/level")
    assert level is not None
    access = replace(access_to(s3_server), level=level)
    digest = hashlib.sha256(LARGE).hexdigest()
    source = tmp_path / "small.safetensors"
    source.write_bytes(LARGE)
    async with downloader_at(tmp_path / "a" / "models", access) as downloader:
        await downloader.fetch(entry_of(str(source)))  # its hash is learnt here
        await downloader.fill_level()
    source.unlink()
    async with downloader_at(tmp_path / "b" / "models", access) as downloader:
        seen: list[str] = []
        path = await downloader.fetch(
            entry_of(str(source), sha256=digest), on_progress=lambda progress: seen.append(progress.source)
        )
        assert path.read_bytes() == LARGE
        assert level.has(seen[-1])
    # A file that the bucket lacks comes from its other sources; what was put there under a wrong hash is refused.
    wrong = "0" * 64
    client(s3_server).put_object(Bucket=s3_server.bucket, Key=level.source_of(wrong).key, Body=LARGE)
    source.write_bytes(LARGE)
    async with downloader_at(tmp_path / "c" / "models", access) as downloader:
        with pytest.raises(ModelBroken, match="wrong content"):
            await downloader.fetch(entry_of(str(source), sha256=wrong))


@pytest.mark.parametrize("text", ["bucket/folder", "s3://", "s3://b ucket/x", "s3://bucket/../x", "https://bucket/x"])
def test_what_is_no_folder_of_a_bucket_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected s3://bucket/folder"):
        parse_level(text)
    with pytest.raises(SettingsInvalid, match="MODEL_S3_LEVEL"):
        load_settings(env_file=None, MODEL_S3_LEVEL=text)
