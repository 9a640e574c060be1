"""Detection of leaked models: those without handles that something still refers to, found by weak references."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from darkroom.engine.memory.resident import Origin, Resident


class ReleasedModels:
    """Models whose last handle is gone, until their modules are known to be freed."""

    def __init__(self) -> None:
        self._watched: list[tuple[str, Origin | None, weakref.ref[Any]]] = []

    def watch(self, resident: Resident, origin: Origin | None) -> None:
        self._watched.append((resident.name, origin, weakref.ref(resident.module)))

    def leaked(self) -> list[str]:
        """Return, once, those that still exist after a collection of cycles, with the node that loaded each."""
        watched, self._watched = self._watched, []
        if not any(module() is not None for _, _, module in watched):
            return []
        gc.collect()
        return [
            f"{name}, from {origin or 'outside of a run'}" for name, origin, module in watched if module() is not None
        ]
