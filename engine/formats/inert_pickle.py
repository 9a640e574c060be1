"""Reader of torch's zipped pickles that hold objects beside their tensors; no code of theirs runs.

Trainers pickle whole objects: the original one of textual inversions a `torch.nn.ParameterDict`, others settings of
classes of their own, for which torch's weights-only reader refuses the file. Here tensors and plain containers are
read, and every other object is an `Inert` one: the arguments and the state that its class would have got.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.pickle_file import check_pickle, is_zip
from darkroom.engine.formats.refusals import refusing

MAX_BYTES = 1 << 28  # textual inversions have a few megabytes at most
EXPECTED = "tensors in a zip file of torch's"


class _Fixed:
    """A function or class of torch's that a file can call and not change."""

    __slots__ = ("_called",)

    def __init__(self, called: Any) -> None:
        self._called = called

    def __call__(self, *arguments: object) -> Any:
        return self._called(*arguments)

    def __setstate__(self, state: object) -> None:
        """Raise: pickle's instruction for the state of an object would set a function's attributes."""
        raise pickle.UnpicklingError("a state for a function of torch's")


# The only functions and classes that a file can name; storages are named by torch's own reader.
PLAIN: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _Fixed(torch._utils._rebuild_tensor_v2),
    ("torch._utils", "_rebuild_parameter"): _Fixed(torch._utils._rebuild_parameter),
    ("collections", "OrderedDict"): OrderedDict,
}
STORAGES = frozenset({
    "BFloat16Storage", "BoolStorage", "ByteStorage", "CharStorage", "DoubleStorage", "FloatStorage", "HalfStorage",
    "IntStorage", "LongStorage", "ShortStorage",
})  # fmt: skip


class Inert:
    """An object of a class that is not looked up: `arguments` of its construction, `state` and `items` as stored."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments
        self.state: object = None
        self.items: dict[Any, Any] = {}

    def __call__(self, *arguments: object) -> Inert:
        return Inert(*arguments)

    def __setstate__(self, state: object) -> None:
        self.__init__()  # type: ignore[misc]  # pickle makes objects of protocol 2 without calling it
        self.state = state

    def __setitem__(self, key: Any, value: object) -> None:
        self.items[key] = value

    def append(self, value: object) -> None:
        self.items[len(self.items)] = value

    def extend(self, values: Any) -> None:
        for value in values:
            self.append(value)


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in STORAGES:
            return getattr(torch, name)
        return PLAIN.get((module, name), Inert)


def read_inert(path: Path) -> Any:
    """Read a zipped pickle of torch's with other objects as `Inert` ones. Raises `BadModelFile`."""
    _check_contents(path)
    with refusing(path.name, EXPECTED):
        check_pickle(path)
    reader = ModuleType("inert_pickle")
    vars(reader)["Unpickler"] = _InertUnpickler
    vars(reader)["load"] = lambda file, **options: _InertUnpickler(file, **options).load()
    try:
        return torch.load(path, map_location="cpu", weights_only=False, pickle_module=reader)
    except Exception as error:  # noqa: BLE001 - the pickle's instructions, which may ask for any call of an `Inert`
        found = f"an unreadable file ({type(error).__name__}: {error})"
        raise BadModelFile(path.name, found, EXPECTED) from error


def _check_contents(path: Path) -> None:
    """Raise `BadModelFile` for a program of TorchScript, which torch would load, and for what unpacks to too much."""
    try:
        with zipfile.ZipFile(path) as archive:
            items = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error) as error:
        raise BadModelFile(path.name, f"a damaged file ({error})", EXPECTED) from error
    size_bytes = sum(item.file_size for item in items)
    if size_bytes > MAX_BYTES:
        found = f"a pickle of {size_bytes} bytes that holds more than weights"
        raise BadModelFile(path.name, found, f"at most {MAX_BYTES} bytes, or weights alone")
    program = BadModelFile(path.name, "a program of TorchScript", EXPECTED)
    if not is_zip(path) or any(item.filename.endswith("constants.pkl") for item in items):
        raise program
    with refusing(path.name, EXPECTED):  # what torch itself finds in it, which decides about what it runs
        records = torch._C.PyTorchFileReader(str(path)).get_all_records()
    if "constants.pkl" in records:
        raise program


def plain(value: object, depth: int = 8, made: dict[tuple[int, int], Any] | None = None) -> Any:
    """Return a value with inert objects as dictionaries: their items, or the parameters of a module, or their state.

    `made` holds what was made before by the object and depth: an object may be in a file once and held many times.
    """
    if depth == 0 or not isinstance(value, Inert | dict | list | tuple):
        return value
    made = {} if made is None else made
    key = id(value), depth
    if key not in made:
        made[key] = _plain(value, depth, made)
    return made[key]


def _plain(
    value: Inert | dict[Any, Any] | list[Any] | tuple[Any, ...], depth: int, made: dict[tuple[int, int], Any]
) -> Any:
    if isinstance(value, Inert):
        state = value.state[0] if isinstance(value.state, tuple) and value.state else value.state
        held = state.get("_parameters", state) if isinstance(state, dict) else {}
        value = {**(held if isinstance(held, dict) else {}), **value.items}
    if isinstance(value, dict):
        return {key: plain(item, depth - 1, made) for key, item in value.items()}
    return [plain(item, depth - 1, made) for item in value]
