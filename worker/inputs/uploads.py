"""Uploaded files: written to the input folder as they arrive and stored by content hash.

A file is partial until its request is accepted, and is removed if the request is refused. A prompt names a stored file
by `upload:<sha256>.<ext>`.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from darkroom.worker.errors import Problem, RequestRejected, RequestTooLarge
from darkroom.worker.inputs.file_checks import check_input
from darkroom.worker.inputs.folder import PARTIAL_PREFIX, InputFolder
from darkroom.worker.inputs.references import UPLOAD_PREFIX, find_named, replace_references
from darkroom.worker.inputs.refusals import FULL_DISK, disk_low
from darkroom.worker.json.values import JsonObject
from darkroom.worker.media.kinds import BrokenFile
from darkroom.worker.media.process.processes import MediaProcesses
from darkroom.worker.settings.outputs import InputLimits

THESE_FILES = "the files of this request"


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A completely received file part. `path` is a partial file until the part is stored."""

    part: str
    path: Path
    digest: str


class Upload:
    """One file part being received. `write` its bytes, then `finish`; `discard` removes any remainder."""

    def __init__(self, part: str, path: Path, max_bytes: int) -> None:
        self.part = part
        self.path = path
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._hash = hashlib.sha256()
        self._file: BinaryIO = path.open("xb")

    def write(self, data: bytes) -> None:
        """Append bytes to the file. Raises RequestTooLarge, DiskLow."""
        self._num_bytes += len(data)
        if self._num_bytes > self._max_bytes:
            limit = self._max_bytes
            raise RequestTooLarge(f"The file {self.part} is over {limit} bytes", limit_bytes=limit, field=self.part)
        self._hash.update(data)
        try:
            self._file.write(data)
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            raise disk_low(THESE_FILES) from None

    def finish(self) -> ReceivedFile:
        self._file.close()
        return ReceivedFile(self.part, self.path, self._hash.hexdigest())

    def discard(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)


class UploadedFiles:
    """Storage of file parts. All methods except `begin` read whole files."""

    def __init__(
        self,
        folder: InputFolder,
        limits: InputLimits,
        min_free_bytes: int,
        media_processes: MediaProcesses | None = None,
    ) -> None:
        self._media_processes = media_processes or MediaProcesses()
        self._folder = folder
        self._limits = limits
        self._min_free_bytes = min_free_bytes

    def begin(self, part: str) -> Upload:
        """Open a partial file for a part. Raises DiskLow."""
        self._folder.path.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(self._folder.path).free < self._min_free_bytes:
            raise disk_low(THESE_FILES)
        return Upload(part, self._folder.path / f"{PARTIAL_PREFIX}{uuid.uuid4().hex}", self._limits.max_bytes)

    def place(self, prompt: JsonObject, files: Mapping[str, ReceivedFile], object_info: JsonObject) -> JsonObject:
        """Return the prompt with `upload:` addresses wherever an input that takes a file names a part.

        Raises RequestRejected for a part that no such input names, and for a file of a kind that its input does not
        take.
        """
        named = find_named(prompt, files.keys(), object_info)
        problems = [
            Problem(
                "no input that takes a file names this part", field=part, type="unused_file", allowed=_places(prompt)
            )
            for part in files.keys() - {reference.value for reference in named}
        ]
        addresses = {}
        for reference in named:
            file = files[reference.value]
            try:
                kind = check_input(file.path, reference.media, self._limits, self._media_processes)
                addresses[reference] = f"{UPLOAD_PREFIX}{file.digest}.{kind.extension}"
            except BrokenFile as broken:
                problems.append(
                    Problem(
                        f"the file {file.part} {broken}",
                        field=reference.input_name,
                        node_id=reference.node_id,
                        class_type=reference.class_type,
                        type="input_broken",
                    )
                )
        if problems:
            raise RequestRejected(problems)
        return replace_references(prompt, addresses)

    def keep(self, files: Mapping[str, ReceivedFile], prompt: JsonObject, job_id: str) -> None:
        """Store the files of a placed prompt under their names and hold them for the job."""
        paths = {file.digest: file.path for file in files.values()}
        for name in uploaded_names(prompt):
            path = paths.get(name.partition(".")[0])
            if path is not None and path.exists():
                self._folder.keep(path, name, is_only_copy=True)
            self._folder.hold(name, job_id)

    def hold(self, prompt: JsonObject, job_id: str) -> None:
        """Hold the files of a job from an earlier process."""
        for name in uploaded_names(prompt):
            self._folder.hold(name, job_id)


def uploaded_names(prompt: JsonObject) -> list[str]:
    """Return the names of the uploaded files in a placed prompt."""
    nodes = (node.get("inputs") for node in prompt.values() if isinstance(node, Mapping))
    values = (value for inputs in nodes if isinstance(inputs, Mapping) for value in inputs.values())
    return [value.removeprefix(UPLOAD_PREFIX) for value in values if str(value).startswith(UPLOAD_PREFIX)]


def _places(prompt: JsonObject) -> str:
    return f"the value of an input that takes a file, in one of the nodes {', '.join(map(str, prompt))}"
