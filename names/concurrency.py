"""Limits of prompts that one engine runs at the same time."""

from __future__ import annotations

from typing import Final

MAX_CONCURRENT_RUNS: Final = 16
AUTO_CONCURRENT_RUNS: Final = 8
"""Runs of `auto`. The engine measures whether steps are faster together, and else lets one sample after the other."""
