"""Textual inversions (Gal et al. 2022, arXiv 2208.01618): rows of a text encoder's input, in files named in prompts."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from engine.errors import BadModelFile
from engine.formats.pickle_file import read_pickle
from engine.formats.safetensors_file import SafetensorsFile

ENDINGS = (".safetensors", ".pt", ".bin")

log = logging.getLogger(__name__)


class EmbeddingFinder:
    """Finder of the textual inversions named after `embedding:` in prompts, for one text encoder.

    `roots` gives the folders as of now. `key` is the name of the encoder (`clip_l`) in files for several, `width` that
    of its rows.
    """

    def __init__(self, roots: Callable[[], Sequence[Path]], *, key: str, width: int) -> None:
        self._roots = roots
        self._key = key
        self._width = width

    def __call__(self, text: str) -> tuple[torch.Tensor | None, str]:
        """Return (rows `[n, D]` or `[D]`, the remaining text) of `"name and more words"`.

        A name may have commas around it, which are treated as text. Without such a file the rows are None, and the
        prompt is encoded without them.
        """
        words = text.split()
        if not words:
            return None, ""
        name, leftover = words[0], " ".join(words[1:])
        rows = self._load(name)
        bare = name.strip(",")
        if rows is None and bare != name:
            rows, leftover = self._load(bare), f"{name[len(bare) :]} {leftover}"
        if rows is None:
            log.warning("warning, embedding:%s does not exist, ignoring", text)
        return rows, leftover

    def _load(self, name: str) -> torch.Tensor | None:
        path = find_embedding(self._roots(), name)
        if path is None:
            return None
        try:
            return embedding_rows(path, key=self._key, width=self._width)
        except BadModelFile as error:
            log.warning("error loading embedding, skipping loading: %s", error)
            return None


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
    content: Any
    if path.suffix.lower() == ".safetensors":
        file = SafetensorsFile(path)
        content = {name: file.tensor(name) for name in file.tensors}
    else:
        content = read_pickle(path)
    rows = _rows(content, key, width)
    if not isinstance(rows, torch.Tensor):
        raise BadModelFile(path.name, "no rows of a text encoder", "a textual inversion")
    return rows


def _rows(content: object, key: str, width: int) -> object:
    if isinstance(content, list):
        return _joined(
            [
                tensor.reshape(-1, tensor.shape[-1])
                for item in content
                for tensor in item.values()
                if tensor.shape[-1] == width
            ]
        )
    if not isinstance(content, Mapping):
        return None
    if "string_to_param" in content:
        return next(iter(content["string_to_param"].values()), None)
    if key in content:
        return content[key]
    for ending in (".string_to_param.*", f".{key}"):
        bundled = [
            tensor for name, tensor in content.items() if name.startswith("bundle_emb.") and name.endswith(ending)
        ]
        if bundled:
            return _joined(bundled)
    return next(iter(content.values()), None)


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    return torch.cat(list(tensors)) if tensors else None
