"""Models that nobody can use any more have to go: those that something still holds are found by weak references."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from engine.memory.resident import Origin, Resident


class GoneModels:
    """Models whose last handle is gone, until it is known that their modules are as well."""

    def __init__(self) -> None:
        self._watched: list[tuple[str, Origin | None, weakref.ref[Any]]] = []

    def watch(self, resident: Resident, origin: Origin | None) -> None:
        self._watched.append((resident.name, origin, weakref.ref(resident.module)))

    def leaked(self) -> list[str]:
        """Those that are still there once cycles are collected, with the node that brought each in. Told once."""
        watched, self._watched = self._watched, []
        if not any(module() is not None for _, _, module in watched):
            return []
        gc.collect()
        return [
            f"{name}, from {origin or 'outside of a run'}" for name, origin, module in watched if module() is not None
        ]
