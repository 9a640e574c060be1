"""Folders of one run's files, and the file that a name in a prompt means.

Names are ComfyUI's: `prefix_00001_.png`, counted on from the highest number in the folder. A file is created
exclusively before anything is written to it, so engines that share a folder never write over each other's files.
"""

from __future__ import annotations

import errno
import os
import random
import re
import string
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from darkroom.engine.errors import BadFileName, BadInputFile
from darkroom.engine.runtime.file_scope import FileScope

FileKind = Literal["output", "temp", "input"]

_ANNOTATED = re.compile(r"^(?P<name>.*?) ?\[(?P<kind>input|output|temp)\]$", re.DOTALL)
_TEMP_SUFFIX_LETTERS = 5
MAX_SHOWN_LENGTH = 200
MOST_FOLDERS = 64  # whose last numbers are remembered
BAD_NAMES = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.ENOTDIR, errno.EISDIR})


@dataclass(frozen=True, slots=True)
class FileFolders:
    """The three folders that names in prompts and results are relative to. All absolute."""

    input: Path
    output: Path
    temp: Path

    def of(self, kind: FileKind) -> Path:
        return {"input": self.input, "output": self.output, "temp": self.temp}[kind]

    def path(self, name: str) -> Path:
        """Return the path of `"photo.png"` or `"photo.png [output]"`, which need not exist.

        Raises ValueError when the name leaves its folder.
        """
        match = _ANNOTATED.match(name)
        if match is None:
            return inside(self.input, name)
        kind: Any = match["kind"]
        return inside(self.of(kind), match["name"])

    def has(self, item: Mapping[str, object]) -> bool:
        """Return True where the file that a result shows (`filename`, `subfolder`, `type`) exists."""
        kind = item.get("type")
        if kind not in ("input", "output", "temp"):
            return True  # no file of ours
        try:
            return inside(self.of(kind), os.path.join(str(item.get("subfolder", "")), str(item["filename"]))).is_file()
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that was created empty for its writer."""

    path: Path
    filename: str
    subfolder: str
    kind: FileKind

    def shown(self) -> dict[str, str]:
        """Return the file as results and the history name it."""
        return {"filename": self.filename, "subfolder": self.subfolder, "type": self.kind}


class FileNumbers:
    """Numbers of the files that runs have created last, by folder and name; shared by all runs.

    They save reading a folder of many thousand files for each file, while its time of change is that of the last
    creation here. What others create within the same tick of the clock goes unnoticed: that name is then taken, and
    the next number is tried.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folders: OrderedDict[Path, tuple[int, dict[str, int]]] = OrderedDict()

    def highest(self, folder: Path, name: str) -> int:
        """Return the highest number among the files `name_<number>_...` of a folder; 0 when there is none."""
        with self._lock:
            changed_ns, numbers = self._folders.get(folder, (0, {}))
            if name in numbers and folder.stat().st_mtime_ns == changed_ns:
                return numbers[name]
        return highest_number(os.listdir(folder), name)

    def created(self, folder: Path, name: str, number: int) -> None:
        """Record the number of a file that was created just now."""
        with self._lock:
            self._folders[folder] = folder.stat().st_mtime_ns, {name: number}
            self._folders.move_to_end(folder)
            while len(self._folders) > MOST_FOLDERS:
                self._folders.popitem(last=False)


class RunFiles:
    """The files of one run. Used by one thread at a time; the functions given to `submit` run on the pool.

    `before_reading` is called before a path is given out to be read: the run before may still be writing there.
    `max_pixels` returns how many pixels all frames of an image may have together, as of now, `free_bytes` how much
    memory a decoded video or audio may take.
    """

    def __init__(
        self,
        folders: FileFolders,
        pool: Executor,
        before_reading: Callable[[], None] = lambda: None,
        max_pixels: Callable[[], int] = lambda: sys.maxsize,
        free_bytes: Callable[[], int] = lambda: sys.maxsize,
        numbers: FileNumbers | None = None,
    ) -> None:
        self.folders = folders
        self._numbers = numbers or FileNumbers()
        self.max_pixels = max_pixels
        self.free_bytes = free_bytes
        self._before_reading = before_reading
        self._scope: FileScope | None = None
        self._unsettled: list[Path] = []
        self._pool = pool
        self._writes: list[Future[None]] = []
        self._created: list[Path] = []
        self._next: dict[tuple[Path, str], int] = {}
        self._temp_suffix = "_temp_" + "".join(random.choices(string.ascii_lowercase, k=_TEMP_SUFFIX_LETTERS))

    def save_path(
        self,
        prefix: str,
        width: int = 0,
        height: int = 0,
        kind: Literal["output", "temp"] = "output",
        suffix: str = ".png",
        batch_index: int = 0,
    ) -> OutputFile:
        """Create the next file of that name and say where it is.

        `prefix` may name sub-folders and hold `%width%`, `%height%`, `%batch_num%`, `%year%`, `%month%`, `%day%`,
        `%hour%`, `%minute%` and `%second%`. A temporary file's name gets letters that are this run's own.
        Raises BadFileName when no file can have it.
        """
        try:
            return self._save_path(prefix, width, height, kind, suffix, batch_index)
        except ValueError as error:
            raise BadFileName(_no_name(prefix, str(error))) from None
        except OSError as error:
            if error.errno not in BAD_NAMES:
                raise
            raise BadFileName(_no_name(prefix, str(error.strerror))) from None

    def _save_path(
        self, prefix: str, width: int, height: int, kind: Literal["output", "temp"], suffix: str, batch_index: int
    ) -> OutputFile:
        if kind == "temp":
            prefix += self._temp_suffix
        prefix = os.path.normpath(fill_placeholders(prefix, width, height, time.localtime()))
        subfolder, name = os.path.split(prefix)
        root = self.folders.of(kind)
        folder = inside(root, subfolder)
        folder.mkdir(parents=True, exist_ok=True)
        number = self._next.get((folder, name)) or self._numbers.highest(folder, name) + 1
        while True:
            filename = f"{name.replace('%batch_num%', str(batch_index))}_{number:05}_{suffix}"
            number += 1
            try:
                os.close(os.open(folder / filename, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            except FileExistsError:
                continue
            self._next[folder, name] = number
            self._numbers.created(folder, name, number - 1)
            self._created.append(folder / filename)
            self._unsettled.append(folder / filename)
            return OutputFile(folder / filename, filename, subfolder, kind)

    def submit(self, write: Callable[[], None]) -> None:
        """Encode and write on the pool; `join` waits for it."""
        self._writes.append(self._pool.submit(write))

    def write_now(self, output: OutputFile, write: Callable[[], None]) -> None:
        """Encode and write on this thread, where images are computed while they are written.

        The file is removed when that fails.
        """
        try:
            write()
        except BaseException:
            output.path.unlink(missing_ok=True)
            raise

    @property
    def is_writing(self) -> bool:
        return any(not write.done() for write in self._writes)

    def join(self) -> None:
        """Wait for all writes. Raises the first error among them; what was begun since the last time is then gone."""
        writes, self._writes = self._writes, []
        unsettled, self._unsettled = self._unsettled, []
        errors = [error for write in writes if (error := write.exception()) is not None]
        if errors:
            for path in unsettled:
                path.unlink(missing_ok=True)
            raise errors[0]

    def input_path(self, name: str) -> Path:
        """Return `FileFolders.path`, once a pending write to it is done.

        Raises BadInputFile, ForeignFile for the file of another run.
        """
        self._before_reading()
        try:
            path = self.folders.path(str(name))
            self.check_own(path, name)
            is_there = path.is_file()
        except BadInputFile:
            raise
        except (OSError, ValueError):  # too long, or outside
            is_there = False
        if not is_there:
            raise BadInputFile(f"{shortened(name)}: no such file; expected the name of a file in the input folder")
        return path

    def input_folder(self, name: str) -> Path:
        """Return a folder below the input folder, once a pending write is done. Raises BadInputFile.

        Each file in it needs `check_own` before it is read.
        """
        self._before_reading()
        try:
            path = inside(self.folders.input, str(name))
            is_there = path.is_dir()
        except (OSError, ValueError):  # too long, or outside
            is_there = False
        if not is_there:
            raise BadInputFile(f"{shortened(name)}: no such folder; expected the name of one in the input folder")
        return path

    def limit_to(self, own: Iterable[str], shown: Callable[[], Iterable[Mapping[str, object]]]) -> None:
        """Refuse files of other runs from here on.

        The names `own`, what this run saves or shows, and what the operator put into the input folder can be read.
        """
        folders = self.folders
        self._scope = FileScope(folders.input, folders.output, folders.temp, frozenset(own), shown)

    def check_own(self, path: Path, name: str) -> None:
        """Raise ForeignFile (a ValueError) for a file that this run may not read."""
        if self._scope is not None:
            self._scope.check(path, name, self._created)

    def close(self) -> None:
        """Wait for what is still being written and take away files that nothing was written to."""
        for write in self._writes:
            write.exception()
        self._writes.clear()
        for path in self._created:
            try:
                if path.stat().st_size == 0:
                    path.unlink()
            except FileNotFoundError:
                continue  # somebody else has taken it away


def _no_name(prefix: str, why: str) -> str:
    return f"filename_prefix {shortened(prefix)}: {why}; expected a name, or a path below the output folder"


def shortened(name: object) -> str:
    """Return a caller's name as errors repeat it."""
    text = repr(name)
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[:MAX_SHOWN_LENGTH]}..."


def inside(folder: Path, name: str) -> Path:
    """Resolve a name below a folder; links within the folder are followed.

    Raises ValueError when it would be elsewhere.
    """
    path = Path(os.path.abspath(folder / name))
    if "\0" in name or not path.is_relative_to(folder):
        raise ValueError(f"{shortened(name)} is outside its folder")
    return path


def fill_placeholders(prefix: str, width: int, height: int, now: time.struct_time) -> str:
    if "%" not in prefix:
        return prefix
    values = {
        "width": str(width),
        "height": str(height),
        "year": str(now.tm_year),
        "month": f"{now.tm_mon:02}",
        "day": f"{now.tm_mday:02}",
        "hour": f"{now.tm_hour:02}",
        "minute": f"{now.tm_min:02}",
        "second": f"{now.tm_sec:02}",
    }
    for name, value in values.items():
        prefix = prefix.replace(f"%{name}%", value)
    return prefix


def highest_number(names: list[str], prefix: str) -> int:
    """Return the highest number among files called `prefix_<number>_...`; 0 when there is none."""
    start = len(prefix) + 1
    highest = 0
    for name in names:
        if name[:start] != f"{prefix}_":
            continue
        digits = name[start:].split("_", 1)[0]
        if digits.isdecimal():
            highest = max(highest, int(digits))
    return highest
