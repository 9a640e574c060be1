"""Transfer of one file from one source into its part: several connections, each reading a run of blocks."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from darkroom.worker.concurrency.backoff import Backoff
from darkroom.worker.models.download.part_file import BLOCK_BYTES, PartFile, PartHeader, Run, discard
from darkroom.worker.models.download.remote import Passing, Remote, RemoteBody
from darkroom.worker.models.download.throttle import Throttle
from darkroom.worker.models.errors import DownloadBroke, ModelBroken, SourceUnreachable

RUN_BYTES = 64 * BLOCK_BYTES  # asked for at a time: few requests, and the hash of the prefix stays near
HASH_BYTES = 16 * BLOCK_BYTES  # hashed at a time in a thread
MAX_FILE_BYTES = 1 << 41
BACKOFF = Backoff(first_seconds=0.5, longest_seconds=15.0, jitter=0.2)


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """Connections for each file, and tries in a row without a new block. `backoff` is the pause between tries."""

    num_connections: int = 4
    num_tries: int = 5
    backoff: Backoff = BACKOFF


@dataclass(frozen=True, slots=True)
class Expected:
    """Content that a manifest expects; None where it gives nothing."""

    sha256: str | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A complete part with its SHA-256. `is_resumed`: an earlier process, or another source, gave some of it."""

    digest: str
    size_bytes: int
    published_sha256: str | None
    is_resumed: bool


class Transfer:
    """One source's bytes on their way into a part. Use `run()` once."""

    def __init__(
        self,
        remote: Remote,
        path: Path,
        expected: Expected,
        limits: TransferLimits,
        throttle: Throttle,
        *,
        check_room: Callable[[int], None] = lambda num_bytes: None,
        max_bytes: int = MAX_FILE_BYTES,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._remote = remote
        self._path = path
        self._expected = expected
        self._limits = limits
        self._throttle = throttle
        self._check_room = check_room
        self._max_bytes = max_bytes
        self._on_progress = on_progress
        self._failures = 0
        self._has_answered = False
        self._advanced = asyncio.Event()

    async def run(self) -> Received:
        """Bring the part to its end and return its digest; what was there already is not asked for again.

        `check_room` is called with the bytes that are missing, before any of them is written. Raises SourceFailed,
        OSError and the errors of `check_room`.
        """
        while True:
            try:
                received = await self._attempt()
            except Passing as passing:
                await self._pause(passing)
                continue
            if received is not None:
                return received

    async def _attempt(self) -> Received | None:
        """Return the result, or None where the part was of another content and has been removed."""
        part = await asyncio.to_thread(PartFile.resume, self._path)
        is_resumed = part is not None and part.done_bytes > 0
        try:
            if part is not None and not self._may_be_ours(part.header):
                part.close()
                discard(self._path)
                return None
            if part is not None and part.is_complete:
                return await self._received(part, is_resumed)
            run = Run(0, RUN_BYTES) if part is None else next(part.missing(RUN_BYTES))
            async with self._remote.open(run.start, run.stop) as body:
                self._has_answered = True
                header = self._header_of(body)
                if part is not None and part.header != header:
                    part.close()
                    discard(self._path)
                    return None
                self._check_room(header.size_bytes - (part.done_bytes if part else 0))
                if part is None:
                    part = await asyncio.to_thread(PartFile.create, self._path, header)
                async with asyncio.TaskGroup() as group:
                    digesting = group.create_task(self._received(part, is_resumed))
                    group.create_task(self._fill(part, Run(run.start, min(run.stop, header.size_bytes)), body))
                return digesting.result()
        except ExceptionGroup as failures:
            raise _first_of(failures) from None
        finally:
            if part is not None:
                part.close()

    def _may_be_ours(self, header: PartHeader) -> bool:
        size, sha256 = self._expected.size_bytes, self._expected.sha256
        return size in (None, header.size_bytes) and (sha256 is None or sha256 == header.sha256)

    def _header_of(self, body: RemoteBody) -> PartHeader:
        """Return the content that a source offers. Raises ModelBroken where it is not the expected one."""
        shown = self._remote.shown
        for what, offered, expected in (
            ("SHA-256", body.sha256, self._expected.sha256),
            ("size in bytes", body.size_bytes, self._expected.size_bytes),
        ):
            if offered is not None and expected is not None and offered != expected:
                raise ModelBroken(f"{shown}: another file at the source; got {what} {offered}, expected {expected}")
        size_bytes = body.size_bytes or self._expected.size_bytes
        if size_bytes is None:
            raise ModelBroken(f"{shown}: the source gives no length; expected size_bytes in the manifest")
        if size_bytes > self._max_bytes:
            raise ModelBroken(f"{shown}: too large; got {size_bytes} bytes, expected at most {self._max_bytes}")
        sha256 = self._expected.sha256 or body.sha256
        return PartHeader(sha256 or f"{shown} {body.validator}", size_bytes, sha256)

    async def _fill(self, part: PartFile, run: Run, body: RemoteBody) -> None:
        """Read the missing runs, the first of them from the open body. Raises Passing, SourceFailed."""
        self._on_progress(part.done_bytes, part.header.size_bytes)
        if not body.has_ranges:
            await self._receive(part, Run(0, part.header.size_bytes), body)
            return
        waiting = deque(item for item in part.missing(RUN_BYTES) if item.start != run.start)
        num_others = min(self._limits.num_connections - 1, len(waiting))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_runs(part, waiting, (run, body)))
            for _ in range(num_others):
                group.create_task(self._read_runs(part, waiting))

    async def _read_runs(
        self, part: PartFile, waiting: deque[Run], opened: tuple[Run, RemoteBody] | None = None
    ) -> None:
        """Read one run after another until none waits; one that broke off waits again, without what came of it."""
        while opened is not None or waiting:
            run = opened[0] if opened is not None else waiting.popleft()
            try:
                if opened is not None:
                    await self._receive(part, run, opened[1])
                else:
                    async with self._remote.open(run.start, run.stop) as body:
                        self._check_same(part, run, body)
                        await self._receive(part, run, body)
            except Passing as passing:
                waiting.extendleft(reversed(list(part.missing(RUN_BYTES, run))))
                await self._pause(passing)
            opened = None

    def _check_same(self, part: PartFile, run: Run, body: RemoteBody) -> None:
        header = self._header_of(body)
        if not body.has_ranges or body.start != run.start or header != part.header:
            raise DownloadBroke(f"{self._remote.shown}: the file changed at its source while it was downloaded")

    async def _receive(self, part: PartFile, run: Run, body: RemoteBody) -> None:
        """Write the bytes of a body block by block. Raises Passing where it ends before the run does."""
        block, at, held = part.header.block_bytes, body.start, bytearray()
        if at != run.start:
            raise ModelBroken(f"{self._remote.shown}: other bytes than those asked for; got {at}, expected {run.start}")
        async for chunk in body.chunks:
            await self._throttle.take(len(chunk))
            held += chunk
            if at + len(held) > run.stop:
                raise ModelBroken(
                    f"{self._remote.shown}: more bytes than were announced; expected {run.stop - run.start}"
                )
            while len(held) >= block or (held and at + len(held) == run.stop):
                piece = bytes(held[:block])
                del held[:block]
                await asyncio.to_thread(part.write, at, piece)
                at += len(piece)
                self._failures = 0
                self._advanced.set()
                self._on_progress(part.done_bytes, part.header.size_bytes)
        if at != run.stop:
            raise Passing("the connection broke off")

    async def _pause(self, passing: Passing) -> None:
        """Wait before the next try. Raises DownloadBroke or SourceUnreachable when there were too many in a row."""
        self._failures += 1
        if self._failures >= self._limits.num_tries:
            shown = self._remote.shown
            if not (self._has_answered or passing.has_answered):
                raise SourceUnreachable(f"{shown}: {passing.reason}")
            raise DownloadBroke(f"{shown}: the download broke off ({passing.reason}); it is resumed next time")
        await asyncio.sleep(max(self._limits.backoff.seconds(self._failures), passing.retry_after_seconds))

    async def _received(self, part: PartFile, is_resumed: bool) -> Received:
        """Hash the part from its start on as far as it is there, until it is complete, and return the result."""
        digest, at, header = hashlib.sha256(), 0, part.header

        def add(start: int, num_bytes: int) -> int:
            piece = part.read(start, num_bytes)
            digest.update(piece)
            return len(piece)

        while at < header.size_bytes:
            self._advanced.clear()
            there = min(part.prefix_bytes - at, HASH_BYTES)
            if there == 0:
                await self._advanced.wait()
                continue
            num_bytes = await asyncio.to_thread(add, at, there)
            if num_bytes == 0:
                raise DownloadBroke(f"{self._remote.shown}: the partial file was cut off meanwhile")
            at += num_bytes
        return Received(digest.hexdigest(), header.size_bytes, header.sha256, is_resumed)


def _first_of(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error in groups of groups."""
    first: BaseException = failures
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
