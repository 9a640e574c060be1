"""Confinement of one job of a media process: limits on memory and time, and access to the job's own files alone.

Limits hold everywhere. Where the kernel has Landlock, the job can open no other files, and so read neither the front's
environment nor its secrets; without it, it runs as any other process of the front's user.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from darkroom.worker.media.process.landlock import READS_FILE, READS_FOLDER, WRITES_FOLDER, restrict_files

MAX_WRITTEN_BYTES = 4 << 30
RESERVED_BYTES = 2 << 30  # address space that allocators reserve, and libraries are mapped to, beside the memory in use
OOM_SCORE = "900"  # the kernel, short of memory, ends this process before the engine and the front
NICENESS = 5
SYSTEM_FOLDERS = ("/usr", "/lib", "/lib64")

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
CAPABILITIES_VERSION = 0x20080522
CAP_DAC_OVERRIDE = 1 << 1  # files of the engine's user stay readable; which ones, Landlock decides


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Memory in bytes and processor time in seconds of one job."""

    max_bytes: int
    cpu_seconds: int


def lower_priority() -> None:
    """Let other processes go first, and let the kernel end this one first where memory is short."""
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)


def confine_job(limits: JobLimits, reads: list[Path], writes: list[Path]) -> None:
    """Confine this process to its limits, to reading `reads` (files) and to writing below `writes` (folders)."""
    for kind, limit in (
        (resource.RLIMIT_DATA, limits.max_bytes),
        (resource.RLIMIT_AS, limits.max_bytes + RESERVED_BYTES),
        (resource.RLIMIT_CPU, limits.cpu_seconds),
        (resource.RLIMIT_FSIZE, MAX_WRITTEN_BYTES),
    ):
        _, hard = resource.getrlimit(kind)
        lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (lowest, lowest))
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.geteuid() == 0:
        _drop_capabilities(libc)
    rights = dict.fromkeys(_interpreter_folders(), READS_FOLDER)
    rights |= dict.fromkeys(reads, READS_FILE) | dict.fromkeys(writes, WRITES_FOLDER)
    restrict_files({path: allowed for path, allowed in rights.items() if path.exists()})


def _interpreter_folders() -> list[Path]:
    """Return the folders of libraries, of which one may be imported late."""
    package = Path(__file__).resolve().parents[2]
    libraries = (entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages")))
    folders = dict.fromkeys(map(Path, (*SYSTEM_FOLDERS, sys.prefix, sys.base_prefix, *libraries)))
    return [folder for folder in (*folders, package) if folder.is_dir() and folder != Path("/")]


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    kept = CAP_DAC_OVERRIDE
    data = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)  # effective, permitted, inheritable: low words, then high
    libc.capset(header, data)
