"""Limit of the bytes that a job's outputs may have together."""

from __future__ import annotations

from dataclasses import dataclass

from darkroom.worker.errors import OutputsTooLarge


@dataclass(slots=True)
class ByteBudget:
    """The number of bytes that a job's outputs may still add. None: no limit."""

    max_bytes: int | None
    spent_bytes: int = 0

    @property
    def left(self) -> int | None:
        return None if self.max_bytes is None else self.max_bytes - self.spent_bytes

    def check(self, size_bytes: int, node_id: str) -> None:
        """Raise OutputsTooLarge, which names the node, if fewer than `size_bytes` are left."""
        value = self.spent_bytes + size_bytes
        if self.max_bytes is not None and value > self.max_bytes:
            message = f"outputs: too many bytes; got {value} with node {node_id}, expected at most {self.max_bytes}"
            raise OutputsTooLarge(message, limit="output_bytes", node_id=node_id, value=value, allowed=self.max_bytes)

    def spend(self, size_bytes: int, node_id: str) -> None:
        """Check the size and subtract it."""
        self.check(size_bytes, node_id)
        self.spent_bytes += size_bytes
