"""Landlock: a process gives up every file, TCP address and foreign process but those it names. Linux 5.13 and later.

The kernel's interface (Documentation/userspace-api/landlock.rst) by its system calls, which have the same numbers on
every architecture. Rules cannot be taken back, and hold for every process that this one starts.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
ASKS_VERSION = 1
PATH_BENEATH = 1

WRITE_FILE, READ_FILE, READ_DIR, REMOVE_FILE, MAKE_REG, TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 5, 1 << 8, 1 << 14
READS_FILE = READ_FILE
READS_FOLDER = READ_FILE | READ_DIR
WRITES_FOLDER = READ_FILE | READ_DIR | WRITE_FILE | MAKE_REG | REMOVE_FILE | TRUNCATE

# Rights over files, by the version of the interface that brought the last of them.
FILE_RIGHTS = ((5, (1 << 16) - 1), (3, (1 << 15) - 1), (2, (1 << 14) - 1), (1, (1 << 13) - 1))
TCP_RIGHTS = 0b11  # since version 4: bind and connect
SCOPES = 0b11  # since version 6: abstract sockets and signals of processes outside


class _RulesetAttributes(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def landlock_version() -> int:
    """Return the version of the interface; 0 where the kernel has none."""
    return max(0, _call(CREATE_RULESET, None, ctypes.c_size_t(0), ASKS_VERSION))


def restrict_files(rights: Mapping[Path, int]) -> bool:
    """Give up all rights over files except `rights`, TCP, and signals to other processes.

    False where the kernel cannot do it. Raises OSError for a path that does not exist. No privileges must be gained
    afterwards (`no_new_privs`).
    """
    version = landlock_version()
    if not version:
        return False
    handled = next(files for since, files in FILE_RIGHTS if version >= since)
    attributes = _RulesetAttributes(handled, TCP_RIGHTS, SCOPES)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _call(CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    try:
        for path, allowed in rights.items():
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                rule = _PathBeneath(allowed & handled, parent)
                _checked(_call(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0), path)
            finally:
                os.close(parent)
        return _call(RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(ctypes.c_long(number), *arguments))


def _checked(result: int, path: Path) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(path))
