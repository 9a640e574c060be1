"""A result that is computed as it is taken, by the one node that takes it, instead of being held between nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Streamed(ABC):
    """A result in pieces. Inputs that do not declare that they take pieces receive `whole()` instead."""

    @abstractmethod
    def whole(self) -> Any:
        """Compute all pieces and return the value that they make together."""
