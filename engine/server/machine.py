"""Figures of the machine for `/system_stats`, without torch."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

from darkroom.contract.graph.spec import ValueDict
from darkroom.host.distribution import installed_version

COMFYUI_VERSION = "0.33.0"  # whose API is spoken
FRONTEND_VERSION, TEMPLATES_VERSION = "1.49.6", "0.11.44"  # what that version asks for

MEMINFO = Path("/proc/meminfo")
NVIDIA_DEVICE = Path("/dev/nvidiactl")


def memory_bytes() -> tuple[int, int]:
    """Return the total and the available memory of the machine."""
    try:
        lines = (line.split() for line in MEMINFO.read_text().splitlines())
        fields = {parts[0]: int(parts[1]) * 1024 for parts in lines if len(parts) > 1}
        return fields["MemTotal:"], fields["MemAvailable:"]
    except (OSError, KeyError, ValueError):
        page = os.sysconf("SC_PAGE_SIZE")
        total = page * os.sysconf("SC_PHYS_PAGES")
        return total, total


def may_have_gpu() -> bool:
    """Return False only where there is surely no NVIDIA device: then `/system_stats` need not wait for torch."""
    return NVIDIA_DEVICE.exists()


def system() -> ValueDict:
    total, free = memory_bytes()
    return {
        "os": os.name,
        "ram_total": total,
        "ram_free": free,
        "comfyui_version": COMFYUI_VERSION,
        "required_frontend_version": FRONTEND_VERSION,
        "installed_templates_version": _version("comfyui-workflow-templates"),
        "required_templates_version": TEMPLATES_VERSION,
        "python_version": sys.version,
        "pytorch_version": _version("torch"),
        "embedded_python": False,
        "argv": sys.argv,
        "darkroom_version": installed_version(),
    }


def cpu_device() -> ValueDict:
    total, free = memory_bytes()
    return {
        "name": "cpu",
        "type": "cpu",
        "index": None,
        "vram_total": total,
        "vram_free": free,
        "torch_vram_total": total,
        "torch_vram_free": free,
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
