"""FilePrefetch: reads the model files of a prompt into the page cache while the prompt's first nodes compute.

Text encoding then runs while the denoising network's file is still being read. Only the page cache is filled: loading
itself stays on the thread that runs nodes, and gives the same bits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from darkroom.contract.graph.facts import NO_FACTS, NodeFacts
from darkroom.contract.graph.model_inputs import folders_by_input
from darkroom.engine.formats.readahead import PIECE_BYTES, reading_ahead
from darkroom.engine.models.files.folders import ModelFolders

READ_ORDER: Final = (
    "text_encoders", "clip_gguf", "clip_vision", "checkpoints", "diffusion_models", "unet_gguf", "controlnet", "vae",
)  # fmt: skip
"""Kinds of files that are read ahead, in the order in which a prompt needs them."""

FindFacts = Callable[[str], NodeFacts]
"""Facts of a node class by its name, none for an unknown one."""

MAX_SHARE = 0.5  # of the RAM that is free: a file that is larger would push out of the page cache what is needed first

log = logging.getLogger(__name__)


def files_of(prompt: Mapping[str, Any], folders: ModelFolders, find_facts: FindFacts) -> list[Path]:
    """Return the model files that a prompt in API format names and that exist, in the order in which it needs them."""
    named = list(_named(prompt, find_facts))
    ordered = [item for kind in READ_ORDER for item in named if item[0] == kind]
    paths = (folders.path(kind, name) for kind, name in dict.fromkeys(ordered))
    return [path for path in paths if path is not None and path.is_file()]


def _named(prompt: Mapping[str, Any], find_facts: FindFacts) -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of each model file that a node names, by its class's declaration."""
    known: dict[str, Mapping[str, str]] = {}
    for node in prompt.values():
        class_type, inputs = node["class_type"], node.get("inputs", {})
        if class_type not in known:
            known[class_type] = folders_by_input(find_facts(class_type))
        for name, kind in known[class_type].items():
            if isinstance(value := inputs.get(name), str):
                yield kind, value


def read_file(path: Path, stop: threading.Event) -> None:
    """Read a file into the page cache until `stop` is set. Raises OSError."""
    with path.open("rb") as file:
        num_bytes = path.stat().st_size
        with reading_ahead(file.fileno(), [(0, num_bytes)]) as ahead:
            for start in range(0, num_bytes, PIECE_BYTES):
                if stop.is_set():
                    return
                ahead.wait_for(start + PIECE_BYTES)


class FilePrefetch:
    """One background thread at most, which reads the files of the newest prompt.

    `available_bytes` returns the free RAM, `is_loaded` is True for files whose weights are in use. Files of prompts are
    found in `folders` by the facts of its classes; without folders nothing of a prompt is read, as where the processor
    computes, which reading slows. `read` reads a file until its event is set.
    """

    def __init__(
        self,
        available_bytes: Callable[[], int],
        is_loaded: Callable[[Path], bool],
        folders: ModelFolders | None = None,
        find_facts: FindFacts = lambda class_type: NO_FACTS,
        read: Callable[[Path, threading.Event], None] = read_file,
    ) -> None:
        self._available_bytes = available_bytes
        self._is_loaded = is_loaded
        self._folders = folders
        self._find_facts = find_facts
        self._read = read
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin_prompt(self, prompt: Mapping[str, Any]) -> None:
        """Begin to read the model files that a prompt names."""
        if self._folders is not None:
            self.begin(files_of(prompt, self._folders, self._find_facts))

    def begin(self, paths: Sequence[Path]) -> None:
        """Read those of the files that are not loaded and fit into free RAM, instead of what is being read."""
        wanted = [path for path in paths if not self._is_loaded(path) and self._fits(path)]
        if not wanted:
            return
        with self._lock:
            self._stop.set()
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=self._read_all, args=(wanted, self._stop), name="file-prefetch", daemon=True
            )
            self._thread.start()

    def end(self) -> None:
        """End the reading in progress. Waits for one piece of each reader."""
        with self._lock:
            self._stop.set()
        self.wait()

    def wait(self) -> None:
        """Wait until everything is read, or the reading has ended."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _fits(self, path: Path) -> bool:
        try:
            return path.stat().st_size <= MAX_SHARE * self._available_bytes()
        except OSError:
            return False

    def _read_all(self, paths: Sequence[Path], stop: threading.Event) -> None:
        for path in paths:
            began_seconds = time.monotonic()
            try:
                self._read(path, stop)
            except OSError as error:  # the loader of the file reports it
                log.debug("%s is not read ahead: %s", path.name, error)
            if stop.is_set():
                return
            log.debug("%s read ahead in %.2f s", path.name, time.monotonic() - began_seconds)
