"""Inputs in S3: `s3://bucket/key`, read with the request's credentials, or the worker's for certain prefixes.

Objects are streamed to disk within the same limits as other downloads. Errors of the store become DownloadFailed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from darkroom.worker.inputs.partial_file import too_large, write_partial
from darkroom.worker.inputs.refusals import DownloadFailed
from darkroom.worker.s3.stores import S3Stores, StoreFailed
from darkroom.worker.s3.targets import S3Target, choose_target, may_read
from darkroom.worker.settings.outputs import InputLimits, S3Config


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

    def target(self, asked: Mapping[str, object] | None, bucket: str) -> S3Target | None:
        """Return the credentials and place to read from.

        Returns None if the request has no credentials and the environment's are not for that bucket.
        """
        return choose_target(asked, self._config, bucket=bucket)

    def may_read(self, target: S3Target, key: str) -> bool:
        """Return True if a request may read an object with the target's credentials."""
        return may_read(target, key, self._config)

    async def download(
        self, target: S3Target, key: str, partial: Path, check_room: Callable[[], None] = lambda: None
    ) -> tuple[str, int]:
        """Download the object into a new file; return its SHA-256 and size. `check_room` is called as it grows.

        Raises DownloadFailed, InputTooLarge; AddressRefused and HostUnknown for an endpoint of the request.
        """
        shown = f"s3://{target.bucket_name}/{key}"
        seconds = min(target.connect_timeout_seconds, self._limits.download_seconds)
        patient = replace(target, connect_timeout_seconds=seconds)
        try:
            async with asyncio.timeout(self._limits.download_seconds), self._stores.read(patient, key) as found:
                if found.length is not None and found.length > self._limits.max_bytes:
                    raise too_large(shown, self._limits.max_bytes)
                return await write_partial(
                    found.chunks, partial, max_bytes=self._limits.max_bytes, shown=shown, check_room=check_room
                )
        except TimeoutError:
            raise DownloadFailed(f"{shown} took over {self._limits.download_seconds:g} s") from None
        except StoreFailed as failed:
            raise DownloadFailed(f"{shown}: {failed.reason}", reason=failed.reason) from None
