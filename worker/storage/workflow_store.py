"""WorkflowStore: workflows under a name, in the database of the jobs. A version that was given is never given again."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from hashlib import sha256
from typing import Any

import sqlalchemy as sa

from darkroom.contract.nearest import nearest_name
from darkroom.worker.errors import WorkflowNotFound
from darkroom.worker.storage.database import WORKFLOWS
from darkroom.worker.storage.job import CANONICAL
from darkroom.worker.storage.store import JobStore
from darkroom.worker.storage.stored_workflow import REFERENCE, StoredWorkflow

LARGE_CONTENT_LENGTH = 256 * 1024


class WorkflowStore:
    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._writing = asyncio.Lock()
        self.revision = 0
        """Number of changes since the start, by which others see that what they made of the workflows is old."""

    async def put(self, workflow: StoredWorkflow) -> tuple[StoredWorkflow, bool]:
        """Store a workflow as the next version of its name; its own number and time are not used.

        Returns the version, and False if it is the newest one already. Raises StateUnusable.
        """
        content = await asyncio.to_thread(CANONICAL.encode, workflow.content())
        digest = sha256(content.encode(errors="surrogatepass")).hexdigest()
        async with self._writing:
            rows = await self._versions(workflow.name)
            newest = next((row for row in rows if row.is_kept), None)
            if newest is not None and newest.digest == digest:
                return replace(workflow, version=newest.version, created_ms=newest.created_ms), False
            version = max((row.version for row in rows), default=0) + 1
            made = replace(workflow, version=version, created_ms=int(time.time() * 1000))
            row = {"name": made.name, "version": version, "digest": digest, "content": content}
            await self._store.write((sa.insert(WORKFLOWS), {**row, "created_ms": made.created_ms}))
            self.revision += 1
        return made, True

    async def get(self, reference: str) -> StoredWorkflow:
        """Return the newest version of `NAME`, or the version `NAME@N`. Raises WorkflowNotFound, StateUnusable."""
        found = REFERENCE.fullmatch(reference)
        if found is not None:
            query = sa.select(WORKFLOWS).where(WORKFLOWS.c.name == found["name"], WORKFLOWS.c.content.is_not(None))
            if found["version"]:
                query = query.where(WORKFLOWS.c.version == int(found["version"]))
            rows = await self._store.read(query.order_by(WORKFLOWS.c.version.desc()).limit(1))
            if rows:
                return await _read(rows[0])
        raise await self._not_found(reference)

    async def newest(self) -> list[StoredWorkflow]:
        """Return the newest version of every name, in the order of the names."""
        inner = (
            sa.select(WORKFLOWS.c.name, sa.func.max(WORKFLOWS.c.version).label("version"))
            .where(WORKFLOWS.c.content.is_not(None))
            .group_by(WORKFLOWS.c.name)
            .subquery()
        )
        is_newest = sa.and_(WORKFLOWS.c.name == inner.c.name, WORKFLOWS.c.version == inner.c.version)
        rows = await self._store.read(sa.select(WORKFLOWS).join(inner, is_newest).order_by(WORKFLOWS.c.name))
        return [await _read(row) for row in rows]

    async def versions(self, name: str) -> list[int]:
        """Return the versions of a name that are kept, the newest first."""
        return [row.version for row in await self._versions(name) if row.is_kept]

    async def delete(self, reference: str) -> int:
        """Delete a version, or every version of a name; return their number. Raises WorkflowNotFound, StateUnusable."""
        found = REFERENCE.fullmatch(reference)
        async with self._writing:
            kept = await self.versions(found["name"]) if found else []
            gone = [version for version in kept if found and found["version"] in (None, str(version))]
            if found is None or not gone:
                raise await self._not_found(reference)
            erase = sa.update(WORKFLOWS).where(
                WORKFLOWS.c.name == sa.bindparam("of_name"), WORKFLOWS.c.version == sa.bindparam("of_version")
            )
            writes = [
                (erase.values(content=None), {"of_name": found["name"], "of_version": version}) for version in gone
            ]
            await self._store.write(*writes)
            self.revision += 1
        return len(gone)

    async def _versions(self, name: str) -> list[Any]:
        columns = WORKFLOWS.c
        is_kept = columns.content.is_not(None).label("is_kept")
        query = sa.select(columns.version, columns.digest, columns.created_ms, is_kept).where(columns.name == name)
        return list(await self._store.read(query.order_by(columns.version.desc())))

    async def _not_found(self, reference: str) -> WorkflowNotFound:
        query = sa.select(WORKFLOWS.c.name).where(WORKFLOWS.c.content.is_not(None)).distinct()
        names = [row.name for row in await self._store.read(query)]
        name = reference.partition("@")[0]
        if name in names:
            kept = ", ".join(str(version) for version in (await self.versions(name))[:20])
            return WorkflowNotFound(
                f"workflow {reference[:200]}: no such version; expected one of {kept}", nearest=name
            )
        nearest = nearest_name(reference, names, by_start=True)
        hint = f"; did you mean {nearest}?" if nearest else ""
        return WorkflowNotFound(f"workflow {reference[:200]!r}: no such name{hint}", nearest=nearest)


async def _read(row: Any) -> StoredWorkflow:
    is_large = len(row.content) >= LARGE_CONTENT_LENGTH
    content = await asyncio.to_thread(json.loads, row.content) if is_large else json.loads(row.content)
    return StoredWorkflow.of(row.name, row.version, row.created_ms, content)
