"""Cache of the models of recently used files, so that the next prompt with one of them does not read it again.

The results of a prompt are evicted when the next prompt does not name them, and their models with them. Two prompts in
turns, of different checkpoints, would therefore read both files again and again.

Models held here are in the pool like any other that is not in use: they leave their device, and RAM, for those that are
in use. They are released when RAM becomes short, so that unplanned uses (nodes with models of their own, other
processes) find free memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any


class RecentModels:
    """LRU cache of the handles of up to `most` files, fewer while `is_short` is true. Used on the GPU thread only."""

    def __init__(self, most: int, is_short: Callable[[], bool] = lambda: False) -> None:
        self._most = most
        self._is_short = is_short
        self._handles: OrderedDict[Any, tuple[Any, ...]] = OrderedDict()

    def note(self, file: object, handles: Sequence[object]) -> None:
        """Add the models of a file that has just been read, evicting the least recently used."""
        self._handles[file] = tuple(handles)
        self.make_place()

    def use(self, file: object) -> None:
        """Mark a file as the most recently used."""
        if file in self._handles:
            self._handles.move_to_end(file)

    def make_place(self) -> None:
        """Evict the least recently used files while there are too many or RAM is short."""
        while len(self._handles) > self._most or (self._handles and self._is_short()):
            self._handles.popitem(last=False)

    def forget(self) -> None:
        self._handles.clear()

    def __len__(self) -> int:
        return len(self._handles)
