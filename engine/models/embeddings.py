"""Textual inversions (Gal et al. 2022, arXiv 2208.01618): rows of a text encoder's input, in files named in prompts."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.inert_pickle import plain, read_inert
from darkroom.engine.formats.pickle_file import check_size, check_sizes, is_plain, is_zip, read_pickle
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.safetensors_file import SafetensorsFile
from darkroom.engine.log_context import report_warning

ENDINGS = (".safetensors", ".pt", ".bin")
EXPECTED = "a textual inversion: a vector of numbers, or rows of them"

log = logging.getLogger(__name__)


class EmbeddingFinder:
    """Finder of the textual inversions named after `embedding:` in prompts, for one text encoder.

    `roots` gives the folders as of now. `key` is the name of the encoder (`clip_l`) in files for several, `width` that
    of its rows.
    """

    def __init__(self, roots: Callable[[], Sequence[Path]], *, key: str, width: int) -> None:
        self.roots = roots
        self.key = key
        self.width = width

    def __call__(self, text: str) -> tuple[torch.Tensor | None, str]:
        """Return (rows `[n, D]` or `[D]`, the remaining text) of `"name and more words"`.

        A name may have commas around it, which are treated as text. Without such a file the rows are None, and the
        prompt is encoded without them. Raises `BadModelFile` for a file with something else than rows, on which
        ComfyUI fails as well.
        """
        words = text.split()
        if not words:
            return None, ""
        name, leftover = words[0], " ".join(words[1:])
        rows = self._load(name)
        bare = name.strip(",")
        if rows is None and bare != name:
            rows, leftover = self._load(bare), f"{name[len(bare) :]} {leftover}"
        if rows is None and not find_embedding(self.roots(), bare):
            message = f"embedding:{bare} does not exist and is left out of the prompt"
            report_warning(log, "embedding_left_out", message)
        return rows, leftover

    def _load(self, name: str) -> torch.Tensor | None:
        path = find_embedding(self.roots(), name)
        if path is None:
            return None
        try:
            rows = stored_rows(path, key=self.key, width=self.width)
        except BadModelFile as error:
            message = f"embedding:{name} cannot be read and is left out of the prompt: {error}"
            report_warning(log, "embedding_left_out", message)
            return None
        return checked_rows(path, rows)


def find_embedding(roots: Sequence[Path], name: str) -> Path | None:
    """Find a file by name, with or without its extension, in one of the folders or below; never outside."""
    for folder in _folders(roots):
        path = Path(os.path.normpath(folder / name))
        if not path.is_relative_to(folder):
            continue
        candidates = [path, *(path.with_name(path.name + ending) for ending in ENDINGS)]
        found = next((candidate for candidate in candidates if candidate.is_file()), None)
        if found is not None:
            return found
    return None


def _folders(roots: Sequence[Path]) -> Iterator[Path]:
    """Yield the folders themselves first, then those below, by name."""
    yield from roots
    for root in roots:
        for place, folders, _ in os.walk(root, followlinks=True):
            folders.sort()
            if Path(place) != root:
                yield Path(place)


def embedding_rows(path: Path, *, key: str, width: int) -> torch.Tensor:
    """Return `[n, D]` or `[D]` of any of the formats training programs write. Raises `BadModelFile`."""
    return checked_rows(path, stored_rows(path, key=key, width=width))


@refuses(EXPECTED)
def stored_rows(path: Path, *, key: str, width: int) -> object:
    """Return the rows that a file has for an encoder. Raises `BadModelFile` where it cannot be read or has none."""
    content: Any
    if path.suffix.lower() == ".safetensors":
        file = SafetensorsFile(path)
        content = {name: file.tensor(name) for name in file.tensors}
    else:
        content = _unpickled(path)
    rows = _rows(path, content, key, width)
    if rows is None:
        raise BadModelFile(path.name, "no rows of a text encoder", EXPECTED)
    return rows


def _unpickled(path: Path) -> Any:
    """Return the content of a pickle; objects of classes of its trainer's as dictionaries."""
    try:
        return read_pickle(path)
    except BadModelFile:
        if not is_zip(path):
            raise
        content = plain(read_inert(path))
        check_sizes(path, content)
        return content


@refuses(EXPECTED)
def checked_rows(path: Path, rows: object) -> torch.Tensor:
    """Return rows that an encoder can take. Raises `BadModelFile` for anything but a vector or a matrix."""
    if not isinstance(rows, torch.Tensor):
        raise BadModelFile(path.name, f"an embedding that is a {type(rows).__name__}, no tensor", EXPECTED)
    if not is_plain(rows) or rows.ndim not in (1, 2) or not rows.numel() or not rows.is_floating_point():
        found = f"an embedding of the shape {list(rows.shape)} and type {str(rows.dtype).removeprefix('torch.')}"
        raise BadModelFile(path.name, found, EXPECTED)
    return rows


def _rows(path: Path, content: object, key: str, width: int) -> object:
    """Return the value that holds the rows, None where nothing does."""
    if isinstance(content, list):
        vectors = [
            tensor
            for item in content
            for tensor in (item.values() if isinstance(item, Mapping) else (item,))
            if isinstance(tensor, torch.Tensor) and tensor.ndim and tensor.shape[-1] == width
        ]
        return _joined(path, [tensor.reshape(-1, tensor.shape[-1]) for tensor in vectors])
    if isinstance(content, torch.Tensor):
        return content
    if not isinstance(content, Mapping):
        return None
    if "string_to_param" in content:
        held = content["string_to_param"]
        return next(iter(held.values()), None) if isinstance(held, Mapping) else held
    if key in content:
        return content[key]
    for ending in (".string_to_param.*", f".{key}"):
        bundled = [
            tensor for name, tensor in content.items() if name.startswith("bundle_emb.") and name.endswith(ending)
        ]
        if bundled:
            return _joined(path, bundled)
    return next(iter(content.values()), None)


def _joined(path: Path, tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return tensors one after the other. Raises `BadModelFile` where a file holds few of them many times."""
    check_size(path, sum(tensor.numel() * tensor.element_size() for tensor in tensors), "rows")
    return torch.cat(list(tensors)) if tensors else None
