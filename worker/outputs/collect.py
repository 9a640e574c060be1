"""Collection of the files that a run saved: linked, copied or downloaded into the job's folder.

`listed_outputs` decides what counts as an output (pure), and `collect_outputs` retrieves it. From then on delivery,
links and retention use the job's folder only. A file that the engine overwrites or that two jobs share has no effect on
other jobs.

A node may also show texts and other values. They are stored in the record itself, or in a file if they are long.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import mimetypes
import os
import re
import shutil
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from worker.errors import DeliveryFailed, OutputsTooLarge, WorkerError
from worker.files.kinds import HEAD_BYTES, kind_of
from worker.json_values import JsonObject
from worker.outputs.claimed_outputs import ClaimedOutputs
from worker.outputs.engine_files import check_regular, opened_file, opened_folder
from worker.outputs.sequences import sequence_of

TEMPORARY = "temp"
SKIPPED_TYPES = frozenset({"preview"})  # no folder of the engine
SKIPPED_LISTS = frozenset({"animated", "unfinished_batch"})  # flags: pictures are animated, a batch is not the last
MAX_INLINE_BYTES = 256 * 1024
COUNTER = re.compile(r"_\d{5,}_?\.\w+$")  # in ComfyUI's names, which are never written to again
MAX_NAME_BYTES = 200
NEVER_EMPTY = ("image/", "video/", "audio/")


class FileSource(Protocol):
    """The file access of an engine. `folder_of` returns None if its files are not on this machine's disk."""

    def folder_of(self, kind: str) -> Path | None: ...

    async def view(self, filename: str, subfolder: str, kind: str, target: Path, max_bytes: int | None = None) -> None:
        """Copy a file to `target`; stop within one chunk after `max_bytes`."""
        ...


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that a node reports as saved. `output_type` is the name of the list that contains it."""

    node_id: str
    output_type: str
    filename: str
    subfolder: str
    kind: str


@dataclass(frozen=True, slots=True)
class InlineOutput:
    """A text or another JSON value that a node shows, in the list `output_type`."""

    node_id: str
    output_type: str
    value: Any

    @property
    def content(self) -> str:
        return self.value if isinstance(self.value, str) else json.dumps(self.value)

    def as_record(self) -> dict[str, object]:
        """Return the output record, with the fields of a file record left empty for clients that always read them."""
        is_text = isinstance(self.value, str)
        return {
            "filename": "",
            "local_path": "",
            "subfolder": "",
            "type": "text" if is_text else "value",
            "node_id": self.node_id,
            "output_type": self.output_type,
            "text" if is_text else "value": self.value,
        }


@dataclass(frozen=True, slots=True)
class Output:
    """A file in the job's folder."""

    filename: str
    path: Path
    subfolder: str
    kind: str
    node_id: str
    output_type: str
    media_type: str
    size_bytes: int

    def as_record(self) -> dict[str, object]:
        """Return the fields of the result, and internal ones: `path` below the job's folder, type and size."""
        return {
            "filename": self.filename,
            "local_path": str(self.path),
            "subfolder": self.subfolder,
            "type": self.kind,
            "node_id": self.node_id,
            "output_type": self.output_type,
            "path": self.path.name,
            "media_type": self.media_type,
            "size_bytes": self.size_bytes,
        }


@dataclass(slots=True)
class ByteBudget:
    """The number of bytes that a job's outputs may still add. None: no limit."""

    max_bytes: int | None
    spent_bytes: int = 0

    @property
    def left(self) -> int | None:
        return None if self.max_bytes is None else self.max_bytes - self.spent_bytes

    def check(self, size_bytes: int, node_id: str) -> None:
        """Raise OutputsTooLarge, which names the node, if fewer than `size_bytes` are left."""
        value = self.spent_bytes + size_bytes
        if self.max_bytes is not None and value > self.max_bytes:
            message = f"outputs: too many bytes; got {value} with node {node_id}, expected at most {self.max_bytes}"
            raise OutputsTooLarge(message, limit="output_bytes", node_id=node_id, value=value, allowed=self.max_bytes)

    def spend(self, size_bytes: int, node_id: str) -> None:
        """Check the size and subtract it."""
        self.check(size_bytes, node_id)
        self.spent_bytes += size_bytes


@dataclass(frozen=True, slots=True)
class _Taken:
    """An output being collected.

    `item` is a ListedFile if the file is not on this machine. `origin` is its file in the engine's output folder.
    """

    item: Output | InlineOutput | ListedFile
    origin: Path | None = None


def listed_outputs(outputs: Mapping[str, JsonObject]) -> list[ListedFile | InlineOutput]:
    """List everything in a history entry's `outputs`, whatever the list's name.

    Temporary files are left out, unless no node saved any other: then they are what the workflow is for. A node that
    lists `files` lists its pictures there too, so its `images` are skipped then.
    """
    listed = [item for node_id, shown in outputs.items() for item in _listed_by(str(node_id), shown)]
    is_saved = any(isinstance(item, ListedFile) and item.kind != TEMPORARY for item in listed)
    return [item for item in listed if not (is_saved and isinstance(item, ListedFile) and item.kind == TEMPORARY)]


def _listed_by(node_id: str, shown: JsonObject) -> Iterator[ListedFile | InlineOutput]:
    for output_type, items in shown.items():
        is_pictures_of_files = output_type == "images" and shown.get("files")
        if not isinstance(items, list) or output_type in SKIPPED_LISTS or is_pictures_of_files:
            continue
        for item in items:
            if not isinstance(item, Mapping) or "filename" not in item:
                if item is not None:
                    yield InlineOutput(node_id, output_type, item)
                continue
            kind = str(item.get("type") or "output")
            if isinstance(item["filename"], str) and item["filename"] and kind not in SKIPPED_TYPES:
                yield ListedFile(node_id, output_type, item["filename"], str(item.get("subfolder") or ""), kind)


async def collect_outputs(
    outputs: Mapping[str, Mapping[str, object]],
    job_directory: Path,
    source: FileSource,
    claimed_outputs: ClaimedOutputs | None = None,
    max_bytes: int | None = None,
) -> list[Output | InlineOutput]:
    """Bring every listed file into `job_directory`, in the order of the list, with the short texts in between.

    Files of an earlier run are removed first. Raises DeliveryFailed for a file that the engine lists but does not have,
    and if the disk is full; OutputsTooLarge if the total exceeds `max_bytes`; EngineUnreachable from the source.
    """
    claimed_outputs = claimed_outputs or ClaimedOutputs(keeps=True)
    budget = ByteBudget(max_bytes)
    try:
        listed = listed_outputs(outputs)
        here = await asyncio.to_thread(
            _take_local_files, listed, job_directory, source, claimed_outputs.holder_of, budget
        )
        for taken in here:
            if taken.origin is not None and isinstance(taken.item, Output):
                claimed_outputs.claim(taken.origin, taken.item.path)
        collected: list[Output | InlineOutput] = []
        for taken in here:
            item = taken.item
            if isinstance(item, ListedFile):
                collected += await _download_files(item, job_directory, source, budget)
            else:
                collected.append(item)
        return collected
    except OSError as error:
        await asyncio.to_thread(_make_empty, job_directory)  # leaves room to store the job's end
        raise DeliveryFailed(f"The outputs cannot be stored: {error.strerror or error}") from None
    except WorkerError:
        await asyncio.to_thread(_make_empty, job_directory)
        raise


def _take_local_files(
    listed: Sequence[ListedFile | InlineOutput],
    directory: Path,
    source: FileSource,
    holder_of: Callable[[Path], Path | None],
    budget: ByteBudget,
) -> list[_Taken]:
    """Take all local files in one thread call, since each call costs as much as a link."""
    _make_empty(directory)
    return [
        _take_one_locally(single, directory, source, holder_of, budget)
        for item in listed
        for single in _singles(item, source)
    ]


def _singles(item: ListedFile | InlineOutput, source: FileSource) -> Sequence[ListedFile | InlineOutput]:
    """Return the files of a numbered sequence on this machine, or the item itself."""
    folder = source.folder_of(item.kind) if isinstance(item, ListedFile) else None
    sequence = sequence_of(item.filename) if isinstance(item, ListedFile) else None
    if not isinstance(item, ListedFile) or folder is None or sequence is None:
        return [item]
    return [replace(item, filename=name) for name in sequence.names_in(_origin(folder, item).parent)] or [item]


def _take_one_locally(
    item: ListedFile | InlineOutput,
    directory: Path,
    source: FileSource,
    holder_of: Callable[[Path], Path | None],
    budget: ByteBudget,
) -> _Taken:
    if isinstance(item, InlineOutput):
        content = item.content
        budget.spend(len(content), item.node_id)
        return _Taken(item if len(content) <= MAX_INLINE_BYTES else _write_inline(item, directory))
    folder = source.folder_of(item.kind)
    if folder is None:
        return _Taken(item)
    origin, path = _take_local(folder, item, directory, clean_name(item.filename), holder_of, budget)
    return _Taken(_output(item, path), origin if item.kind == "output" else None)


async def _download_files(listed: ListedFile, directory: Path, source: FileSource, budget: ByteBudget) -> list[Output]:
    """Download a file, or those of a numbered sequence up to the first that the engine does not have."""
    sequence = sequence_of(listed.filename)
    if sequence is None:
        return [await _download_file(listed, directory, source, budget)]
    found: list[Output] = []
    for name in sequence.names():
        try:
            found.append(await _download_file(replace(listed, filename=name), directory, source, budget))
        except DeliveryFailed:
            return found or [await _download_file(listed, directory, source, budget)]
    raise AssertionError("unreachable: the names do not end")


async def _download_file(listed: ListedFile, directory: Path, source: FileSource, budget: ByteBudget) -> Output:
    path = await asyncio.to_thread(_reserve, directory, clean_name(listed.filename))
    try:
        await source.view(listed.filename, listed.subfolder, listed.kind, path, budget.left)
    except WorkerError:
        await asyncio.to_thread(path.unlink, True)
        raise
    output = await asyncio.to_thread(_output, listed, path)
    budget.spend(output.size_bytes, listed.node_id)
    return output


def _write_inline(inline: InlineOutput, directory: Path) -> Output:
    is_text = isinstance(inline.value, str)
    path = _reserve(directory, clean_name(f"{inline.output_type}_{inline.node_id}.{'txt' if is_text else 'json'}"))
    path.write_text(inline.content, encoding="utf-8", errors="replace")
    return Output(
        filename=path.name,
        path=path,
        subfolder="",
        kind="output",
        node_id=inline.node_id,
        output_type=inline.output_type,
        media_type="text/plain" if is_text else "application/json",
        size_bytes=path.stat().st_size,
    )


def _make_empty(directory: Path) -> None:
    """Empty the folder, which may contain unlisted files from a crash during collection."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in directory.iterdir():
        if path.is_file():
            path.unlink()


def _output(listed: ListedFile, path: Path) -> Output:
    """Return the output of a file. Raises DeliveryFailed for a picture, video or sound without a byte."""
    media_type, size_bytes = _look_at(path)
    if not size_bytes and media_type.startswith(NEVER_EMPTY):
        reason = "its encoder may be missing on this machine, as those of graphics cards"
        raise DeliveryFailed(f"{path.name} of node {listed.node_id} is empty: {reason}", node_id=listed.node_id)
    return Output(
        filename=clean_name(listed.filename),
        path=path,
        subfolder=clean_subfolder(listed.subfolder),
        kind=listed.kind,
        node_id=listed.node_id,
        output_type=listed.output_type,
        media_type=media_type,
        size_bytes=size_bytes,
    )


def _origin(folder: Path, listed: ListedFile) -> Path:
    root = folder.resolve()
    origin = (root / listed.subfolder / listed.filename).resolve()
    if not origin.is_relative_to(root):
        raise DeliveryFailed(f"Node {listed.node_id} names a file outside the output folder", node_id=listed.node_id)
    return origin


def _take_local(
    folder: Path,
    listed: ListedFile,
    directory: Path,
    name: str,
    holder_of: Callable[[Path], Path | None],
    budget: ByteBudget,
) -> tuple[Path, Path]:
    """Link or copy a file of the engine into the job's folder; return both paths.

    If the file has left the engine's folder, it is taken from the job that claimed it.
    """
    origin = _origin(folder, listed)
    for place in (origin, holder_of(origin)):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            if place is not None:
                budget.check(place.lstat().st_size, listed.node_id)  # before anything is copied
                root = folder.resolve() if place is origin else place.parent
                path = _link_or_copy(root, place, directory, name)
                budget.spend(path.stat().st_size, listed.node_id)
                return origin, path
    raise DeliveryFailed(f"{name} of node {listed.node_id} is not there", node_id=listed.node_id)


def _link_or_copy(root: Path, origin: Path, directory: Path, name: str) -> Path:
    """Create a hard link, or a copy if the file systems differ or do not support links. Never overwrites a file.

    Only a file with a counter in its name is linked. A node that always writes to the same name opens the existing
    file, so a link would let it overwrite the previous job's picture.

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
    path = _reserve(directory, name)
    try:
        with opened_file(folder_fd, origin_name) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        raise
    return path


def _reserve(directory: Path, name: str) -> Path:
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


def clean_name(name: str) -> str:
    """Return the last part of a name, safe as a file name, a key and a header.

    Separators, control characters and leading dots are removed.

    >>> clean_name("../../a/b.png")
    'b.png'
    """
    last = name.replace("\\", "/").rpartition("/")[2]
    kept = "".join("_" if unicodedata.category(letter)[0] == "C" else letter for letter in last).strip().lstrip(".")
    stem, suffix = Path(kept).stem, Path(kept).suffix
    room = MAX_NAME_BYTES - len(suffix.encode())
    cut = stem.encode()[: max(room, 0)].decode(errors="ignore") + suffix
    return cut or "output"


def clean_subfolder(subfolder: str) -> str:
    """Return a relative path without `..`, each part cleaned as a name."""
    parts = PurePosixPath(subfolder.replace("\\", "/")).parts
    return "/".join(clean_name(part) for part in parts if part.strip("./ "))


def media_type_of(path: Path, head: bytes) -> str:
    """Return the media type by the first bytes, else by the name."""
    kind = kind_of(head)
    if kind is not None and kind.media_type != "application/octet-stream":
        return kind.media_type
    return mimetypes.guess_type(path.name)[0] or "application/octet-stream"


def _look_at(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        return media_type_of(path, file.read(HEAD_BYTES)), os.fstat(file.fileno()).st_size
