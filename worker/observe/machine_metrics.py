"""Metrics of the machine: memory, processor, and the disks of the worker's folders."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from darkroom.host.processor import busy_seconds
from darkroom.worker.observe.memory import MachineMemory


class MachineMetrics(Collector):
    """Figures of the machine; those of the disks as of the last `read`. `folders` are the worker's, by place."""

    def __init__(self, memory: MachineMemory, folders: Mapping[str, Path]) -> None:
        self._memory = memory
        self._folders = folders
        self._disks: dict[str, tuple[int, int]] = {}

    async def read(self) -> None:
        """Read the sizes of the disks, on another thread: one on the network may take long."""
        self._disks = await asyncio.to_thread(self._read_disks)

    def _read_disks(self) -> dict[str, tuple[int, int]]:
        found = {}
        for place, folder in self._folders.items():
            try:
                usage = shutil.disk_usage(_existing(folder))
            except OSError:
                continue
            found[place] = (usage.total, usage.free)
        return found

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        yield from self._of_memory()
        yield from self._of_processor()
        size = GaugeMetricFamily("darkroom_disk_size_bytes", "Size of the disk of a folder", labels=["place"])
        free = GaugeMetricFamily("darkroom_disk_free_bytes", "Free space of the disk of a folder", labels=["place"])
        for place, (total_bytes, free_bytes) in self._disks.items():
            size.add_metric([place], total_bytes)
            free.add_metric([place], free_bytes)
        yield from (size, free)

    def _of_memory(self) -> Iterable[Metric]:
        memory = self._memory
        for name, about, value in (
            ("front_memory", "Memory of the front that is not reclaimable", memory.process_bytes(os.getpid())),
            ("memory_available", "Memory that is left of the container or the machine", memory.available_bytes()),
            ("memory_total", "Memory of the machine, or the limit of the container", memory.total_bytes()),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"darkroom_{name}_bytes", about, value=value)
        kills = CounterMetricFamily(
            "darkroom_oom_kills", "Processes that the kernel has killed for memory", value=memory.num_oom_kills()
        )
        yield kills

    def _of_processor(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "darkroom_cpu_cores", "Cores that the worker may run on", value=len(os.sched_getaffinity(0))
        )
        spent = CounterMetricFamily("darkroom_cpu_seconds", "Time of the machine's cores, by mode", labels=["mode"])
        seconds = busy_seconds()
        if seconds is not None:
            for mode, value in zip(("busy", "idle"), seconds, strict=True):
                spent.add_metric([mode], value)
        yield spent


def _existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())
