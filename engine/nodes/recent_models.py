"""The models of the files that were asked for last: a prompt that names one of them again finds it read.

A prompt's results are forgotten when the next prompt does not name them, and with them went its models: two prompts in
turns, of different checkpoints, would read both files again and again. Models held here are in the pool like any other
that is not in use: they leave their device, and RAM, for those that are. When RAM becomes short they are let go, so
that what nobody can plan for (nodes with models of their own, other processes) finds some.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any


class RecentModels:
    """Holds the handles of up to `most` files, fewer while `is_short` says so. Used on the GPU thread only."""

    def __init__(self, most: int, is_short: Callable[[], bool] = lambda: False) -> None:
        self._most = most
        self._is_short = is_short
        self._handles: OrderedDict[Any, tuple[Any, ...]] = OrderedDict()

    def note(self, file: Any, handles: Sequence[Any]) -> None:
        """These are the models of a file that has just been read. What was asked for longest ago makes place."""
        self._handles[file] = tuple(handles)
        self.make_place()

    def use(self, file: Any) -> None:
        """The file is asked for again."""
        if file in self._handles:
            self._handles.move_to_end(file)

    def make_place(self) -> None:
        """Let go of what was asked for longest ago, as long as there is too much of it."""
        while len(self._handles) > self._most or (self._handles and self._is_short()):
            self._handles.popitem(last=False)

    def forget(self) -> None:
        self._handles.clear()

    def __len__(self) -> int:
        return len(self._handles)
