"""Checks of disk, memory, clock, ports and limits of the process."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from darkroom.host.port_holder import find_port_holder
from darkroom.worker.doctor.check import Check, failed, good, warning
from darkroom.worker.guard.listener.errors import EVERYWHERE
from darkroom.worker.observe.memory import MachineMemory
from darkroom.worker.settings.settings import Settings

GIB: Final = 1 << 30
SMALL_DISK_BYTES: Final = 10 * GIB
MANY_FILES: Final = 4096
MANY_PROCESSES: Final = 512
CLOCK_SKEW_SECONDS: Final = 60.0
UNSYNCHRONISED: Final = 5  # adjtimex's TIME_ERROR
TIMEX_BYTES: Final = 256
CONNECT_SECONDS: Final = 2.0


def check_disk(folders: Mapping[str, Path], floor_bytes: int) -> Check:
    """Check the free space of the folders' disks beside the floor below which no job is accepted."""
    free = {}
    for place, folder in folders.items():
        try:
            free[place] = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
        except OSError as error:
            return failed("disk", f"{place} {folder}: {error.strerror}", "Mount the folder, or name another one")
    shown = ", ".join(f"{place} {num_bytes / GIB:.1f} GiB free" for place, num_bytes in free.items())
    least = min(free.values())
    if least < floor_bytes:
        return failed(
            "disk",
            f"{shown}; jobs are refused below {floor_bytes / GIB:.1f} GiB",
            "Free space, lower RESULT_TTL so that results are removed earlier, or lower MIN_FREE_DISK_BYTES",
        )
    if least < SMALL_DISK_BYTES:
        return warning("disk", shown, "A model of today has 2 to 24 GB: use a larger disk for models and results")
    return good("disk", shown)


def check_memory(memory: MachineMemory, floor_bytes: int) -> Check:
    """Check the free memory beside the floor below which no job is accepted."""
    available, total = memory.available_bytes(), memory.total_bytes()
    if available is None or total is None:
        return warning("memory", "The kernel reports no figures", "Mount /proc and /sys/fs/cgroup into the container")
    shown = f"{available / GIB:.1f} of {total / GIB:.1f} GiB free"
    if available < floor_bytes:
        return failed(
            "memory",
            f"{shown}; jobs are refused below {floor_bytes / GIB:.1f} GiB",
            "Stop other programs, raise the container's limit, or lower MIN_FREE_MEMORY_BYTES",
        )
    return good("memory", shown)


def check_clock(skews_seconds: Mapping[str, float], *, is_synchronised: bool | None) -> Check:
    """Check the clock beside those of servers, by name, and whether the kernel's is synchronised (None: unknown)."""
    remedy = "Run chrony or systemd-timesyncd: signatures of S3, webhooks and links hold for minutes only"
    wrong = {name: skew for name, skew in skews_seconds.items() if abs(skew) > CLOCK_SKEW_SECONDS}
    if wrong:
        shown = ", ".join(f"{skew:+.0f} s beside {name}" for name, skew in wrong.items())
        return failed("clock", f"The clock differs: {shown}", remedy)
    if skews_seconds:
        return good("clock", ", ".join(f"{skew:+.0f} s beside {name}" for name, skew in skews_seconds.items()))
    if is_synchronised is False:
        return warning("clock", "The kernel's clock is not synchronised", remedy)
    return good("clock", "Synchronised" if is_synchronised else "No server to compare with")


def is_clock_synchronised() -> bool | None:
    """Return the kernel's word on its clock; None where it cannot be asked."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != UNSYNCHRONISED


def check_ports(settings: Settings, *, is_within_worker: bool) -> Check:
    """Check that the worker's port can be taken, or is held by a worker."""
    host, port = settings.listen_host, settings.listener.port
    if is_within_worker:
        return good("ports", f"{host}:{port} is this worker's")
    problem = _find_port_problem(host, port)
    if problem is None:
        return good("ports", f"{host}:{port} is free")
    if problem.errno != errno.EADDRINUSE:
        shown = (problem.strerror or type(problem).__name__).lower()
        return failed(
            "ports", f"{host}:{port}: {shown}", "Set WORKER_HOST and WORKER_PORT to an address of this machine"
        )
    holder = find_port_holder(EVERYWHERE.get(host, host), port)
    if holder.is_worker:
        return good("ports", f"{host}:{port} is held by {holder}")
    remedy = "Stop what holds it (`ss -ltnp`), or set another WORKER_PORT"
    return failed("ports", f"{host}:{port}: address already in use by {holder}", remedy)


def _find_port_problem(host: str, port: int) -> OSError | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error
    return None


def check_limits(max_connections: int) -> Check:
    """Check the hard limits of open files and processes, which the worker raises its own ones to."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, processes = resource.getrlimit(resource.RLIMIT_NPROC)
    shown = f"{_shown(files)} open files, {_shown(processes)} processes, {os.cpu_count()} cores"
    if files != resource.RLIM_INFINITY and files < max_connections:
        remedy = f"`--ulimit nofile={MANY_FILES * 16}` in Docker, LimitNOFILE= in systemd, or lower MAX_CONNECTIONS"
        return warning("limits", f"{shown}; MAX_CONNECTIONS is {max_connections}", remedy)
    if processes != resource.RLIM_INFINITY and processes < MANY_PROCESSES:
        return warning("limits", shown, "`--pids-limit` in Docker, TasksMax= in systemd: threads count as processes")
    return good("limits", shown)


def _shown(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"
