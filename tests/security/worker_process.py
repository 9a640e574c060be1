"""A worker with its own engine, without models: what tests of the process's surroundings need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.flow.running_worker import RunningWorker, running_worker
from tests.worker.adjusted_front import Constants

IMAGE = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 255}},
    "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "picture"}},
}


@contextmanager
def worker_process(base: Path, constants: Constants | None = None, /, **environment: str) -> Iterator[RunningWorker]:
    no_model = base / "empty.safetensors"
    base.mkdir(parents=True, exist_ok=True)
    no_model.touch()
    with running_worker(base, no_model, constants, **environment) as worker:
        yield worker


def job(workflow: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"input": {"workflow_json": workflow, **fields}}


def processes_below(process_id: int) -> list[int]:
    """The processes that a process started, and those that these started."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, looked_at = [], [process_id]
    while looked_at:
        below = children.get(looked_at.pop(), [])
        found += below
        looked_at += below
    return found


def inodes_of(process_id: int) -> set[str]:
    """The sockets that a process has open, by inode."""
    found = set()
    for descriptor in Path(f"/proc/{process_id}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def tcp_listeners() -> set[str]:
    """The inodes of all sockets that listen for TCP."""
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {fields[9] for fields in lines if fields[3] == "0A"}
