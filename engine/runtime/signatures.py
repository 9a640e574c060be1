"""Cache keys of one process's runs."""

from __future__ import annotations

import os
from typing import Any

from darkroom.contract.graph.signature import Signatures, unique_keys

UNIQUE_BYTES = 16


class RunSignatures:
    """Maker of the signatures of runs, whose unique keys no other run of this process has."""

    def __init__(self) -> None:
        self._unique = unique_keys(b"")

    def renew(self) -> None:
        """Begin with unique keys that no other copy of this process makes."""
        self._unique = unique_keys(os.urandom(UNIQUE_BYTES))

    def make(self, find_node: Any, find_rules: Any, *, quality: str = "") -> Signatures:
        """Return the signatures of a run; results of another `quality` have other ones."""
        return Signatures(find_node, find_rules, self._unique, quality)
