"""Model files that are made to take time or memory, or to break what reads them, are refused by name."""

from __future__ import annotations

import json
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.errors import BadModelFile, OutOfMemory
from darkroom.engine.formats.gguf_file import GgufFile
from darkroom.engine.formats.pickle_file import PickleFile, read_pickle
from darkroom.engine.formats.refusals import refuses
from darkroom.engine.formats.safetensors_file import SafetensorsFile
from darkroom.engine.formats.weight_file import open_weights
from darkroom.engine.models.embeddings import embedding_rows
from darkroom.engine.models.kinds.load_hypernetwork import load_hypernetwork
from tests.engine.formats.fuzzed_files import gguf

MOST_SECONDS = 5.0  # of the processor: what was endless before, or took minutes


def safetensors(path: Path, header: dict[str, Any] | str, num_bytes: int = 16) -> Path:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(num_bytes))
    return path


def entry(start: int, end: int, shape: Any, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


HEADERS: dict[str, tuple[dict[str, Any] | str, str]] = {
    "a number too large for a tensor": ({"a": entry(0, 0, [2**63, 0])}, "a dimension of 9223372036854775808"),
    "no values by numbers too large together": ({"a": entry(0, 0, [2**62, 2**62, 0])}, "more values than can be"),
    "many dimensions": ({"a": entry(0, 16, [2] * 200_000)}, "200,000 dimensions"),
    "a number of many digits": (
        '{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,4]}}' % ("9" * 4000),
        "dimension of 9",
    ),
    "more digits than Python reads": ('{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,4]}}' % ("9" * 9000), "JSON"),
    "an offset of many digits": ('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,%s]}}' % ("9" * 4000), "of 13,"),
    "a number with a point": ({"a": entry(0, 16, [4.0])}, "a dimension of 4.0"),
    "a truth for a number": ({"a": entry(0, 4, [True])}, "a dimension of True"),
    "an offset with a point": ({"a": entry(0, 4.0, [1])}, "to 4.0"),  # type: ignore[arg-type]
    "a negative number": ({"a": entry(0, 4, [-1, -1])}, "a dimension of -1"),
    "the same bytes twice": ({"a": entry(0, 16, [4]), "b": entry(0, 16, [4])}, "'a' and 'b' on the same bytes"),
    "bytes of another": ({"a": entry(0, 16, [4]), "b": entry(8, 16, [2])}, "on the same bytes"),
    "the same bytes many times": ({f"{i}": entry(0, 16, [4]) for i in range(20_000)}, "on the same bytes"),
    "a gap": ({"a": entry(0, 4, [1]), "b": entry(8, 16, [2])}, "4 bytes before tensor 'b' that belong to none"),
    "a gap at the start": ({"a": entry(4, 16, [3])}, "4 bytes before tensor 'a'"),
    "a name twice": ('{"a":%s,"a":%s}' % ((json.dumps(entry(0, 16, [4])),) * 2), "the name 'a' twice"),
    "metadata that is a list": ({"__metadata__": [1], "a": entry(0, 16, [4])}, "metadata that is no texts by name"),
    "metadata of numbers": ({"__metadata__": {"a": 1}, "a": entry(0, 16, [4])}, "metadata that is no texts by name"),
    "deep metadata": ('{"__metadata__":' + "[" * 200_000 + "]" * 200_000 + "}", "JSON"),
    "a list for an entry": ({"a": []}, "malformed entry for tensor 'a'"),
    "another type": ({"a": entry(0, 16, [4], "F4")}, "malformed entry for tensor 'a'"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_safetensors_header_that_does_not_hold_is_refused(case: str, tmp_path: Path) -> None:
    header, said = HEADERS[case]
    path = safetensors(tmp_path / "a.safetensors", header)
    with refused_in_time(path.name, said):
        SafetensorsFile(path)


@pytest.mark.parametrize("num_bytes", [123, 0x7B20, 0x4B50])
def test_a_header_may_have_any_length(num_bytes: int, tmp_path: Path) -> None:
    """The length's own bytes may be those that a text or an archive begins with."""
    text = json.dumps({"a": entry(0, 16, [4])}).ljust(num_bytes)
    assert SafetensorsFile(safetensors(tmp_path / "a.safetensors", text)).shapes == {"a": (4,)}


def test_tensors_without_values_may_lie_anywhere_between_the_others(tmp_path: Path) -> None:
    header = {"a": entry(0, 4, [1]), "b": entry(4, 4, [0, 5]), "c": entry(4, 16, [3]), "d": entry(16, 16, [0])}
    file = SafetensorsFile(safetensors(tmp_path / "a.safetensors", header, num_bytes=100))  # bytes behind are left
    assert [tuple(file.tensor(name).shape) for name in file.tensors] == [(1,), (0, 5), (3,), (0,)]


GGUFS: dict[str, tuple[bytes, bytes, str]] = {
    "negative sizes of before": (struct.pack("<2i", 32, 2), struct.pack("<2i", -32, -2), "a dimension of -32"),
    "the same bytes twice": (struct.pack("<IQ", 8, 32), struct.pack("<IQ", 8, 0), "on the same bytes"),
    "a name twice": (b"number", b"packed", "two tensors of the name 'packed'"),
    "sizes too large": (
        struct.pack("<I2Q", 2, 2, 4),
        struct.pack("<I2Q", 2, 2**63, 0),
        "a dimension of 92233720368547758",
    ),
    "values that are too many": (
        struct.pack("<I2Q", 2, 2, 4),
        struct.pack("<I2Q", 2, 2**40, 2**40),
        "more values than",
    ),
    "an alignment that is none": (struct.pack("<II", 4, 32), struct.pack("<II", 4, 12), "an alignment of 12"),
    "a text without end": (struct.pack("<Q", 4) + b"flux", struct.pack("<Q", 2**62) + b"flux", "things"),
}
"""Replacements of bytes in a file, with the words of its refusal."""


@pytest.mark.parametrize("case", GGUFS)
def test_a_gguf_header_that_does_not_hold_is_refused(case: str, tmp_path: Path) -> None:
    old, new, said = GGUFS[case]
    whole = gguf()
    assert whole.count(old) == 1
    path = tmp_path / "a.gguf"
    path.write_bytes(whole)
    GgufFile(path)
    path.write_bytes(whole.replace(old, new))
    with refused_in_time(path.name, said):
        GgufFile(path)


def itself() -> dict[str, Any]:
    content: dict[str, Any] = {}
    content["state_dict"] = content
    return content


def repeated(num_values: int) -> torch.Tensor:
    """Return a tensor of many values, all on the same bytes."""
    return torch.zeros(1).expand(num_values)


def shared(num_tensors: int) -> dict[str, torch.Tensor]:
    """Return tensors of one MiB each, all on the same bytes."""
    storage = torch.zeros(1 << 18)
    return {str(index): storage.view(1 << 18) for index in range(num_tensors)}


PICKLES: dict[str, tuple[Callable[[], Any], str]] = {
    "a dictionary that contains itself": (itself, "a pickle without named tensors"),
    "a list": (lambda: [torch.zeros(2)], "a pickle without named tensors"),
    "one value that stands for many": (lambda: {"a": repeated(1 << 36)}, "tensors of 274,877,906,944 bytes in a file"),
    "more values than memory, in a list": (lambda: {"a": [repeated(1 << 36)]}, "tensors of 274,877,906,944 bytes"),
    "many tensors on the same bytes": (lambda: shared(100), "tensors of"),
    "a sparse tensor": (lambda: {"a": torch.eye(3).to_sparse()}, "a pickle without named tensors"),
}


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("case", PICKLES)
def test_a_pickle_that_does_not_hold_weights_is_refused(case: str, is_zip: bool, tmp_path: Path) -> None:
    content, said = PICKLES[case]
    path = tmp_path / "a.pt"
    torch.save(content(), path, _use_new_zipfile_serialization=is_zip)
    with refused_in_time(path.name, said):
        PickleFile(path)


def test_tied_weights_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(shared(2), path)
    assert len(PickleFile(path).tensors) == 2


def test_an_archive_that_unpacks_to_many_times_its_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(200 << 20))
    with refused_in_time(path.name, "an archive of 209,715,200 bytes in a file of"):
        read_pickle(path)


@pytest.mark.parametrize(
    "content",
    [
        3,
        {"string_to_param": 3},
        {"string_to_param": {"*": 3}},
        {"string_to_param": {}},
        {"clip_l": {"a": 1}},
        [{"a": 1}],
        [3],
        {"emb": torch.zeros(2, 2, 2)},
        {"emb": torch.zeros(0)},
        {"bundle_emb.a.clip_l": torch.zeros(2, 3), "bundle_emb.b.clip_l": torch.zeros(2, 4)},
        {},
    ],
)
def test_what_is_no_textual_inversion_is_refused(content: object, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(content, path)
    with refused_in_time(path.name, "expected a textual inversion"):
        embedding_rows(path, key="clip_l", width=2)


@pytest.mark.parametrize(
    "weight", [torch.zeros(2, 3).as_strided((2, 3), (0, 0)), torch.zeros(3), torch.zeros(2, 3, 4), 3, "x"]
)
def test_what_is_no_hypernetwork_is_refused(weight: object, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    layers = {"linear.0.weight": weight, "linear.0.bias": 3}
    torch.save({2: [layers, layers], "activation_func": "relu"}, path)
    with refused_in_time(path.name, "expected a hypernetwork"):
        load_hypernetwork(path, torch.float32)


@pytest.mark.parametrize(
    "content", [b"", b"P", b"PK", b"PK\x05\x06" + bytes(18), b"\x80\x02", b"\x80\x02.", b"\x80\x05N."]
)
def test_files_that_end_at_once_are_refused(content: bytes, tmp_path: Path) -> None:
    for name in ("a.pt", "a.safetensors", "a.gguf", "a"):
        path = tmp_path / name
        path.write_bytes(content)
        with refused_in_time(name, "expected"):
            open_weights(path)


def test_errors_of_ours_and_of_memory_are_no_fault_of_the_file(tmp_path: Path) -> None:
    def load(path: Path, error: Exception) -> None:
        raise error

    guarded = refuses("a model")(load)
    for error in (OutOfMemory("full"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")):
        with pytest.raises(type(error)):
            guarded(tmp_path / "a", error)
    for of_content in (IndexError("x"), AssertionError(), ZeroDivisionError("y"), RuntimeError("shapes")):
        with pytest.raises(BadModelFile, match=f"a: content that does not fit together .{type(of_content).__name__}"):
            guarded(tmp_path / "a", of_content)


class refused_in_time:  # noqa: N801 - reads as pytest.raises does
    """Expect `BadModelFile` of a file, with some words, after little time and with a short message."""

    def __init__(self, file_name: str, said: str) -> None:
        self._file_name, self._said = file_name, said

    def __enter__(self) -> None:
        self._began = time.process_time()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        assert isinstance(error, BadModelFile), error
        assert error.file_name == self._file_name and self._said in str(error) and len(str(error)) < 2000, str(error)
        assert time.process_time() - self._began < MOST_SECONDS
        return True
