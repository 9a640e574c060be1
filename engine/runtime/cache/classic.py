"""Keep what the running prompt names, drop the rest: ComfyUI's default."""

from __future__ import annotations

from collections.abc import Mapping

from darkroom.contract.graph.signature import Key
from darkroom.engine.runtime.cache.groups import Groups
from darkroom.engine.runtime.cache.store import NodeResult, ResultCache


class ClassicCache(ResultCache):
    def __init__(self) -> None:
        self._groups: Groups[Key, NodeResult] = Groups()

    def begin(self, keys: Mapping[str, Key], classes: Mapping[str, str]) -> None:
        self._groups.set_members(None, set(keys.values()), classes)

    def expand(self, owner: str, keys: Mapping[str, Key], classes: Mapping[str, str]) -> None:
        self._groups.set_members(owner, set(keys.values()), classes)

    def get(self, group: str | None, key: Key) -> NodeResult | None:
        values = self._groups.get(group)
        return None if values is None else values.get(key)

    def put(self, group: str | None, key: Key, result: NodeResult) -> None:
        self._groups[group][key] = result

    def drop(self, group: str | None, key: Key) -> None:
        self._groups[group].pop(key, None)

    def forget_results(self) -> None:
        self._groups.empty()

    def clear(self) -> None:
        self._groups.clear()

    def __len__(self) -> int:
        return len(self._groups)

    def check_integrity(self) -> None:
        self._groups.check_integrity()
