"""A run that is told its files reads no other's."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from darkroom.engine.errors import BadFileName, BadInputFile
from darkroom.engine.runtime.file_scope import ForeignFile
from darkroom.engine.runtime.outputs import FileFolders, RunFiles


@pytest.fixture
def files(tmp_path: Path) -> Iterator[RunFiles]:
    for name in ("output/x.png", "output/a/cached_00001_.png", "temp/x.png", "input/a.png", "input/sub/b.png"):
        put(tmp_path / name)
    for name in ("x.png", "own.png"):
        put(tmp_path / "input" / "darkroom" / name)
    with ThreadPoolExecutor(1) as pool:
        yield RunFiles(FileFolders(tmp_path / "input", tmp_path / "output", tmp_path / "temp"), pool)


def put(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


SHOWN: dict[str, Any] = {"images": [{"filename": "cached_00001_.png", "subfolder": "a", "type": "output"}], "text": "x"}


def test_a_run_that_has_no_scope_reads_every_file(files: RunFiles) -> None:
    for name in ("x.png [output]", "darkroom/x.png", "a.png"):
        assert files.input_path(name)


@pytest.mark.parametrize(
    "name", ["x.png [output]", "x.png [temp]", "darkroom/x.png", "Darkroom/own.png", "a/../darkroom/x.png"]
)
def test_a_run_reads_no_file_of_another(files: RunFiles, name: str) -> None:
    files.limit_to(["darkroom/own.png"], list)
    with pytest.raises(ForeignFile, match="a file of another job; expected one that came with the request"):
        files.input_path(name)


def test_a_run_reads_its_own_files_and_the_operators(files: RunFiles) -> None:
    files.limit_to(["darkroom/own.png"], lambda: [SHOWN])
    saved = files.save_path("mine")
    names = ("darkroom/own.png", "a.png", "sub/b.png [input]", f"{saved.filename} [output]")
    for name in (*names, "a/cached_00001_.png [output]"):
        assert files.input_path(name)


def test_a_folder_of_inputs_inside_the_output_folder_stays_readable(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        files = RunFiles(FileFolders(tmp_path / "input", tmp_path, tmp_path / "temp"), pool)
        files.limit_to([], list)
        for name in ("a.png", "input/a.png"):
            put(tmp_path / name)
        assert files.input_path("a.png")
        with pytest.raises(ForeignFile):
            files.input_path("a.png [output]")


@pytest.mark.parametrize("name", ["none.png", "../a.png", "a" * 5000, "a\0b", "sub", None])
def test_a_name_of_no_file_is_reported_without_the_folder(files: RunFiles, name: Any) -> None:
    with pytest.raises(BadInputFile, match="no such file; expected the name of a file in the input folder") as raised:
        files.input_path(name)
    assert str(files.folders.input) not in str(raised.value) and len(str(raised.value)) < 400


@pytest.mark.parametrize("prefix", ["/etc/x", "a/../../b", "a\0b", "a" * 300, "a/" * 3000 + "b", "b/" + "a" * 300])
def test_a_name_that_nothing_can_be_saved_under_is_reported_without_the_folder(files: RunFiles, prefix: str) -> None:
    with pytest.raises(BadFileName, match="filename_prefix .*; expected a name, or a path") as raised:
        files.save_path(prefix)
    assert str(files.folders.output) not in str(raised.value) and len(str(raised.value)) < 400
