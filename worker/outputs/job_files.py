"""Files in a job's folder: linked or copied from the engine's, under names that are not in use."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from darkroom.worker.outputs.engine_files import check_regular, opened_file, opened_folder

COUNTER = re.compile(r"_\d{5,}_?\.\w+$")  # in ComfyUI's names, which are never written to again


def make_empty(directory: Path) -> None:
    """Empty the folder, which may contain unlisted files from a crash during collection."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in directory.iterdir():
        if path.is_file():
            path.unlink()


def link_or_copy(root: Path, origin: Path, directory: Path, name: str) -> Path:
    """Create a hard link, or a copy if the file systems differ or do not support links. Never overwrites a file.

    Only a file with a counter in its name is linked. A node that always writes to the same name opens the existing
    file, so a link would let it overwrite the previous job's image.

    No symbolic link below `root` is followed: code in the engine could replace a folder by a link to the front's
    secrets while the front takes the file.
    """
    with opened_folder(root, origin.parent) as folder_fd:
        return _link_or_copy_from(folder_fd, origin.name, directory, name)


def _link_or_copy_from(folder_fd: int, origin_name: str, directory: Path, name: str) -> Path:
    for path in _candidates(directory, name) if COUNTER.search(origin_name) else ():
        try:
            os.link(origin_name, path, src_dir_fd=folder_fd, follow_symlinks=False)
            check_regular(path)
            return path
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EACCES):
                raise
            break
    path = reserve(directory, name)
    try:
        with opened_file(folder_fd, origin_name) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        raise
    return path


def reserve(directory: Path, name: str) -> Path:
    """Create an empty file under a name that is not in use."""
    for path in _candidates(directory, name):
        try:
            path.touch(exist_ok=False, mode=0o600)
        except FileExistsError:
            continue
        return path
    raise AssertionError("unreachable: the candidates do not end")


def _candidates(directory: Path, name: str) -> Iterator[Path]:
    yield directory / name
    stem, suffix = Path(name).stem, Path(name).suffix
    number = 1
    while True:
        yield directory / f"{stem}_{number}{suffix}"
        number += 1
