"""Model files from a real S3 store, in ranges."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.s3_server import S3Server, client
from tests.worker.models.downloading import downloader_at, entry_of
from tests.worker.models.model_server import checkpoint
from worker.models.download.open_source import SourceAccess
from worker.models.download.part_file import BLOCK_BYTES
from worker.models.errors import SourceMissing, SourceRefused
from worker.settings.outputs import S3Config

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
