"""ModelDownloader: brings model files below `models/`, each once for all that wait for it, in every process.

A file is a part in `models/.downloads` until its content has been checked, and appears under its name by a rename. A
file lock beside the part keeps other processes from the same download; they wait and find the file. Sources are tried
in order. Of several files that wait the one with the lowest priority number comes first.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from filelock import FileLock, Timeout

from darkroom.worker.models.download.level_filler import LevelFiller
from darkroom.worker.models.download.open_source import SourceOpener
from darkroom.worker.models.download.part_file import discard, mark_checked, part_path
from darkroom.worker.models.download.throttle import Throttle
from darkroom.worker.models.download.transfer import MAX_FILE_BYTES, Expected, Received, Transfer, TransferLimits
from darkroom.worker.models.entry import ModelEntry
from darkroom.worker.models.errors import DiskFull, DiskUnwritable, ModelBroken, SourceFailed, SourceMissing
from darkroom.worker.models.files import checksum_path, find_file_problem
from darkroom.worker.models.lock import LockedFile, add_to_lock, read_lock, with_locked
from darkroom.worker.models.sources import Source

LOCK_PAUSE_SECONDS = 0.25
FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})
LAST = (1 << 62,)
"""Priority of a download that nothing waits for."""

Priority = tuple[int, ...]
MakeRoom = Callable[[int, int], None]
"""Evicts files before so many bytes come, for whose place so many bytes of the disk are lacking."""

log = structlog.get_logger("models")


def keep_all(num_bytes: int, lacking_bytes: int) -> None:
    """Evict nothing."""


@dataclass(frozen=True, slots=True)
class DownloadLimits:
    """Limits of all downloads together. `min_free_bytes` stay free on the disk.

    `max_request_bytes` is the largest file of an address that a request names.
    """

    num_at_once: int = 2
    bytes_per_second: float = 0.0
    min_free_bytes: int = 0
    max_request_bytes: int = MAX_FILE_BYTES
    transfer: TransferLimits = field(default_factory=TransferLimits)


@dataclass(slots=True)
class DownloadProgress:
    """Progress of a download.

    `place` is its path below `models/`. `total_bytes` 0: not known yet. `source` is the one being read.
    """

    name: str
    place: str
    done_bytes: int = 0
    total_bytes: int = 0
    source: str = ""

    @property
    def percent(self) -> float:
        return 100.0 * self.done_bytes / self.total_bytes if self.total_bytes else 0.0


@dataclass(slots=True)
class _Download:
    """A download with those that wait for it. It has the best priority of theirs."""

    entry: ModelEntry
    is_operators: bool
    progress: DownloadProgress
    task: asyncio.Task[Path] | None = None
    waiting: list[Priority] = field(default_factory=list)
    listeners: list[Callable[[DownloadProgress], None]] = field(default_factory=list)
    turn: asyncio.Future[None] | None = None

    @property
    def priority(self) -> Priority:
        return min(self.waiting, default=LAST)


class ModelDownloader:
    """Downloads in flight and those that wait for a slot. Use `close()` at the end."""

    def __init__(
        self,
        models_directory: Path,
        opener: SourceOpener,
        limits: DownloadLimits,
        lock_path: Path,
        *,
        make_room: MakeRoom = keep_all,
    ) -> None:
        self._models = models_directory
        self._opener = opener
        self._limits = limits
        self._lock_path = lock_path
        self._make_room = make_room
        self._throttle = Throttle(limits.bytes_per_second)
        self._downloads: dict[str, _Download] = {}
        self._num_running = 0
        self._filler = LevelFiller(opener)

    async def close(self) -> None:
        """End every download; what has come is kept and resumed. Files on the way to the bucket level are given up."""
        tasks = [download.task for download in self._downloads.values() if download.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._filler.close()
        await self._opener.close()

    async def fill_level(self) -> None:
        """Wait until the files that were brought are in the bucket level too."""
        await self._filler.finish()

    def in_flight(self) -> list[DownloadProgress]:
        """Return the progress of every download that runs or waits."""
        return [download.progress for download in self._downloads.values()]

    async def fetch(
        self,
        entry: ModelEntry,
        *,
        priority: Priority = (0,),
        on_progress: Callable[[DownloadProgress], None] | None = None,
        is_operators: bool = True,
    ) -> Path:
        """Return the path of a file after bringing it; one that is there is kept as it is.

        A cancelled caller leaves the download to the others that wait for it; without any it ends. Unless
        `is_operators`, the sources come from a request. Raises SourceFailed of the source that tells most.
        """
        target = entry.path_below(self._models)
        if await asyncio.to_thread(target.is_file):
            return target
        download = self._downloads.get(entry.place)
        if download is None:
            progress = DownloadProgress(entry.name, entry.place, total_bytes=entry.size_bytes or 0)
            download = _Download(entry, is_operators, progress)
            self._downloads[entry.place] = download
            download.task = asyncio.create_task(self._run(download), name=f"model-{entry.place}")
        assert download.task is not None
        download.waiting.append(priority)
        if on_progress is not None:
            download.listeners.append(on_progress)
        try:
            return await asyncio.shield(download.task)
        finally:
            download.waiting.remove(priority)
            if on_progress is not None:
                download.listeners.remove(on_progress)
            if not download.waiting:
                download.task.cancel()  # no effect on a finished one

    async def _run(self, download: _Download) -> Path:
        try:
            await self._turn(download)
            try:
                return await self._bring(download)
            except OSError as error:
                raise _disk_error(download.entry, error) from None
            finally:
                self._num_running -= 1
                self._next_turn()
        finally:
            if self._downloads.get(download.entry.place) is download:
                del self._downloads[download.entry.place]

    async def _turn(self, download: _Download) -> None:
        """Wait for a slot, which is taken when this returns."""
        download.turn = asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)  # until the first caller has said its priority
        self._next_turn()
        try:
            await download.turn
        except asyncio.CancelledError:
            if download.turn.done() and not download.turn.cancelled():
                self._num_running -= 1
                self._next_turn()
            raise
        finally:
            download.turn = None

    def _next_turn(self) -> None:
        while self._num_running < self._limits.num_at_once:
            ready = [item for item in self._downloads.values() if item.turn is not None and not item.turn.done()]
            if not ready:
                return
            first = min(ready, key=lambda item: item.priority)
            self._num_running += 1
            assert first.turn is not None
            first.turn.set_result(None)

    async def _bring(self, download: _Download) -> Path:
        """Take the lock of the file's part and bring the file. Raises SourceFailed."""
        target = download.entry.path_below(self._models)
        part = part_path(self._models, download.entry.place)
        await asyncio.to_thread(part.parent.mkdir, parents=True, exist_ok=True)
        lock = FileLock(part.with_name(f"{part.name}.lock"), thread_local=False)
        while True:
            with suppress(Timeout):
                lock.acquire(timeout=0)
                break
            await asyncio.sleep(LOCK_PAUSE_SECONDS)  # another process has it
        try:
            if await asyncio.to_thread(target.is_file):
                return target
            return await self._from_sources(download, part, target)
        finally:
            lock.release()

    async def _from_sources(self, download: _Download, part: Path, target: Path) -> Path:
        entry = with_locked(download.entry, await asyncio.to_thread(read_lock, self._lock_path))
        failures: list[SourceFailed] = []
        for source in self._filler.sources_of(entry) if download.is_operators else entry.sources:
            download.progress.source = str(source)
            try:
                received = await self._from_source(download, entry, source, part)
            except DiskFull:
                raise
            except SourceFailed as failed:
                if isinstance(failed, SourceMissing) and self._filler.is_level(source):
                    continue  # no worker has filled it yet
                log.warning("model source failed", model=entry.name, reason=str(failed))
                failures.append(failed)
                continue
            await asyncio.to_thread(self._place, entry, part, target, received, str(source))
            log.info("model fetched", model=entry.name, size_bytes=received.size_bytes, source=str(source))
            if download.is_operators and not self._filler.is_level(source):
                self._filler.fill_soon(target, received.digest)
            return target
        raise _most_telling(entry, failures)

    async def _from_source(self, download: _Download, entry: ModelEntry, source: Source, part: Path) -> Received:
        """Return a complete part with the expected content.

        A part that another process began, and that proves wrong, is brought once more from its start: a loss of power
        may have taken blocks of it.
        """
        remote = await self._opener.open(source, is_operators=download.is_operators)
        expected = Expected(entry.sha256, entry.size_bytes)
        while True:
            transfer = Transfer(
                remote,
                part,
                expected,
                self._limits.transfer,
                self._throttle,
                check_room=lambda num_bytes: self._check_room(entry, num_bytes),
                max_bytes=MAX_FILE_BYTES if download.is_operators else self._limits.max_request_bytes,
                on_progress=lambda done, total: self._progressed(download, done, total),
            )
            received = await transfer.run()
            problem = await asyncio.to_thread(_find_problem, remote.shown, part, entry, received)
            if problem is None:
                await asyncio.to_thread(mark_checked, part)
                return received
            await asyncio.to_thread(discard, part)
            if not received.is_resumed:
                raise ModelBroken(problem)

    def _progressed(self, download: _Download, done: int, total: int) -> None:
        progress = download.progress
        progress.done_bytes, progress.total_bytes = done, total
        for listener in list(download.listeners):
            listener(progress)

    def _check_room(self, entry: ModelEntry, num_bytes: int) -> None:
        """Raise DiskFull where the file does not fit beside what other downloads are still to bring."""
        others = sum(
            max(0, item.progress.total_bytes - item.progress.done_bytes)
            for item in self._downloads.values()
            if item.entry.place != entry.place and item.turn is None and item.progress.done_bytes
        )
        needed = num_bytes + others + self._limits.min_free_bytes
        self._make_room(num_bytes, max(0, needed - shutil.disk_usage(self._models).free))
        free = shutil.disk_usage(self._models).free
        if free < needed:
            raise DiskFull(
                f"{entry.place}: no room on the disk; {num_bytes} bytes are to be fetched, {free} are free, and "
                f"{self._limits.min_free_bytes} stay free (MIN_FREE_DISK_BYTES)"
            )

    def _place(self, entry: ModelEntry, part: Path, target: Path, received: Received, source: str) -> None:
        """Give a checked part its name, with its checksum beside it and in the lock."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        checksum_path(target).write_text(f"{received.digest}  {target.name}\n")
        os.replace(part, target)
        discard(part)
        if entry.sha256 != received.digest or entry.place not in read_lock(self._lock_path):
            locked = LockedFile(received.digest, received.size_bytes, source)
            try:
                add_to_lock(self._lock_path, {entry.place: locked})
            except OSError as error:  # a read-only manifest folder: the checksum beside the file is kept
                log.warning("model lock not written", path=str(self._lock_path), reason=error.strerror)


def _find_problem(shown: str, part: Path, entry: ModelEntry, received: Received) -> str | None:
    expected = entry.sha256 or received.published_sha256
    if expected is not None and received.digest != expected:
        return f"{shown}: wrong content; got SHA-256 {received.digest}, expected {expected}; it was removed"
    problem = find_file_problem(part, entry.name)
    return None if problem is None else f"{shown}: {entry.name} {problem}; it was removed"


def _disk_error(entry: ModelEntry, error: OSError) -> DiskFull:
    if error.errno in FULL_DISK:
        return DiskFull(f"{entry.place}: the disk is full; what came is kept and resumed")
    return DiskUnwritable(f"{entry.place}: the models folder cannot be written: {error.strerror or error}")


def _most_telling(entry: ModelEntry, failures: list[SourceFailed]) -> SourceFailed:
    """Return the error for a file that no source gave: of the first kind that someone can act on, with all reasons."""
    if not failures:
        return SourceMissing(f"{entry.place}: has no source; expected sources in the manifest")
    first = next((failure for failure in failures if failure.exit_code in (6, 4, 5)), failures[0])
    return type(first)("; ".join(str(failure) for failure in failures))
