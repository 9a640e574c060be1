"""Keep a result only until the last node that takes it has run.

Until then nodes that are alike share it; a later one runs again.
"""

from __future__ import annotations

from collections.abc import Mapping

from darkroom.contract.graph.signature import Key
from darkroom.engine.runtime.cache.classic import ClassicCache


class NoCache(ClassicCache):
    forgets_within_run = True

    def begin(self, keys: Mapping[str, Key], classes: Mapping[str, str]) -> None:
        self.clear()
        super().begin(keys, classes)

    def consumed(self, group: str | None, key: Key) -> None:
        self.drop(group, key)
