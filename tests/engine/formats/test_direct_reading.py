"""Tensors read past the page cache: the same bytes, whatever of the file is cached, and without direct reading too."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from darkroom.engine.formats import direct_reading
from darkroom.engine.formats.direct_reading import Wanted, read_directly

SIZES = (1, 4096, 5_000_000, 3, 20_000_000, 0, 777, 9_000_001)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose length is no multiple of a block."""
    path = tmp_path_factory.mktemp("weights") / "a.bin"
    with path.open("wb") as file:
        file.write(os.urandom(sum(SIZES) + 100))
        file.flush()
        os.fsync(file.fileno())
    return path


def wanted() -> list[Wanted]:
    """Tensors behind each other from byte 100 on, the last of which ends the file."""
    starts = [100 + sum(SIZES[:place]) for place in range(len(SIZES))]
    return [Wanted(str(place), start, SIZES[place]) for place, start in enumerate(starts)]


def drop(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(path: Path, places: Sequence[Wanted]) -> dict[str, bytes | None]:
    with path.open("rb") as file:
        pairs = read_directly(file.fileno(), places)
        return {key: None if content is None else content.numpy().tobytes() for key, content in pairs}


def test_a_cold_file_is_read_directly_to_the_same_bytes(path: Path) -> None:
    with path.open("rb") as file:
        number = direct_reading.direct_descriptor(file.fileno())
    if number is None:
        pytest.skip("the file system has no direct reading")
    os.close(number)
    drop(path)
    content, found = path.read_bytes(), {}
    drop(path)
    found = read(path, wanted())
    assert list(found) == [item.key for item in wanted()]
    for item in wanted():
        own = found[item.key]
        assert own is None or own == content[item.start : item.start + item.num_bytes], item


def test_what_is_cached_is_left_to_the_page_cache(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_reading, "is_cached", lambda number, start, end: start == 0)
    found = read(path, wanted())
    assert found["0"] is None and found["1"] is None
    assert found["4"] is not None or direct_reading.direct_descriptor(0) is None


def test_without_direct_reading_everything_is_left_to_the_page_cache(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_reading, "direct_descriptor", lambda number: None)
    assert set(read(path, wanted()).values()) == {None}


def test_a_file_system_that_refuses_is_no_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(direct_reading, "is_cached", lambda number, start, end: False)
    monkeypatch.setattr(os, "preadv", refuse)
    assert set(read(path, wanted()).values()) == {None}


def test_leaving_early_ends_the_readers(path: Path) -> None:
    with path.open("rb") as file:
        pairs = read_directly(file.fileno(), wanted())
        assert next(pairs)[0] == "0"
        pairs.close()  # type: ignore[attr-defined]
