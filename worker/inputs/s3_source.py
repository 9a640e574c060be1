"""Inputs in S3: `s3://bucket/key`, read with the request's credentials, or the worker's for certain prefixes.

Objects are streamed to disk within the same limits as other downloads. Errors of the store become DownloadFailed here.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from worker.inputs.refusals import DownloadFailed, InputTooLarge
from worker.s3.stores import S3Stores, StoreFailed
from worker.s3.targets import S3Target, choose_target, may_read
from worker.setting_slices import InputLimits, S3Config

BLOCK_BYTES = 4 * 1024 * 1024  # bytes hashed and written at a time


@dataclass(frozen=True, slots=True)
class S3Address:
    bucket: str
    key: str


def parse_s3_url(url: str) -> S3Address:
    """Parse an S3 URL. Raises ValueError.

    The key is used literally: nothing in it is decoded, and a `?` is part of it.
    """
    bucket, _, key = url[len("s3://") :].partition("/")
    if not bucket or not key or urlsplit(f"//{bucket}").hostname != bucket.lower():
        raise ValueError("is not s3://bucket/key")
    if {".", ".."} & set(key.split("/")):  # a store, or a proxy before it, may resolve them as folders
        raise ValueError("has a part . or .. in its key")
    return S3Address(bucket, key)


class S3Source:
    """Downloads of S3 objects. A cancelled download, or one past its deadline, closes its connection."""

    def __init__(self, stores: S3Stores, config: S3Config, limits: InputLimits) -> None:
        self._stores = stores
        self._config = config
        self._limits = limits

    def target(self, asked: Mapping[str, Any] | None, bucket: str) -> S3Target | None:
        """Return the credentials and place to read from.

        Returns None if the request has no credentials and the environment's are not for that bucket.
        """
        return choose_target(asked, self._config, bucket=bucket)

    def may_read(self, target: S3Target, key: str) -> bool:
        """Return True if a request may read an object with the target's credentials."""
        return may_read(target, key, self._config)

    async def download(self, target: S3Target, key: str, partial: Path) -> tuple[str, int]:
        """Download the object into a new file; return its SHA-256 and size.

        Raises DownloadFailed, InputTooLarge; AddressRefused and HostUnknown for an endpoint of the request.
        """
        shown = f"s3://{target.bucket_name}/{key}"
        seconds = min(target.connect_timeout_seconds, self._limits.timeout_seconds)
        patient = replace(target, connect_timeout_seconds=seconds)
        try:
            async with asyncio.timeout(self._limits.timeout_seconds), self._stores.read(patient, key) as found:
                if found.length is not None and found.length > self._limits.max_bytes:
                    raise self._too_large(shown)
                return await self._write(found.chunks, partial, shown)
        except TimeoutError:
            raise DownloadFailed(f"{shown} took over {self._limits.timeout_seconds:g} s") from None
        except StoreFailed as failed:
            raise DownloadFailed(f"{shown}: {failed.reason}", reason=failed.reason) from None

    async def _write(self, chunks: AsyncIterator[bytes], partial: Path, shown: str) -> tuple[str, int]:
        digest, size_bytes, held = hashlib.sha256(), 0, bytearray()
        with await asyncio.to_thread(partial.open, "xb") as file:

            def write(block: bytes | bytearray) -> None:
                digest.update(block)
                file.write(block)

            async for chunk in chunks:
                size_bytes += len(chunk)
                if size_bytes > self._limits.max_bytes:
                    raise self._too_large(shown)
                held += chunk
                if len(held) >= BLOCK_BYTES:
                    block, held = held, bytearray()
                    await asyncio.to_thread(write, block)
            await asyncio.to_thread(write, held)
        return digest.hexdigest(), size_bytes

    def _too_large(self, shown: str) -> InputTooLarge:
        return InputTooLarge(f"{shown} is over {self._limits.max_bytes} bytes", limit_bytes=self._limits.max_bytes)
