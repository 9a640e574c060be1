"""Pickles that would not end, or overflow the stack, are refused by what their operations say."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.inert_pickle import plain, read_inert
from darkroom.engine.formats.pickle_file import read_pickle
from darkroom.engine.formats.pickle_program import CostlyPickle, check_program
from darkroom.engine.models.embeddings import embedding_rows
from tests.engine.formats.fuzzed_files import pickled, tensors

START, END = pickle.PROTO + b"\x02", pickle.STOP


def put(key: int) -> bytes:
    return pickle.LONG_BINPUT + struct.pack("<I", key)


def get(key: int) -> bytes:
    return pickle.LONG_BINGET + struct.pack("<I", key)


def doubled(levels: int = 60) -> bytes:
    """Push a tuple of 2^levels items."""
    value = pickle.EMPTY_TUPLE
    for key in range(levels):
        value += put(key) + get(key) + pickle.TUPLE2
    return value


def nested(levels: int = 200_000) -> bytes:
    return pickle.EMPTY_TUPLE + pickle.TUPLE1 * levels


def named(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


COSTLY: dict[str, Callable[[bytes], bytes]] = {
    "a key": lambda value: pickle.EMPTY_DICT + value + pickle.NONE + pickle.SETITEM,
    "one of several keys": lambda value: pickle.EMPTY_DICT + pickle.MARK + value + pickle.NONE + pickle.SETITEMS,
    "a key of a whole dictionary": lambda value: pickle.MARK + value + pickle.NONE + pickle.DICT,
    "a key in a tuple": lambda value: pickle.EMPTY_DICT + value + pickle.TUPLE1 + pickle.NONE + pickle.SETITEM,
    "an item of a set": lambda value: pickle.EMPTY_SET + pickle.MARK + value + pickle.ADDITEMS,
    "an item of a frozen set": lambda value: pickle.MARK + value + pickle.FROZENSET,
    "an argument of a set": lambda value: (
        named("builtins", "set") + pickle.EMPTY_LIST + value + pickle.APPEND + pickle.TUPLE1 + pickle.REDUCE
    ),
    "an argument that is filled afterwards": lambda value: (
        named("builtins", "set") + pickle.EMPTY_LIST + put(900) + pickle.TUPLE1 + get(900) + value + pickle.APPEND
        + pickle.POP + pickle.REDUCE
    ),
    "a key of pairs": lambda value: (
        named("collections", "OrderedDict") + pickle.EMPTY_LIST + value + pickle.NONE + pickle.TUPLE2 + pickle.APPEND
        + pickle.TUPLE1 + pickle.REDUCE
    ),
    "a function": lambda value: value + pickle.EMPTY_TUPLE + pickle.REDUCE,
    "a class": lambda value: value + pickle.EMPTY_TUPLE + pickle.NEWOBJ,
    "a storage": lambda value: value + pickle.BINPERSID,
}  # fmt: skip


def archive(path: Path, program: bytes) -> Path:
    """Write torch's zip format with a program of its own."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", program)
        file.writestr("archive/version", "3\n")
    return path


def legacy(path: Path, program: bytes) -> Path:
    """Write torch's older format with a program of its own."""
    held = io.BytesIO()
    parts: tuple[object, ...] = (0x1950A86A20F9469CFC6C, 1001, {})
    for value in parts:
        pickle.dump(value, held, protocol=2)
    path.write_bytes(held.getvalue() + program + pickle.dumps([], protocol=2))
    return path


@pytest.mark.parametrize("case", COSTLY)
@pytest.mark.parametrize("value", [doubled(), nested()], ids=["doubled", "nested"])
def test_what_would_not_end_is_refused_by_every_reader(case: str, value: bytes, tmp_path: Path) -> None:
    program = START + COSTLY[case](value) + END
    for write in (archive, legacy):
        with pytest.raises(BadModelFile, match="many times over|nested more than"):
            read_pickle(write(tmp_path / "a.pt", program))
    with pytest.raises(BadModelFile, match="many times over|nested more than"):
        read_inert(archive(tmp_path / "a.pt", program))
    with pytest.raises(BadModelFile):
        embedding_rows(archive(tmp_path / "a.pt", program), key="clip_l", width=8)


def test_the_same_long_key_cannot_be_hashed_again_and_again() -> None:
    key = pickle.MARK + pickle.NONE * 20_000 + pickle.TUPLE + put(0) + pickle.POP
    program = START + key + pickle.EMPTY_DICT + (get(0) + pickle.NONE + pickle.SETITEM) * 20_000 + END
    with pytest.raises(CostlyPickle):
        check_program(program)


@pytest.mark.parametrize("is_zip", [True, False])
def test_what_trainers_write_is_read(is_zip: bool, tmp_path: Path) -> None:
    shared = (0.9, 0.999)
    content = {
        "state_dict": tensors(),
        "optimizer": {"groups": [{"betas": shared, "params": list(range(500))} for _ in range(20)]},
        "random": tuple(range(5000)),
        ("a", 1): {1, 2},
    }
    path = tmp_path / "a.ckpt"
    path.write_bytes(pickled(content, is_zip=is_zip))
    assert read_pickle(path)["random"] == content["random"]


def test_a_file_cannot_change_torchs_functions(tmp_path: Path) -> None:
    """A state for a function would set its default arguments, for every file that is read afterwards."""
    before = torch._utils._rebuild_tensor_v2.__defaults__
    state = pickle.EMPTY_DICT + pickle.EMPTY_DICT + pickle.SHORT_BINSTRING + b"\x0c__defaults__"
    state += pickle.MARK + pickle.NONE + pickle.TUPLE + pickle.SETITEM + pickle.TUPLE2
    program = START + named("torch._utils", "_rebuild_tensor_v2") + state + pickle.BUILD + END
    with pytest.raises(BadModelFile):
        read_inert(archive(tmp_path / "a.pt", program))
    assert torch._utils._rebuild_tensor_v2.__defaults__ == before


def test_objects_that_are_held_many_times_are_made_plain_once() -> None:
    held: list[object] = [0]
    for _ in range(8):
        held = [held] * 1000
    made = plain(held)
    assert made[0] is made[999]


LONG = "a" * 100_000
NAMING: dict[str, bytes] = {
    "a global": named(LONG, "b"),
    "a global of its stack": pickle.BINUNICODE
    + struct.pack("<I", len(LONG))
    + LONG.encode()
    + pickle.NONE
    + pickle.STACK_GLOBAL,
    "a storage": pickle.BINUNICODE + struct.pack("<I", len(LONG)) + LONG.encode() + pickle.TUPLE1 + pickle.BINPERSID,
    "a function": pickle.BINUNICODE + struct.pack("<I", len(LONG)) + LONG.encode() + pickle.EMPTY_TUPLE + pickle.REDUCE,
}


@pytest.mark.parametrize("kind", NAMING)
def test_a_name_whose_error_torch_would_search_for_hours_is_refused(kind: str) -> None:
    with pytest.raises(CostlyPickle, match="a name of more than 4,096 characters"):
        check_program(START + NAMING[kind] + END)


def test_a_long_text_beside_weights_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(pickled({**tensors(), "notes": LONG, LONG: 1}, is_zip=True))
    assert read_pickle(path)["notes"] == LONG
