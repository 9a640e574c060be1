"""Cache of the networks of model files; each file's weights are held once, all in the one ModelPool."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.mapped_file import MappedFile
from darkroom.engine.formats.weight_file import all_tensors, open_weights
from darkroom.engine.formats.weight_source import source_of
from darkroom.engine.models.file_state import FileState, has_changed, state_of
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.recent_models import RecentModels
from darkroom.engine.models.weight_handle import WeightHandle

# What a network of a part is to the pool.
ROLES: Mapping[str, str] = {
    "unet": "unet", "diffusers unet": "unet", "controlnet": "controlnet", "controlnet upon": "controlnet",
    "clip": "text_encoder", "clip on the CPU": "text_encoder", "clip vision": "vision", "vae": "vae",
    "further vae": "vae",
    "photomaker": "vision", "audio encoder": "vision", "background removal": "vision",
    "moge": "vision",
}  # fmt: skip


class KeepsWeights(Protocol):
    """Function that puts a network into the pool: (name for logs, network) -> handle.

    `on_cpu`: it always computes on the CPU. `role` (`ROLES`, else `other`) determines its place, `source` is where its
    weights can be read again.
    """

    def __call__(
        self, name: str, module: torch.nn.Module, *, role: Any = "other", on_cpu: bool = False, source: Any = None
    ) -> WeightHandle: ...


class LoadedFiles:
    """Networks and tensors of files, by the state of the file they were read from.

    A file that is still in use, or held by `recent`, is not read again unless it changed on disk. `make_room(bytes of a
    file)` is called before a file is read, `on_read(seconds)` when its networks are built, None when that failed.
    """

    def __init__(
        self,
        folders: ModelFolders,
        keep: KeepsWeights,
        recent: RecentModels | None = None,
        make_room: Callable[[int], None] = lambda num_bytes: None,
        on_read: Callable[[float | None], None] = lambda seconds: None,
    ) -> None:
        self.folders = folders
        self._keep = keep
        self._handles: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
        self._mapped: weakref.WeakKeyDictionary[Any, FileState] = weakref.WeakKeyDictionary()  # by its mapping
        self._parts: dict[
            tuple[FileState, tuple[Any, ...]], tuple[Any, ...]
        ] = {}  # of those asked for, what a file has
        self._recent = RecentModels(0) if recent is None else recent
        self._make_room = make_room
        self._on_read = on_read

    # --- files ---

    def path_of(self, kind: str, name: str) -> Path:
        """Return the path of a file, also of one that is being downloaded.

        Raises `BadModelFile` when no folder of its kind has it.
        """
        path = self.folders.path(kind, name) or self.folders.arriving_path(kind, name)
        if path is None:
            raise BadModelFile(name, f"no such file among the {kind}", "one of the names the node offers")
        return path

    def state(self, kind: str, name: str) -> FileState:
        """Return the state that a file has now; a file of the same state has the same content."""
        return state_of(self.path_of(kind, name))

    def text(self, kind: str, name: str) -> str:
        """Read a text file (a configuration)."""
        return self.path_of(kind, name).read_text("utf-8", errors="replace")

    def tensors(self, kind: str, name: str) -> dict[str, torch.Tensor]:
        """Return the tensors of a file that is not a network of its own (an embedding).

        Those of a mapped file are read when they are accessed.
        """
        return self.tensors_and_metadata(kind, name)[0]

    def tensors_and_metadata(self, kind: str, name: str) -> tuple[dict[str, torch.Tensor], Mapping[str, str]]:
        """Return the tensors of such a file (a LoRA), and its metadata, empty for a file without."""
        path = self.path_of(kind, name)
        state, file = state_of(path), open_weights(path)
        if isinstance(file, MappedFile):
            self._mapped[file.mapping] = state
        return all_tensors(file), file.metadata

    # --- networks ---

    def keep(self, label: str, name: str, network: torch.nn.Module) -> WeightHandle:
        """Put a network that is of no file into the pool. `label` is its part (`ROLES`)."""
        return self._keep(name, network, role=ROLES.get(label, "other"))

    def one(
        self,
        path: Path,
        part: Any,
        load: Callable[[], torch.nn.Module],
        *,
        beside: Sequence[Path] = (),
        on_cpu: bool = False,
    ) -> WeightHandle:
        """Return the network of a file and of those `beside` it. `part` names it among what the file has."""

        def key() -> tuple[FileState, Any]:
            own = part if isinstance(part, tuple) else (part,)
            return state_of(path), (*own, *map(state_of, beside)) if beside else part

        file, full_part = key()
        handles = self._known(file, (full_part,))
        if handles is None:
            with self._reading(file):
                handles = self._kept_handles(path, (full_part,), (load(),), on_cpu=on_cpu)
            file, full_part = key()
            self._register(file, (full_part,), handles)
        return handles[0]

    def several(
        self, path: Path, parts: Sequence[Any], load: Callable[[], Sequence[torch.nn.Module | None]]
    ) -> list[WeightHandle | None]:
        """Return the networks of a file by its parts, None for those that it lacks; `load` returns them likewise."""
        file = state_of(path)
        present = self._parts.get((file, tuple(parts)), tuple(parts))
        handles = self._known(file, present)
        if handles is None:
            with self._reading(file):
                found = {part: item for part, item in zip(parts, load(), strict=True) if item is not None}
                present = tuple(found)
                handles = self._kept_handles(path, present, tuple(found.values()))
            file = state_of(path)
            self._parts[file, tuple(parts)] = present
            self._register(file, present, handles)
        by_part = dict(zip(present, handles, strict=True))
        return [by_part.get(part) for part in parts]

    def is_loaded(self, path: Path) -> bool:
        """Return True if weights of the file, in any version of it, are in use or held."""
        return any(file.path == str(path) for file, _ in list(self._handles))

    def forget_changed(self) -> list[str]:
        """Forget files whose content changed since they were read, and return their paths.

        A file has changed when it was written to or replaced by another. Only files from which something is still held
        are considered. They are read again when they are requested next. Each change is reported once.
        """
        read = {file for file, _ in list(self._handles)} | set(self._mapped.values())
        changed = {file for file in read if has_changed(file)}
        if changed:
            self._parts = {key: parts for key, parts in self._parts.items() if key[0] not in changed}
            for file, part in list(self._handles):
                if file in changed:
                    del self._handles[file, part]
            for mapping, file in list(self._mapped.items()):
                if file in changed:
                    del self._mapped[mapping]
        return sorted(file.path for file in changed)

    @contextmanager
    def _reading(self, file: FileState) -> Iterator[None]:
        """Make room for a file, and report the time of the block, or its failure."""
        self._make_room(file.num_bytes)
        began_seconds = time.monotonic()
        try:
            yield
        except Exception:
            self._on_read(None)
            raise
        self._on_read(time.monotonic() - began_seconds)

    def _known(self, file: FileState, parts: tuple[Any, ...]) -> list[WeightHandle] | None:
        handles = [self._handles.get((file, part)) for part in parts]
        found = [handle for handle in handles if handle is not None]
        if len(found) < len(parts):
            return None
        self._recent.use((file, parts))
        return found

    def _kept_handles(
        self, path: Path, parts: tuple[Any, ...], networks: tuple[torch.nn.Module, ...], *, on_cpu: bool = False
    ) -> list[WeightHandle]:
        """Put the networks of a file into the pool; those that are being downloaded come to their device with it.

        Raises DownloadEnded where their download fails.
        """
        handles = []
        for part, network in zip(parts, networks, strict=True):
            label = part if isinstance(part, str) else part[0]
            name, role, source = f"{path.name} {label}", ROLES.get(label, "other"), source_of(network)
            handle = self._keep(name, network, role=role, on_cpu=on_cpu, source=source)
            if source is not None and source.is_arriving:
                with handle.in_use():
                    pass
            handles.append(handle)
        for network in networks:
            source = source_of(network)
            if source is not None:
                source.settle()
        return handles

    def _register(self, file: FileState, parts: tuple[Any, ...], handles: list[WeightHandle]) -> None:
        """Find these handles again by their file, as long as they are held."""
        for part, handle in zip(parts, handles, strict=True):
            self._handles[file, part] = handle
        if all(source_of(handle.module) is not None for handle in handles):  # what cannot be read again stays in RAM
            self._recent.note((file, parts), handles)
