"""Collection of the files that a run saved: linked, copied or downloaded into the job's folder.

`listing.py` decides what counts as an output, and `collect_outputs` retrieves it. From then on delivery,
links and retention use the job's folder only. A file that the engine overwrites or that two jobs share has no effect on
other jobs.

A node may also show texts and other values. They are stored in the record itself, or in a file if they are long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from darkroom.worker.errors import DeliveryFailed, WorkerError
from darkroom.worker.outputs.byte_budget import ByteBudget
from darkroom.worker.outputs.claimed_outputs import ClaimedOutputs
from darkroom.worker.outputs.clean_names import clean_name, clean_subfolder
from darkroom.worker.outputs.job_files import link_or_copy, make_empty, reserve
from darkroom.worker.outputs.listing import InlineOutput, ListedFile, listed_outputs
from darkroom.worker.outputs.media_types import look_at
from darkroom.worker.outputs.sequences import sequence_of

NEVER_EMPTY = ("image/", "video/", "audio/")
MAX_INLINE_BYTES = 256 * 1024


class FileSource(Protocol):
    """The file access of an engine. `folder_of` returns None if its files are not on this machine's disk."""

    def folder_of(self, kind: str) -> Path | None: ...

    async def view(self, filename: str, subfolder: str, kind: str, target: Path, max_bytes: int | None = None) -> None:
        """Copy a file to `target`; stop within one chunk after `max_bytes`."""
        ...


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


@dataclass(frozen=True, slots=True)
class _Taken:
    """An output being collected.

    `item` is a ListedFile if the file is not on this machine. `origin` is its file in the engine's output folder.
    """

    item: Output | InlineOutput | ListedFile
    origin: Path | None = None


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
        await asyncio.to_thread(make_empty, job_directory)  # leaves room to store the job's end
        raise DeliveryFailed(f"The outputs cannot be stored: {error.strerror or error}") from None
    except WorkerError:
        await asyncio.to_thread(make_empty, job_directory)
        raise


def _take_local_files(
    listed: Sequence[ListedFile | InlineOutput],
    directory: Path,
    source: FileSource,
    holder_of: Callable[[Path], Path | None],
    budget: ByteBudget,
) -> list[_Taken]:
    """Take all local files in one thread call, since each call costs as much as a link."""
    make_empty(directory)
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
    path = await asyncio.to_thread(reserve, directory, clean_name(listed.filename))
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
    path = reserve(directory, clean_name(f"{inline.output_type}_{inline.node_id}.{'txt' if is_text else 'json'}"))
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


def _output(listed: ListedFile, path: Path) -> Output:
    """Return the output of a file. Raises DeliveryFailed for an image, video or audio without a byte."""
    media_type, size_bytes = look_at(path)
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
                path = link_or_copy(root, place, directory, name)
                budget.spend(path.stat().st_size, listed.node_id)
                return origin, path
    raise DeliveryFailed(f"{name} of node {listed.node_id} is not there", node_id=listed.node_id)
