"""Copies of checkpoints in the bucket of the outputs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from darkroom.worker.errors import WorkerError
from darkroom.worker.jobs.checkpoints import CopyFailed
from darkroom.worker.s3.stores import S3Stores, StoreFailed
from darkroom.worker.s3.targets import S3Target

PREFIX = "darkroom-checkpoints"
MEDIA_TYPE = "application/octet-stream"
NAME = re.compile(r"[0-9a-f]{16}/\d{8}\.safetensors")


class S3Checkpoints:
    """CheckpointCopies below `darkroom-checkpoints/KEY/` of a bucket."""

    def __init__(self, stores: S3Stores, target: S3Target) -> None:
        self._stores = stores
        self._target = target

    async def names(self, key: str) -> list[str]:
        with _copying():
            found = await self._stores.keys(self._target, _object(key, ""))
        names = [name.removeprefix(_object(key, "")) for name in found]
        return [name for name in names if NAME.fullmatch(name)]

    async def fetch(self, key: str, name: str, path: Path) -> None:
        with _copying():
            async with self._stores.read(self._target, _object(key, name)) as stored:
                with path.open("wb") as file:
                    async for chunk in stored.chunks:
                        file.write(chunk)

    async def store(self, key: str, name: str, path: Path) -> None:
        with _copying():
            await self._stores.write(self._target, path, _object(key, name), MEDIA_TYPE)

    async def remove(self, key: str) -> None:
        with _copying():
            for name in await self._stores.keys(self._target, _object(key, "")):
                await self._stores.remove(self._target, name)


def _object(key: str, name: str) -> str:
    return f"{PREFIX}/{key}/{name}"


@contextmanager
def _copying() -> Iterator[None]:
    try:
        yield
    except (StoreFailed, WorkerError, OSError) as error:
        raise CopyFailed(str(error)) from None
