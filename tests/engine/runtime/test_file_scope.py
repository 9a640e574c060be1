"""A run that is told its files reads no other's."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engine.runtime.file_scope import ForeignFile
from engine.runtime.outputs import FileFolders, RunFiles


@pytest.fixture
def files(tmp_path: Path) -> Iterator[RunFiles]:
    with ThreadPoolExecutor(1) as pool:
        yield RunFiles(FileFolders(tmp_path / "input", tmp_path / "output", tmp_path / "temp"), pool)


SHOWN: dict[str, Any] = {"images": [{"filename": "cached_00001_.png", "subfolder": "a", "type": "output"}], "text": "x"}


def test_a_run_that_is_told_nothing_reads_every_file(files: RunFiles) -> None:
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
        assert files.input_path("a.png")
        with pytest.raises(ForeignFile):
            files.input_path("a.png [output]")
