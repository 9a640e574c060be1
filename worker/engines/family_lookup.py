"""FamilyLookup: TTL cache of an engine's families of models and of the family of each of its model files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlencode

from darkroom.contract.graph.prompt_graph import FAMILY_KIND, ModelFile
from darkroom.worker.engines.answers import reading
from darkroom.worker.engines.families import Family, read_families
from darkroom.worker.engines.http import Reply
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.json.values import JsonObject

TTL_SECONDS = 30.0  # for which a replaced file may count as of its former family
MAX_QUERY_BYTES = 4096  # of one request; further files of a prompt count as of the default family
MAX_KEPT = 1024
DENOISER_KINDS = frozenset({"checkpoints", "diffusion_models"})
"""Kinds of files with a network, whose family the engine must have to run them."""

Ask = Callable[[str], Awaitable[Reply]]
"""GET a path of the engine. Raises EngineUnreachable."""


@dataclass(frozen=True, slots=True)
class CheckpointFamily:
    """A checkpoint as the engine describes it. `family` is empty for a file of no known family."""

    name: str
    family: str
    scale: str | None
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class _Named:
    """The names of a file's family and variant, empty where unknown, and facts of its tensors, where known."""

    family: str = ""
    variant: str = ""
    num_weights: int | None = None
    has_text: bool | None = None
    is_there: bool = False

    @classmethod
    def of(cls, described: JsonObject) -> Self:
        """Return the facts in an engine's description of a file."""
        weights, has_text = described.get("num_weights"), described.get("has_text")
        return cls(
            str(described.get("family") or ""),
            str(described.get("variant") or ""),
            weights if isinstance(weights, int) and not isinstance(weights, bool) and weights > 0 else None,
            has_text if isinstance(has_text, bool) else None,
            is_there=bool(described),
        )


class FamilyLookup:
    """Families of an engine. One without them (a foreign ComfyUI) has none, and its files count as the default's."""

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._families: tuple[float, tuple[Family, ...]] | None = None
        self._reading = asyncio.Lock()
        self._names: dict[ModelFile, tuple[float, _Named]] = {}  # with the time of reading

    async def families(self) -> tuple[Family, ...]:
        """Return the families, the default one first; empty for an engine without them. Raises EngineUnreachable."""
        async with self._reading:  # requests that come together when it is old need it once
            if self._families is None or self._is_old(self._families[0]):
                reply = await self._ask("/api/v1/families")
                value = await reply.json_value() if reply.status == 200 else []
                with reading(reply.route):
                    found = read_families(value)
                self._families = self._clock(), found
            return self._families[1]

    def last(self) -> tuple[Family, ...]:
        """Return the families that the engine told last, without asking it; none before."""
        return () if self._families is None else self._families[1]

    async def of(self, files: Collection[ModelFile]) -> dict[ModelFile, Family]:
        """Return the families of files, each with the parameters of the file's variant of the network.

        Files of no known family are left out. Raises EngineUnreachable.
        """
        if not files:
            return {}
        families = {family.name: family for family in await self.families()}
        if not families:
            return {}
        for kind in {file.kind for file in files} - {FAMILY_KIND}:
            await self._learn(kind, [file.name for file in files if file.kind == kind])
        return self._among(files, families)

    def refused(self, files: Collection[ModelFile]) -> list[ModelFile]:
        """Return those of files that the engine has and found to be of no family of its own, as of the last `of`."""
        named = ((file, self._name_of(file)) for file in files if file.kind in DENOISER_KINDS)
        return [file for file, known in named if known.is_there and not known.family]

    def remembered(self, files: Collection[ModelFile]) -> dict[ModelFile, Family]:
        """Return the last result of `of`, without asking the engine. Raises EngineUnreachable where that is unknown."""
        if not files:
            return {}
        is_known = self._families is not None and all(file.kind == FAMILY_KIND or file in self._names for file in files)
        if self._families is None or not (is_known or not self._families[1]):
            raise EngineUnreachable("The engine is restarting")
        families = {family.name: family for family in self._families[1]}
        return self._among(files, families)

    def _among(self, files: Collection[ModelFile], families: Mapping[str, Family]) -> dict[ModelFile, Family]:
        named = {file: self._name_of(file) for file in files}
        return {
            file: families[item.family].variant(item.variant).of_size(item.num_weights).with_text(item.has_text)
            for file, item in named.items()
            if item.family in families
        }

    async def checkpoints(self) -> tuple[CheckpointFamily, ...]:
        """Return all checkpoints of the engine, read anew; empty without families. Raises EngineUnreachable."""
        if not await self.families():
            return ()
        found = []
        for item in await self._described("checkpoints") or ():
            name, size = str(item.get("name")), item.get("size_bytes")
            scale = item.get("scale")
            family = str(item.get("family") or "")
            self._keep(ModelFile("checkpoints", name), _Named.of(item))
            found.append(
                CheckpointFamily(
                    name, family, None if scale is None else str(scale), size if isinstance(size, int) else None
                )
            )
        return tuple(found)

    async def by_checkpoint(self) -> dict[str, Family | None]:
        """Return the family of each checkpoint of the engine, None for an unknown one. Raises EngineUnreachable."""
        families = {family.name: family for family in await self.families()}
        return {item.name: families.get(item.family) for item in await self.checkpoints()}

    async def learn(self, kinds: Iterable[str]) -> None:
        """Ask for all files of these kinds, so that their families are known while the engine is away.

        Raises EngineUnreachable.
        """
        if await self.families():
            for kind in kinds:
                for item in await self._described(kind) or ():
                    self._keep(ModelFile(kind, str(item.get("name"))), _Named.of(item))

    def _name_of(self, file: ModelFile) -> _Named:
        if file.kind == FAMILY_KIND:
            return _Named(file.name)
        return self._names.get(file, (0.0, _Named()))[1]

    async def _learn(self, kind: str, names: Iterable[str]) -> None:
        """Ask for the files whose family is unknown or may have changed."""
        kept = ((name, self._names.get(ModelFile(kind, name))) for name in names)
        unknown = _that_fit(name for name, known in kept if known is None or self._is_old(known[0]))
        described = await self._described(kind, unknown) if unknown else None
        if described is not None:
            found = {str(item.get("name")): item for item in described}
            for name in unknown:
                self._keep(ModelFile(kind, name), _Named.of(found.get(name, {})))

    async def _described(self, kind: str, names: Collection[str] = ()) -> list[JsonObject] | None:
        """Return the engine's descriptions of files, of all of a kind without names; None where it has none."""
        reply = await self._ask(f"/api/v1/checkpoints?{_query([('kind', kind), *(('name', name) for name in names)])}")
        listed = (await reply.json_object()).get("checkpoints") if reply.status == 200 else None
        return [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else None

    def _keep(self, file: ModelFile, named: _Named) -> None:
        self._names.pop(file, None)
        while len(self._names) >= MAX_KEPT:
            del self._names[next(iter(self._names))]  # the oldest
        self._names[file] = self._clock(), named

    def _is_old(self, read_at: float) -> bool:
        return self._clock() - read_at > TTL_SECONDS


def _query(pairs: Iterable[tuple[str, str]]) -> str:
    return urlencode(list(pairs), errors="replace")


def _that_fit(names: Iterable[str]) -> list[str]:
    """Return the first names that fit one request."""
    found, left = [], MAX_QUERY_BYTES
    for name in names:
        left -= len(_query([("name", name)])) + 1 if len(name) < MAX_QUERY_BYTES else MAX_QUERY_BYTES
        if left < 0:
            break
        found.append(name)
    return found
