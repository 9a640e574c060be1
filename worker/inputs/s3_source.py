"""Inputs in a bucket: `s3://bucket/key`, read with the request's credentials, or the worker's in its own bucket.

Streamed to disk within the limits of every download; boto's errors become DownloadFailed here, by type.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from worker.inputs.refusals import DownloadFailed, InputTooLarge
from worker.own_thread import in_own_thread
from worker.s3_clients import S3Clients, S3Target, choose_target, store_reason
from worker.setting_slices import InputLimits, S3Config

CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class S3Address:
    bucket: str
    key: str


def parse_s3_url(url: str) -> S3Address:
    """Raises ValueError. The key is taken as it stands: nothing in it is decoded, a `?` is a letter of it."""
    bucket, _, key = url[len("s3://") :].partition("/")
    if not bucket or not key or urlsplit(f"//{bucket}").hostname != bucket.lower():
        raise ValueError("is not s3://bucket/key")
    return S3Address(bucket, key)


class S3Source:
    """Reads objects. Calls run in threads."""

    def __init__(self, clients: S3Clients, config: S3Config, limits: InputLimits) -> None:
        self._clients = clients
        self._config = config
        self._limits = limits

    def target(self, asked: Mapping[str, Any] | None, bucket: str) -> S3Target | None:
        """None when the request has no credentials and the environment's are not for that bucket."""
        return choose_target(asked, self._config, bucket=bucket)

    async def download(self, target: S3Target, key: str, partial: Path) -> tuple[str, int]:
        """Writes the object into a new file; gives its SHA-256 and size.

        Raises DownloadFailed, InputTooLarge; AddressRefused and HostUnknown for an endpoint of the request.
        """
        stop = threading.Event()
        seconds = min(target.connect_timeout_seconds, self._limits.timeout_seconds)
        patient = replace(target, connect_timeout_seconds=seconds)
        try:
            async with asyncio.timeout(self._limits.timeout_seconds):
                return await in_own_thread(self._download, patient, key, partial, stop)
        except TimeoutError:
            raise DownloadFailed(
                f"s3://{target.bucket_name}/{key} took over {self._limits.timeout_seconds:g} s"
            ) from None
        finally:
            stop.set()

    def _download(self, target: S3Target, key: str, partial: Path, stop: threading.Event) -> tuple[str, int]:
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        shown = f"s3://{target.bucket_name}/{key}"
        deadline = time.monotonic() + self._limits.timeout_seconds
        try:
            found = self._clients.client(target).get_object(Bucket=target.bucket_name, Key=key)
            if found["ContentLength"] > self._limits.max_bytes:
                raise self._too_large(shown)
            digest, size_bytes = hashlib.sha256(), 0
            with closing(found["Body"]) as body, partial.open("xb") as file:
                for chunk in body.iter_chunks(CHUNK_BYTES):
                    size_bytes += len(chunk)
                    if size_bytes > self._limits.max_bytes:
                        raise self._too_large(shown)
                    if stop.is_set() or time.monotonic() > deadline:
                        raise DownloadFailed(f"{shown} took over {self._limits.timeout_seconds:g} s")
                    digest.update(chunk)
                    file.write(chunk)
            return digest.hexdigest(), size_bytes
        except (ClientError, BotoCoreError, HTTPError, ValueError) as error:
            raise DownloadFailed(f"{shown}: {store_reason(error)}", reason=store_reason(error)) from None

    def _too_large(self, shown: str) -> InputTooLarge:
        return InputTooLarge(f"{shown} is over {self._limits.max_bytes} bytes", limit_bytes=self._limits.max_bytes)
