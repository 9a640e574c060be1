"""Marker lines on standard output that other programs look for in a worker's log."""

from __future__ import annotations

import sys


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()
