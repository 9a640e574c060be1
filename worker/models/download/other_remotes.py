"""Model files at sources other than HTTP addresses: a path on this machine, and objects in S3."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from darkroom.worker.errors import WorkerError
from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.models.download.remote import Passing, RemoteBody
from darkroom.worker.models.errors import DownloadBroke, ModelBroken, SourceMissing, SourceRefused
from darkroom.worker.s3.stores import RETRIED_STATUSES, S3Stores, StoreFailed
from darkroom.worker.s3.targets import S3Target

PIECE_BYTES = 4 * 1024 * 1024


class FileRemote:
    """A file on this machine, on a shared volume for instance."""

    def __init__(self, path: Path) -> None:
        self.shown = str(path)
        self._path = path

    @asynccontextmanager
    async def open(self, start: int, stop: int) -> AsyncIterator[RemoteBody]:
        """Open bytes of the file. See `Remote`."""
        try:
            status = await asyncio.to_thread(self._path.stat)
        except OSError as error:
            raise SourceMissing(f"{self.shown}: {error.strerror or error}") from None
        if status.st_size == 0:
            raise ModelBroken(f"{self.shown}: the file is empty")
        validator = f"{status.st_mtime_ns}-{status.st_size}"
        chunks = self._chunks(start, min(stop, status.st_size))
        yield RemoteBody(start, status.st_size, validator, None, has_ranges=True, chunks=chunks)

    async def _chunks(self, start: int, stop: int) -> AsyncIterator[bytes]:
        def read(at: int) -> bytes:
            with self._path.open("rb") as file:
                file.seek(at)
                return file.read(min(PIECE_BYTES, stop - at))

        while start < stop:
            try:
                piece = await asyncio.to_thread(read, start)
            except OSError as error:
                raise Passing(f"the file cannot be read: {error.strerror or error}") from None
            if not piece:
                return
            start += len(piece)
            yield piece


class BucketRemote:
    """An object in S3, read with the operator's credentials."""

    def __init__(self, stores: S3Stores, target: S3Target, key: str) -> None:
        self.shown = f"s3://{target.bucket_name}/{key}"
        self._stores = stores
        self._target = target
        self._key = key

    @asynccontextmanager
    async def open(self, start: int, stop: int) -> AsyncIterator[RemoteBody]:
        """Open bytes of the object. See `Remote`."""
        try:
            async with self._stores.read(self._target, self._key, (start, stop)) as found:
                has_ranges = found.first is not None
                if has_ranges and found.first != start:
                    raise ModelBroken(f"{self.shown}: the store sent another range than the one asked for")
                yield RemoteBody(
                    start if has_ranges else 0,
                    found.size_bytes,
                    found.validator,
                    None,
                    has_ranges,
                    _chunks(found.chunks),
                )
        except StoreFailed as failed:
            raise self._failure(failed) from None
        except WorkerError as error:  # the address guard's
            raise SourceRefused(f"{self.shown}: {error.message}") from None

    def _failure(self, failed: StoreFailed) -> Exception:
        if failed.status in RETRIED_STATUSES:
            return Passing(failed.reason, has_answered="(" in failed.reason)
        if failed.status == 404:
            return SourceMissing(f"{self.shown}: {failed.reason}")
        if failed.status in (401, 403):
            return SourceRefused(f"{self.shown}: {failed.reason}; expected S3 credentials that may read it")
        if failed.status == 416:
            return ModelBroken(f"{self.shown}: the object is empty")
        return DownloadBroke(f"{self.shown}: {failed.reason}")


async def _chunks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    import httpx

    try:
        async for chunk in chunks:
            yield chunk
    except httpx.HTTPError as error:
        raise Passing(f"the connection broke off: {cause_of(error)}") from None
