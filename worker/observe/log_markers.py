"""Marker lines on standard output that other programs look for in a worker's log."""

from __future__ import annotations

import sys


def write_marker(marker: str) -> None:
    """Write a marker line and flush it."""
    sys.stdout.write(f"{marker}\n")
    sys.stdout.flush()
