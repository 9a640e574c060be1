"""Files of folders that other people's code writes to, opened without following a link.

Node packs run in the engine and may put a link, a pipe or another folder where a file was a moment ago. What the front
opens here is a regular file that lies where its name says.
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
    """A descriptor of `folder`, which lies below `root`. Raises OSError, also where a part below `root` is a link."""
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
    """A regular file of an opened folder. Raises OSError; FileNotFoundError for what is no regular file."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(f"{name} is no regular file")
        yield file


def check_regular(path: Path) -> None:
    """Remove what is no regular file, a new hard link to something else. Raises FileNotFoundError then."""
    if not stat.S_ISREG(path.lstat().st_mode):
        path.unlink()
        raise FileNotFoundError(f"{path.name} is no regular file")
