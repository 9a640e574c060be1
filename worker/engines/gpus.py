"""GPUs of this machine, found without torch or CUDA: the number of engines to start, and the GPU of each."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

NVIDIA_SMI_SECONDS = 20.0
UUID = re.compile(r"\(UUID: ([^)]+)\)")


def find_gpus(environment: Mapping[str, str], dev: Path = Path("/dev")) -> list[str]:
    """Return the values for `CUDA_VISIBLE_DEVICES`, one for each GPU: the variable's own entries, else the driver's.

    `nvidia-smi` is called only where there is more than one device: it can take seconds.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return visible_entries(visible)
    devices = sorted(path.name for path in dev.glob("nvidia[0-9]*"))
    if len(devices) < 2:
        return ["0"] if devices else []
    return driver_ids() or [str(index) for index in range(len(devices))]


def visible_entries(variable: str) -> list[str]:
    """Return the entries that CUDA uses: those before the first invalid one, such as -1."""
    entries: list[str] = []
    for part in variable.split(","):
        entry = part.strip()
        if not entry or entry.startswith("-"):
            break
        entries.append(entry)
    return entries


def driver_ids() -> list[str]:
    """Return the ids that `nvidia-smi -L` lists; empty when it fails."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_ids(listed.stdout) if listed.returncode == 0 else []


def parse_ids(text: str) -> list[str]:
    """Return one id for each device. A GPU that is divided into MIG devices counts as those."""
    ids: list[str] = []
    whole: str | None = None  # a GPU whose MIG devices may follow
    for line in text.splitlines():
        found = UUID.search(line)
        if found is None:
            continue
        if line.startswith("GPU"):
            if whole is not None:
                ids.append(whole)
            whole = found[1]
        else:
            whole = None
            ids.append(found[1])
    return [*ids, *([] if whole is None else [whole])]


def assign_gpus(gpus: Sequence[str], num_engines: int | None) -> list[str | None]:
    """Return the GPU of each engine; None: every device of the machine.

    `num_engines` None: one engine for each GPU.
    """
    number = num_engines or max(1, len(gpus))
    if number == 1 or not gpus:
        return [None] * number
    return [gpus[index % len(gpus)] for index in range(number)]
