"""Keep nothing from one run to the next. Within a run nodes that are alike still share one result."""

from __future__ import annotations

from collections.abc import Mapping

from engine.graph.signature import Key
from engine.runtime.cache.classic import ClassicCache


class NoCache(ClassicCache):
    def begin(self, keys: Mapping[str, Key], classes: Mapping[str, str]) -> None:
        self.clear()
        super().begin(keys, classes)
