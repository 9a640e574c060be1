"""Access to files in folders that untrusted code writes to, without following symbolic links.

Node packs run in the engine and may replace a file by a link, a pipe or another folder at any time. The functions here
open only a regular file at exactly the named path.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened_folder(root: Path, folder: Path) -> Iterator[int]:
    """Open `folder` below `root` and yield its descriptor. Raises OSError, also if a part below `root` is a link."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in folder.relative_to(root).parts:
            inner = os.open(part, FOLDER_FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_file(folder_fd: int, name: str) -> Iterator[BinaryIO]:
    """Open a regular file of an open folder. Raises OSError, or FileNotFoundError if it is not a regular file."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(f"{name} is not a regular file")
        yield file


def check_regular(path: Path) -> None:
    """Remove a path that is not a regular file, such as a new hard link to a pipe. Raises FileNotFoundError then."""
    if not stat.S_ISREG(path.lstat().st_mode):
        path.unlink()
        raise FileNotFoundError(f"{path.name} is not a regular file")
