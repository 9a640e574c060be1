"""FactStore: small named facts that outlive the front, as JSON."""

from __future__ import annotations

import json

import sqlalchemy as sa

from darkroom.worker.storage.database import FACT_UPSERT, FACTS
from darkroom.worker.storage.database_thread import DatabaseThread
from darkroom.worker.storage.group_commit import GroupCommit


class FactStore:
    """Named values in the job database."""

    def __init__(self, database: DatabaseThread, commits: GroupCommit) -> None:
        self._database = database
        self._commits = commits

    async def get(self, name: str) -> object:
        """Return a stored fact (parsed JSON), or None. Raises DatabaseUnreachable."""
        found = await self._database.rows(sa.select(FACTS.c.value).where(FACTS.c.name == name))
        return json.loads(found[0].value) if found else None

    async def set(self, name: str, value: object) -> None:
        """Store a fact, and wait until it is on disk."""
        await self._commits.write((FACT_UPSERT, {"name": name, "value": json.dumps(value)}))
