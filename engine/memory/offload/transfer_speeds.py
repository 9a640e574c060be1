"""Speeds at which a model's weights come from their file and leave for RAM, and which way costs less: pure.

A weight that the device holds in another type or layout than its file has no original in RAM. When it leaves the device
it is copied there, and back at the next use, or it is forgotten and read from the file again.
"""

from __future__ import annotations

LEAST_BYTES = 64 << 20  # of a transfer whose speed says something
TO_RAM_BYTES_PER_SECOND = 2.5e9  # to pageable memory, as drivers of PCIe cards copy, until it has been measured
FROM_RAM_BYTES_PER_SECOND = 5e9


class TransferSpeeds:
    """Speeds of one model's transfers, in bytes on the device a second."""

    def __init__(self) -> None:
        self._from_file: float | None = None
        self._to_ram = TO_RAM_BYTES_PER_SECOND

    def note_read(self, num_bytes: int, seconds: float) -> None:
        """Record that weights came from their file. The last time counts: the system may keep the file in memory."""
        if num_bytes >= LEAST_BYTES:
            self._from_file = num_bytes / max(seconds, 1e-9)

    def note_copied(self, num_bytes: int, seconds: float) -> None:
        """Record that weights were copied from the device to RAM."""
        if num_bytes >= LEAST_BYTES:
            self._to_ram = num_bytes / max(seconds, 1e-9)

    @property
    def prefers_file(self) -> bool:
        """True where reading the file again takes no longer than the copy to RAM and back."""
        there_and_back = 1 / self._to_ram + 1 / FROM_RAM_BYTES_PER_SECOND
        return self._from_file is not None and 1 / self._from_file <= there_and_back
