"""ManifestState: model files and node packs compared with `models.toml` and `packs.toml`, for `/health`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.json.values import JsonObject
from darkroom.worker.models.errors import ManifestInvalid
from darkroom.worker.models.file_states import file_states
from darkroom.worker.models.library import ModelLibrary
from darkroom.worker.models.lock import read_lock, with_locked

CHECK_SECONDS: Final = 60.0
STARTING_SECONDS: Final = 1.0
ASK_SECONDS: Final = 5.0
GOOD: Final = "good"


class ManifestState:
    """Owner of the last comparison. `run_forever` renews it, so that a probe waits for neither disk nor engine."""

    def __init__(self, library: ModelLibrary, pool: EnginePool) -> None:
        self._library = library
        self._pool = pool
        self._models: Mapping[str, str] = {}
        self._packs: Mapping[str, str] = {}
        self._problems: tuple[str, ...] = ()

    async def run_forever(self) -> None:
        while True:
            has_asked = await self.check()
            await asyncio.sleep(CHECK_SECONDS if has_asked else STARTING_SECONDS)

    async def check(self) -> bool:
        """Compare now. Return True if an engine of ours has said what its packs are."""
        problems = []
        try:
            self._models = await asyncio.to_thread(self._compare_models)
        except ManifestInvalid as error:
            problems.append(str(error))
        answer = await self._ask_engine()
        if answer is not None:
            self._packs = _states_of(answer)
            if isinstance(problem := answer.get("manifest_problem"), str):
                problems.append(problem)
        self._problems = tuple(problems)
        return answer is not None

    def report(self) -> JsonObject | None:
        """Return the number of packs and files in each state; None where no manifest asks for any."""
        if not (self._models or self._packs or self._problems):
            return None
        return {"models": dict(Counter(self._models.values())), "packs": dict(Counter(self._packs.values()))}

    def differences(self) -> list[tuple[str, str]]:
        """Return the differences from the manifests, as names and states, and the faults of a manifest."""
        found = [(f"model {place}", state) for place, state in self._models.items() if state != GOOD]
        found += [(f"pack {name}", state) for name, state in self._packs.items() if state != GOOD]
        return [*found, *(("manifest", problem) for problem in self._problems)]

    def _compare_models(self) -> Mapping[str, str]:
        locked = read_lock(self._library.lock_path)
        entries = [with_locked(entry, locked) for entry in self._library.manifest.required()]
        return file_states(entries, self._library.directory)

    async def _ask_engine(self) -> Mapping[str, object] | None:
        for engine in self._pool.clients_serving:
            if engine.has_check:
                try:
                    status, answer = await engine.calls.ask("GET", "/api/v1/nodes", timeout_seconds=ASK_SECONDS)
                except EngineUnreachable:
                    continue
                if status == 200:
                    return answer
        return None


def _states_of(answer: Mapping[str, object]) -> dict[str, str]:
    versions = answer.get("versions")
    items = versions if isinstance(versions, list) else []
    return {str(item["name"]): str(item["state"]) for item in items if isinstance(item, Mapping)}
