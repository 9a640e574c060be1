"""Reader of pickled weights (`.ckpt`, `.pt`, `.pth`, `.bin`) with torch's weights-only reader, which runs no code."""

from __future__ import annotations

import pickle
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.mapped_file import TensorPlace
from darkroom.engine.formats.pickle_program import CostlyPickle, check_legacy, check_program
from darkroom.engine.formats.refusals import find_shape_problem, refusing, shown

EXPECTED = "a file of weights that torch's weights-only reader takes"
MAX_WRAPPINGS = 16  # dictionaries around the named tensors
# Tensors may share their storage, as tied weights do, so all of them may stand for more bytes than the file has.
MAX_TIMES_FILE = 8
FREE_BYTES = 64 << 20
ZIP_START = b"PK\x03\x04"  # as torch tells the formats apart


def read_pickle(path: Path) -> Any:
    """Read a pickle of tensors, numbers and texts in lists and dictionaries. Raises `BadModelFile`."""
    with refusing(path.name, EXPECTED):
        try:
            _check_archive(path)
            check_pickle(path)
            with warnings.catch_warnings(action="ignore"):
                content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip(path))
        except (pickle.UnpicklingError, zipfile.BadZipFile) as error:
            found = f"a pickle that is damaged or holds more than weights ({shown(error)})"
            raise BadModelFile(path.name, found, EXPECTED) from error
        except (RuntimeError, zlib.error) as error:  # torch's archive reader, NotImplementedError for packings
            raise BadModelFile(path.name, f"an unreadable file ({shown(error)})", EXPECTED) from error
        check_sizes(path, content)
    return content


def check_pickle(path: Path) -> None:
    """Refuse a pickle that would not end, or is damaged, by `BadModelFile`; a damaged archive raises RuntimeError."""
    try:
        if is_zip(path):
            check_program(torch._C.PyTorchFileReader(str(path)).get_record("data.pkl"))
        else:
            check_legacy(path)
    except CostlyPickle as error:
        raise BadModelFile(path.name, str(error), EXPECTED) from error
    except ValueError as error:
        found = f"a pickle that is damaged or holds more than weights ({shown(error)})"
        raise BadModelFile(path.name, found, EXPECTED) from error


def is_zip(path: Path) -> bool:
    """Return True for torch's zip format, which can be mapped; older files are a plain pickle."""
    with path.open("rb") as file:
        return file.read(len(ZIP_START)) == ZIP_START


class PickleFile:
    """A pickled state dictionary with the members of `SafetensorsFile`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        self._tensors = state_dictionary(read_pickle(path))
        if not self._tensors:
            raise BadModelFile(path.name, "a pickle without named tensors", EXPECTED)
        with refusing(path.name, EXPECTED):
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
    """Return the named tensors of a training program's file.

    They are under `state_dict`, under `model` beside a `model_config` (MoGe's), or under the only key there is. Empty
    where more than `MAX_WRAPPINGS` dictionaries are around them, as in one that contains itself.
    """
    for _ in range(MAX_WRAPPINGS):
        if not isinstance(content, Mapping):
            return {}
        alone = next(iter(content.values())) if len(content) == 1 else None
        inner = content.get("state_dict", content.get("model") if "model_config" in content else alone)
        if not isinstance(inner, Mapping):
            return {str(name): value for name, value in content.items() if is_plain(value)}
        content = inner
    return {}


def is_plain(value: object) -> bool:
    """Return True for a tensor of numbers in RAM, neither sparse nor quantised nor nested."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
        and not value.is_nested
    )


def _check_archive(path: Path) -> None:
    """Raise `BadModelFile` for a zip archive that unpacks to many times its size; torch stores without packing."""
    if not is_zip(path):
        return
    with zipfile.ZipFile(path) as archive:
        num_bytes = sum(entry.file_size for entry in archive.infolist())
    check_size(path, num_bytes, "an archive")


def check_sizes(path: Path, content: object) -> None:
    """Raise `BadModelFile` for tensors that stand for many times the bytes that the file has."""
    num_bytes = 0
    for tensor in _tensors_in(content):
        if problem := find_shape_problem(tuple(tensor.shape)):
            raise BadModelFile(path.name, f"a tensor of {problem}", EXPECTED)
        num_bytes += tensor.numel() * tensor.element_size()
        check_size(path, num_bytes, "tensors")


def check_size(path: Path, num_bytes: int, what: str) -> None:
    """Raise `BadModelFile` for what takes many times the bytes that the file has."""
    size = path.stat().st_size
    allowed = MAX_TIMES_FILE * size + FREE_BYTES
    if num_bytes > allowed:
        found = f"{what} of {num_bytes:,} bytes in a file of {size:,}"
        raise BadModelFile(path.name, found, f"at most {allowed:,} bytes")


def _tensors_in(content: object) -> Iterator[torch.Tensor]:
    """Yield every tensor below lists, tuples and dictionaries, each object once."""
    seen: set[int] = set()
    waiting = [content]
    while waiting:
        item = waiting.pop()
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, Mapping | list | tuple | set) and id(item) not in seen:
            seen.add(id(item))
            waiting.extend(item.values() if isinstance(item, Mapping) else item)
