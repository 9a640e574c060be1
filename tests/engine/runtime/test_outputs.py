"""Names of files: counted like ComfyUI's, never shared, never outside their folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from darkroom.engine.runtime.outputs import FileFolders, FileNumbers, RunFiles, fill_placeholders, highest_number


@pytest.fixture
def folders(tmp_path: Path) -> FileFolders:
    return FileFolders(tmp_path / "input", tmp_path / "output", tmp_path / "temp")


@pytest.fixture
def files(folders: FileFolders) -> Iterator[RunFiles]:
    with ThreadPoolExecutor(2) as pool:
        yield RunFiles(folders, pool)


def test_names_count_on_from_the_highest_number(files: RunFiles, folders: FileFolders) -> None:
    folders.output.mkdir()
    for name in ("fox_00007_.png", "fox_00002_.png", "fox_x_.png", "foxes_00044_.png"):
        (folders.output / name).touch()
    first, second = files.save_path("fox"), files.save_path("fox")
    assert first.shown() == {"filename": "fox_00008_.png", "subfolder": "", "type": "output"}
    assert second.filename == "fox_00009_.png" and second.path.exists()


def test_two_runs_never_get_one_name(folders: FileFolders) -> None:
    with ThreadPoolExecutor(1) as pool:
        first, second = RunFiles(folders, pool), RunFiles(folders, pool)
        names = [item.save_path("fox").filename for item in (first, second, first, second)]
    assert len(set(names)) == 4


def test_runs_count_on_without_reading_the_folder_again_until_it_changes(
    folders: FileFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, folder = FileNumbers(), folders.output
    read, listdir = [], os.listdir

    def noted(path: Path) -> list[str]:
        read.append(path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", noted)
    with ThreadPoolExecutor(1) as pool:

        def name_of_next_run() -> str:
            return RunFiles(folders, pool, numbers=numbers).save_path("fox").filename

        assert [name_of_next_run(), name_of_next_run()] == ["fox_00001_.png", "fox_00002_.png"]
        assert read == [folder]
        (folder / "fox_00009_.png").touch()
        os.utime(folder, ns=(0, 1))  # as if the clock had ticked
        assert name_of_next_run() == "fox_00010_.png" and read == [folder, folder]
        (folder / "fox_00011_.png").touch()
        numbers.created(folder, "fox", 10)  # another engine was as fast as the clock's tick
        assert name_of_next_run() == "fox_00012_.png" and read == [folder, folder]


def test_a_prefix_may_name_folders_and_sizes(files: RunFiles) -> None:
    file = files.save_path("a/b/%width%x%height%_%batch_num%", 64, 32, batch_index=3)
    assert (file.subfolder, file.filename) == ("a/b", "64x32_3_00001_.png")


def test_dates_are_filled_in() -> None:
    now = time.struct_time((2026, 1, 2, 3, 4, 5, 0, 2, 0))
    assert fill_placeholders("%year%-%month%-%day% %hour%%minute%%second%", 0, 0, now) == "2026-01-02 030405"


def test_temporary_files_carry_letters_of_their_run(files: RunFiles) -> None:
    file = files.save_path("ComfyUI", kind="temp")
    prefix, letters = file.filename.removesuffix("_00001_.png").rsplit("_", 1)
    assert prefix == "ComfyUI_temp" and len(letters) == 5 and file.kind == "temp"


@pytest.mark.parametrize("prefix", ["../fox", "/etc/fox", "a/../../fox"])
def test_a_prefix_never_leaves_the_folder(files: RunFiles, prefix: str) -> None:
    with pytest.raises(ValueError, match="outside"):
        files.save_path(prefix)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../x [output]", "x\0y"])
def test_an_input_name_never_leaves_its_folder(folders: FileFolders, name: str) -> None:
    with pytest.raises(ValueError, match="outside"):
        folders.path(name)


def test_an_input_name_may_say_its_folder(folders: FileFolders) -> None:
    assert folders.path("a.png") == folders.input / "a.png"
    assert folders.path("a.png [output]") == folders.output / "a.png"
    assert folders.path("sub/a.png [temp]") == folders.temp / "sub" / "a.png"


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def test_writes_are_joined_and_their_errors_raised(files: RunFiles) -> None:
    file = files.save_path("fox")
    files.submit(partial(write, file.path, b"fox"))
    files.join()
    assert file.path.read_bytes() == b"fox"
    files.submit(partial(write, file.path / "no", b""))
    with pytest.raises(NotADirectoryError):
        files.join()


def test_names_nothing_was_written_to_are_taken_back(files: RunFiles) -> None:
    written, unused = files.save_path("fox"), files.save_path("fox")
    written.path.write_bytes(b"fox")
    files.close()
    assert written.path.exists() and not unused.path.exists()


def test_a_shown_file_is_looked_for_where_it_says(files: RunFiles, folders: FileFolders) -> None:
    item = files.save_path("sub/fox").shown()
    assert folders.has(item)
    assert not folders.has({**item, "filename": "other.png"})
    assert not folders.has({**item, "subfolder": "../.."})
    assert folders.has({"filename": "x", "type": "elsewhere"})


def test_the_number_is_what_stands_between_prefix_and_underscore() -> None:
    assert highest_number(["a_00003_.png", "a_12_x.png", "a_b_00099_.png", "b_7_.png"], "a") == 12
