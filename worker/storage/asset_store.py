"""AssetStore: files that callers upload once and refer to, kept by content below the state directory.

Equal content is on disk once. A caller finds by hash only what it has uploaded itself: a hash alone is no right to a
file. An asset that nothing has used for as long as results are kept is removed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import sqlalchemy as sa

from darkroom.worker.errors import AssetNotFound, DiskLow, HashMismatch
from darkroom.worker.inputs.uploads import ReceivedFile, UploadedFiles
from darkroom.worker.storage.database import ASSETS, storable
from darkroom.worker.storage.store import JobStore

HASH_PREFIX: Final = "blake3:"
PIECE_BYTES: Final = 1024 * 1024
PARTIAL_PREFIX: Final = ".partial-"
RECORD_BYTES: Final = 1024
"""Bytes that a further record of the same content counts as."""

CheckRoom = Callable[[int], None]
"""Check whether the caller may store so many bytes more. Raises LimitReached."""


def accept(num_bytes: int) -> None:
    """Accept any size."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A caller's record of a file. `hash` is the BLAKE3 of its content in hexadecimal, `used_ms` its last use."""

    id: str
    owner: str
    hash: str
    size_bytes: int
    content_type: str
    file_path: str
    created_ms: int
    used_ms: int


class AssetStore:
    def __init__(self, store: JobStore, uploads: UploadedFiles, min_free_bytes: int, ttl_seconds: float) -> None:
        self._store = store
        self._uploads = uploads
        self._min_free_bytes = min_free_bytes
        self._adding = asyncio.Lock()
        self.ttl_seconds = ttl_seconds
        self._used: dict[str, dict[str, list[int]]] = {}  # by owner and hash: bytes, and number of records

    async def load(self) -> None:
        """Count the assets of earlier starts. Raises StateUnusable."""
        for row in await self._store.read(sa.select(ASSETS.c.owner, ASSETS.c.hash, ASSETS.c.size_bytes)):
            self._count(row.owner, row.hash, row.size_bytes)

    def used_bytes(self, owner: str) -> int:
        """Return the bytes of a caller's assets; what it has uploaded several times counts once."""
        contents = self._used.get(owner, {}).values()
        return sum(size_bytes + RECORD_BYTES * (num_records - 1) for size_bytes, num_records in contents)

    @property
    def folder(self) -> Path:
        return self._store.directory / "assets"

    def path_of(self, asset: Asset) -> Path:
        return self.folder / asset.hash

    def file_of(self, asset: Asset) -> Path:
        """Return an asset's file. Raises AssetNotFound if it is gone, as from a new machine with the old database."""
        path = self.path_of(asset)
        if not path.is_file():
            raise AssetNotFound(f"asset {asset.id}: its file is gone; expected to be uploaded again")
        return path

    async def add(
        self,
        file: BinaryIO,
        owner: str,
        content_type: str,
        file_path: str,
        expected_hash: str = "",
        check_room: CheckRoom = accept,
    ) -> tuple[Asset, bool]:
        """Store a file; return its record, and False if the caller has uploaded its content before.

        Raises HashMismatch, DiskLow, StateUnusable, LimitReached.
        """
        content_type, file_path = storable(content_type), storable(file_path)
        partial, digest, size_bytes = await asyncio.to_thread(self._receive, file)
        try:
            if expected_hash and expected_hash.removeprefix(HASH_PREFIX) != digest:
                raise HashMismatch(f"expected_hash: got {expected_hash[:80]}, but the file has {HASH_PREFIX}{digest}")
            async with self._adding:
                earlier = await self._of_hash(digest, owner)
                if not earlier:
                    check_room(size_bytes)
                await asyncio.to_thread(os.replace, partial, self.folder / digest)
                return await self._record(earlier, owner, digest, size_bytes, content_type, file_path), not earlier
        finally:
            await asyncio.to_thread(partial.unlink, missing_ok=True)

    async def of_hash(self, raw_hash: str, owner: str, file_path: str = "", check_room: CheckRoom = accept) -> Asset:
        """Return a record for content that the caller has uploaded before.

        Raises AssetNotFound, StateUnusable, LimitReached.
        """
        async with self._adding:
            earlier = await self._of_hash(storable(raw_hash.removeprefix(HASH_PREFIX)), owner)
            if not earlier or not await asyncio.to_thread(self.path_of(earlier[0]).is_file):
                raise AssetNotFound(f"asset {raw_hash[:80]}: no such content")
            first = earlier[0]
            name = storable(file_path) or first.file_path
            if all(asset.file_path != name for asset in earlier):
                check_room(RECORD_BYTES)
            return await self._record(earlier, owner, first.hash, first.size_bytes, first.content_type, name)

    async def get(self, asset_id: str, owner: str) -> Asset:
        """Return a caller's asset. Raises AssetNotFound, StateUnusable."""
        query = sa.select(ASSETS).where(ASSETS.c.id == storable(asset_id), ASSETS.c.owner == owner)
        rows = await self._store.read(query)
        if not rows:
            raise AssetNotFound(f"asset {asset_id[:80]}: no such id")
        return _asset_of(rows[0])

    async def named(self, file_path: str, owner: str) -> Asset:
        """Return a caller's asset by its name, the last used of several. Raises AssetNotFound, StateUnusable."""
        found = await self.all_named([file_path], owner)
        if not found:
            raise AssetNotFound(f"asset {file_path[:80]}: no file of this name")
        return found[file_path]

    async def all_named(self, file_paths: Iterable[str], owner: str) -> dict[str, Asset]:
        """Return a caller's assets by name, those that are there, the last used of each. Raises StateUnusable."""
        names = [storable(name) for name in file_paths]
        query = sa.select(ASSETS).where(ASSETS.c.owner == owner, ASSETS.c.file_path.in_(names))
        rows = await self._store.read(query.order_by(ASSETS.c.used_ms))
        return {row.file_path: _asset_of(row) for row in rows}

    async def names(self, prefix: str, owner: str) -> list[str]:
        """Return the names of a caller's assets that begin with `prefix`. Raises StateUnusable."""
        query = sa.select(ASSETS.c.file_path).where(
            ASSETS.c.owner == owner, ASSETS.c.file_path.startswith(prefix, autoescape=True)
        )
        return sorted({row.file_path for row in await self._store.read(query)})

    async def delete(self, asset_id: str, owner: str) -> None:
        """Delete an asset. Jobs that were sent with it are not affected. Raises AssetNotFound, StateUnusable."""
        asset = await self.get(asset_id, owner)
        await self._forget([asset])

    async def lend(self, asset_ids: Iterable[str], owner: str) -> dict[str, ReceivedFile]:
        """Return copies of assets by id, as files that came with a request; all of them or none.

        Raises AssetNotFound, DiskLow, RequestTooLarge, StateUnusable.
        """
        assets = [await self.get(asset_id, owner) for asset_id in asset_ids]
        lent: dict[str, ReceivedFile] = {}
        is_whole = False
        try:
            for asset in assets:
                lent[asset.id] = await asyncio.to_thread(self._copy, asset)
                await self._note_use(asset.id)
            is_whole = True
            return lent
        finally:
            for file in () if is_whole else lent.values():
                await asyncio.to_thread(file.path.unlink, missing_ok=True)

    async def forget_unused(self, before_ms: int) -> None:
        """Delete the assets that nothing has used since a time."""
        rows = await self._store.read(sa.select(ASSETS).where(ASSETS.c.used_ms < before_ms))
        if rows:
            await self._forget([_asset_of(row) for row in rows])

    async def _note_use(self, asset_id: str) -> None:
        used = sa.update(ASSETS).where(ASSETS.c.id == sa.bindparam("used_id")).values(used_ms=_now_ms())
        await self._store.write((used, {"used_id": asset_id}))

    async def _of_hash(self, digest: str, owner: str) -> list[Asset]:
        query = sa.select(ASSETS).where(ASSETS.c.hash == storable(digest), ASSETS.c.owner == owner)
        query = query.order_by(ASSETS.c.created_ms)
        return [_asset_of(row) for row in await self._store.read(query)]

    async def _record(
        self, earlier: list[Asset], owner: str, digest: str, size_bytes: int, content_type: str, file_path: str
    ) -> Asset:
        """Return the caller's record of a content under this name, a new one unless there is one."""
        same = next((asset for asset in earlier if asset.file_path == file_path), None)
        if same is not None:
            await self._note_use(same.id)
            return same
        now = _now_ms()
        made = Asset(str(uuid.uuid4()), owner, digest, size_bytes, content_type, file_path, now, now)
        row = {name: getattr(made, name) for name in Asset.__slots__}
        await self._store.write((sa.insert(ASSETS), row))
        self._count(owner, digest, size_bytes)
        return made

    def _count(self, owner: str, digest: str, size_bytes: int) -> None:
        self._used.setdefault(owner, {}).setdefault(digest, [size_bytes, 0])[1] += 1

    def _uncount(self, asset: Asset) -> None:
        contents = self._used.get(asset.owner, {})
        if asset.hash in contents:
            contents[asset.hash][1] -= 1
            if contents[asset.hash][1] <= 0:
                del contents[asset.hash]
        if not contents:
            self._used.pop(asset.owner, None)

    async def _forget(self, assets: list[Asset]) -> None:
        async with self._adding:
            erase = sa.delete(ASSETS).where(ASSETS.c.id == sa.bindparam("gone_id"))
            await self._store.write(*((erase, {"gone_id": asset.id}) for asset in assets))
            for asset in assets:
                self._uncount(asset)
            for digest in {asset.hash for asset in assets}:
                if not await self._store.read(sa.select(ASSETS.c.id).where(ASSETS.c.hash == digest).limit(1)):
                    await asyncio.to_thread((self.folder / digest).unlink, missing_ok=True)

    def _receive(self, file: BinaryIO) -> tuple[Path, str, int]:
        """Write a file beside the others; return its path, its hash and its size in bytes. Raises DiskLow."""
        from blake3 import blake3  # most workers never keep an asset

        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial, digest, size_bytes = self.folder / f"{PARTIAL_PREFIX}{uuid.uuid4().hex}", blake3(), 0
        with partial.open("xb") as target:
            while piece := file.read(PIECE_BYTES):
                if shutil.disk_usage(self.folder).free - len(piece) < self._min_free_bytes:
                    partial.unlink()
                    raise DiskLow("The disk is almost full", retry_after_seconds=30)
                digest.update(piece)
                size_bytes += len(piece)
                target.write(piece)
            target.flush()
            os.fsync(target.fileno())
        return partial, digest.hexdigest(), size_bytes

    def _copy(self, asset: Asset) -> ReceivedFile:
        upload = self._uploads.begin(asset.file_path)
        try:
            with self.path_of(asset).open("rb") as file:
                while piece := file.read(PIECE_BYTES):
                    upload.write(piece)
            return upload.finish()
        except FileNotFoundError:
            upload.discard()
            raise AssetNotFound(f"asset {asset.id}: its file is gone; expected to be uploaded again") from None
        except Exception:
            upload.discard()
            raise


def _asset_of(row: Any) -> Asset:
    return Asset(**row._mapping)


def _now_ms() -> int:
    return int(time.time() * 1000)
