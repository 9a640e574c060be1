"""Refusal of results that would not fit the free memory, before any of it is taken."""

from __future__ import annotations

from darkroom.engine.nodes.base import NodeContext


def check_fits(context: NodeContext, name: str, needed_bytes: int) -> None:
    """Raise ValueError for more bytes than are free. `name` is that of the inputs that decide the size."""
    free = needed_bytes if context.files is None else context.files.free_bytes()
    if needed_bytes > free:
        raise ValueError(f"{name}: too large for the free memory; got {needed_bytes} bytes, expected at most {free}")
