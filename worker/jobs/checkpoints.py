"""Checkpoints of running jobs: the folder in which engines record sampling, and its copy in S3.

After the loss of an engine, a worker or a lease the job goes on from its last checkpoint. A folder that several workers
share, or S3, lets another worker do so. A store that fails costs the checkpoint, never the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import structlog

from darkroom.contract.wire import CHECKPOINT_KEY
from darkroom.worker.json.values import JsonObject
from darkroom.worker.storage.job import Job

log = structlog.get_logger("checkpoints")

KEEP_SECONDS = 86_400.0  # of the records of a job that no worker came back to
LAST_COPY_SECONDS = 20.0
SUFFIX = ".safetensors"


class CheckpointCopies(Protocol):
    """Copies of checkpoints where other workers find them. Names are `SAMPLING/NUMBER.safetensors`."""

    async def names(self, key: str) -> list[str]:
        """Return the names of all files below a key. Raises CopyFailed."""
        ...

    async def fetch(self, key: str, name: str, path: Path) -> None:
        """Write a file to `path`. Raises CopyFailed."""
        ...

    async def store(self, key: str, name: str, path: Path) -> None:
        """Store a file. Raises CopyFailed."""
        ...

    async def remove(self, key: str) -> None:
        """Remove all files below a key. Raises CopyFailed."""
        ...


class CopyFailed(Exception):
    """A store did not take, give or remove a copy."""


class JobCheckpoints:
    """Owner of the checkpoint folder `directory`. `copies` None: the folder itself is what workers share."""

    def __init__(self, directory: Path, seconds: float, copies: CheckpointCopies | None = None) -> None:
        self._directory = directory
        self._seconds = seconds
        self._copies = copies
        self._removing: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def of(self, job: Job) -> AsyncIterator[JsonObject]:
        """Yield the fields to send to an engine with the job's prompt; copy its checkpoints while the block is open."""
        key = _key_of(job)
        if self._copies is None:
            yield {CHECKPOINT_KEY: key}
            return
        copied = await self._fetched(self._copies, key)
        copying = asyncio.create_task(self._copy_forever(self._copies, key, copied), name=f"checkpoints-{job.id}")
        try:
            yield {CHECKPOINT_KEY: key}
        except BaseException:  # the job may go on elsewhere
            with contextlib.suppress(CopyFailed, TimeoutError):
                async with asyncio.timeout(LAST_COPY_SECONDS):
                    await self._copy(self._copies, key, copied)
            raise
        finally:
            copying.cancel()
            await asyncio.gather(copying, return_exceptions=True)

    def bytes_of(self, job: Job) -> int:
        """Return the bytes of a job's checkpoints here. Reads the folder, which has a few files."""
        found = 0
        for path in (self._directory / _key_of(job)).glob(f"*/*{SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                found += path.stat().st_size
        return found

    async def remove(self, job: Job) -> None:
        """Remove the checkpoints of a job that has ended; copies are removed in the background."""
        key = _key_of(job)
        await asyncio.to_thread(shutil.rmtree, self._directory / key, True)
        if self._copies is not None:
            task = asyncio.create_task(self._remove_copies(self._copies, key), name=f"checkpoints-{job.id}")
            self._removing.add(task)
            task.add_done_callback(self._removing.discard)

    async def forget_old(self) -> None:
        """Remove the records of jobs that no worker has touched for a day."""
        await asyncio.to_thread(_remove_old, self._directory, time.time() - KEEP_SECONDS)

    async def close(self) -> None:
        if self._removing:
            await asyncio.wait(self._removing, timeout=LAST_COPY_SECONDS)

    async def _fetched(self, copies: CheckpointCopies, key: str) -> set[str]:
        """Fetch the files that another worker has stored; return the names of all that are there."""
        folder = self._directory / key
        try:
            found = await copies.names(key)
            for name in found:
                path = folder / name
                if not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    part = path.with_suffix(".part")
                    await copies.fetch(key, name, part)
                    part.replace(path)
        except (CopyFailed, OSError) as error:
            log.warning("checkpoint not fetched", reason=str(error))
            return set()
        return set(found)

    async def _copy_forever(self, copies: CheckpointCopies, key: str, copied: set[str]) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self._copy(copies, key, copied)
            except CopyFailed as error:
                log.warning("checkpoint not stored", reason=str(error), retry_in_seconds=self._seconds)

    async def _copy(self, copies: CheckpointCopies, key: str, copied: set[str]) -> None:
        folder = self._directory / key
        for path in await asyncio.to_thread(lambda: sorted(folder.glob(f"*/*{SUFFIX}"))):
            name = path.relative_to(folder).as_posix()
            if name not in copied:
                await copies.store(key, name, path)
                copied.add(name)

    async def _remove_copies(self, copies: CheckpointCopies, key: str) -> None:
        try:
            await copies.remove(key)
        except CopyFailed as error:
            log.warning("checkpoint not removed", reason=str(error))


def _key_of(job: Job) -> str:
    """Return the folder of a job: the same at every worker that gets it, another for another body of the same id."""
    return sha256(f"{job.id}\n{job.body_hash}".encode()).hexdigest()[:40]


def _remove_old(directory: Path, before_seconds: float) -> None:
    for folder in directory.iterdir() if directory.is_dir() else ():
        newest = max((path.stat().st_mtime for path in folder.rglob("*")), default=folder.stat().st_mtime)
        if newest < before_seconds:
            shutil.rmtree(folder, ignore_errors=True)
