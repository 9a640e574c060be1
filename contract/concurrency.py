"""Limits of prompts that one engine runs at the same time."""

from __future__ import annotations

from typing import Final

MAX_CONCURRENT_RUNS: Final = 16
AUTO: Final = "auto"
AUTO_CONCURRENT_RUNS: Final = 8
"""Largest number of runs of `auto`, and the number until it is measured."""
