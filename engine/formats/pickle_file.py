"""Reader of pickled weights (`.ckpt`, `.pt`, `.pth`, `.bin`) with torch's weights-only reader, which runs no code."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from engine.errors import BadModelFile
from engine.formats.mapped_file import TensorPlace

EXPECTED = "a file of weights that torch's weights-only reader takes"


def read_pickle(path: Path) -> Any:
    """Read a pickle of tensors, numbers and texts in lists and dictionaries. Raises `BadModelFile`."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip(path))
    except pickle.UnpicklingError as error:
        found = f"a pickle that is damaged or holds more than weights ({str(error).splitlines()[0]})"
        raise BadModelFile(path.name, found, EXPECTED) from error
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        raise BadModelFile(path.name, f"an unreadable file ({error})", EXPECTED) from error


def is_zip(path: Path) -> bool:
    """Return True for torch's zip format, which can be mapped; older files are a plain pickle."""
    with path.open("rb") as file:
        return file.read(2) == b"PK"


class PickleFile:
    """A pickled state dictionary with the members of `SafetensorsFile`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        self._tensors = state_dictionary(read_pickle(path))
        if not self._tensors:
            raise BadModelFile(path.name, "a pickle without named tensors", EXPECTED)
        self.tensors = {
            name: TensorPlace(tensor.dtype, tuple(tensor.shape), order, tensor.nbytes)
            for order, (name, tensor) in enumerate(self._tensors.items())
        }

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: place.shape for name, place in self.tensors.items()}

    def tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def state_dictionary(content: object) -> dict[str, torch.Tensor]:
    """Return the named tensors of a training program's file, from under `state_dict` or the only key there is."""
    while isinstance(content, Mapping):
        inner = content.get("state_dict", next(iter(content.values())) if len(content) == 1 else None)
        if not isinstance(inner, Mapping):
            break
        content = inner
    if not isinstance(content, Mapping):
        return {}
    return {str(name): value for name, value in content.items() if isinstance(value, torch.Tensor)}
