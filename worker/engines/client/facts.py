"""EngineFacts: node classes and families of one engine, kept for the time in which it is away."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from darkroom.contract.graph.prompt_graph import ModelFile
from darkroom.worker.engines import answers
from darkroom.worker.engines.client.calls import EngineCalls
from darkroom.worker.engines.client.presence import EnginePresence
from darkroom.worker.engines.families import Family
from darkroom.worker.engines.family_lookup import FamilyLookup
from darkroom.worker.errors import EngineUnreachable


class EngineFacts:
    """Node classes, read once until `forget_object_info`, and families of an engine."""

    def __init__(self, calls: EngineCalls, presence: EnginePresence) -> None:
        self.families = FamilyLookup(lambda path: calls.request("GET", path))
        self._calls = calls
        self._presence = presence
        self._object_info: Mapping[str, Any] | None = None
        self._last_object_info: Mapping[str, Any] | None = None  # also of an engine that has gone since
        self._reading = asyncio.Lock()

    @property
    def is_remembered(self) -> bool:
        """True if the engine's node classes are known, be it from before it went away."""
        return self._last_object_info is not None

    @property
    def last_object_info(self) -> Mapping[str, object]:
        """The engine's node classes as they were read last, without asking it; none before."""
        return self._last_object_info or {}

    async def object_info(self) -> Mapping[str, Any]:
        """Return the engine's node classes. Raises EngineUnreachable."""
        if self._object_info is not None:
            return self._object_info
        async with self._reading:  # a thousand requests that come together need it once, not a thousand times
            if self._object_info is None:
                with self._calls.judging("object_info"):
                    found = await self._calls.get("/object_info")
                    read = await asyncio.to_thread(answers.read_object_info, "GET /object_info", found)
                self._object_info = self._last_object_info = read
            return self._object_info

    def forget_object_info(self) -> None:
        """Read the node classes anew when they are asked for next."""
        self._object_info = None

    async def known_object_info(self) -> Mapping[str, Any]:
        """Return the node classes of an engine that may be restarting: those it had last. Raises EngineUnreachable."""
        if not self._presence.is_away:
            try:
                return await self._presence.answered(self.object_info())
            except EngineUnreachable:
                if not self._presence.is_away:
                    raise
        if self._last_object_info is None:
            raise EngineUnreachable("The engine is starting")
        return self._last_object_info

    async def families_of(self, files: Collection[ModelFile]) -> dict[ModelFile, Family]:
        """Return the families of files, without those of no known family; of an engine that is away, the known ones.

        Raises EngineUnreachable, also when the family of a file must be asked for and the engine is away.
        """
        if not self._presence.is_away:
            try:
                with self._calls.judging("families"):
                    return await self._presence.answered(self.families.of(files))
            except EngineUnreachable:
                if not self._presence.is_away:
                    raise
        return self.families.remembered(files)

    async def known_families_of(self, files: Collection[ModelFile]) -> dict[ModelFile, Family]:
        """Return the families of files as `families_of` does; none while the engine is away and was not asked before.

        For an estimate, which a restart of the engine must not fail. Raises EngineUnreachable.
        """
        try:
            return await self.families_of(files)
        except EngineUnreachable:
            if not self._presence.is_away:
                raise
            return {}

    async def known_families(self) -> tuple[Family, ...]:
        """Return all families of the engine, those it had last while it is away. Raises EngineUnreachable."""
        if not self._presence.is_away:
            try:
                with self._calls.judging("families"):
                    return await self._presence.answered(self.families.families())
            except EngineUnreachable:
                if not self._presence.is_away:
                    raise
        return self.families.last()
