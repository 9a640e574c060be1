"""Description of the processor in a benchmark's output: its kind, never the machine's name or paths."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def describe_cpu() -> dict[str, Any]:
    """Model, usable cores, and the vector extensions that decide how fast half precision is."""
    lines = _cpu_lines()
    flags = set(lines.get("flags", "").split())
    return {
        "cpu": lines.get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "has_avx512_bf16": "avx512_bf16" in flags,
        "has_amx_bf16": "amx_bf16" in flags,
        "python": platform.python_version(),
    }


def installed_environment() -> dict[str, str]:
    """The environment in which Python keeps the bytecode of what it imports, as an installation has it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # noqa: TID251


def _cpu_lines() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}
