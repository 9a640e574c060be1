"""Files that a hostile node pack leaves in the engine's output folder, and the front takes."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from darkroom.worker.errors import DeliveryFailed
from darkroom.worker.outputs import collect
from darkroom.worker.outputs.collect import collect_outputs
from darkroom.worker.outputs.listing import ListedFile

SECRET = b"planted-secret"


class Source:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def folder_of(self, kind: str) -> Path | None:
        return self._folder

    async def view(self, filename: str, subfolder: str, kind: str, target: Path, max_bytes: int | None = None) -> None:
        raise AssertionError("it is here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    for name in ("database.db", "x_00001_.png"):
        (tmp_path / "state" / name).write_bytes(SECRET)
    (tmp_path / "output" / "sub").mkdir(parents=True)
    return tmp_path / "output"


async def take(folder: Path, name: str, subfolder: str = "sub") -> list[bytes]:
    """Return the contents of a file as a job gets them."""
    listed = {"9": {"images": [{"filename": name, "subfolder": subfolder, "type": "output"}]}}
    with contextlib.suppress(DeliveryFailed):
        await collect_outputs(listed, folder.parent / "job", Source(folder))
    return [path.read_bytes() for path in (folder.parent / "job").glob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["x_00001_.png", "plain.png"])
async def test_what_is_replaced_by_a_link_while_it_is_taken_gives_no_secret(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change comes between the look at the path and the taking, when a pack wins the race."""
    looked_at = collect._origin
    changes: list[Callable[[], None]] = [lambda: to_link(folder / "sub" / name), lambda: to_folder(folder / "sub")]

    def to_link(path: Path) -> None:
        path.unlink()
        path.symlink_to(folder.parent / "state" / "database.db")

    def to_folder(path: Path) -> None:
        path.rename(path.with_name("moved"))
        path.symlink_to(folder.parent / "state")

    for change in changes:
        (folder / "sub" / name).unlink(missing_ok=True)
        (folder / "sub" / name).write_bytes(b"picture")
        (folder.parent / "state" / "plain.png").write_bytes(SECRET)

        def looks(root: Path, listed: ListedFile, change: Callable[[], None] = change) -> Path:
            origin = looked_at(root, listed)
            change()
            return origin

        monkeypatch.setattr(collect, "_origin", looks)
        assert await take(folder, name) == []


@pytest.mark.parametrize("name", ["x_00001_.png", "plain.png"])
async def test_a_pipe_neither_blocks_the_front_nor_becomes_an_output(folder: Path, name: str) -> None:
    os.mkfifo(folder / "sub" / name)
    assert await take(folder, name) == []
    assert not [path for path in (folder.parent / "job").glob("*") if stat.S_ISFIFO(path.lstat().st_mode)]


@pytest.mark.parametrize("name", ["x_00001_.png", "plain.png"])
async def test_a_regular_file_and_a_link_within_the_folder_are_taken(folder: Path, name: str) -> None:
    (folder / "real").mkdir()
    (folder / "real" / name).write_bytes(b"picture")
    (folder / "linked").symlink_to("real")
    assert await take(folder, name, "real") == [b"picture"]
    assert await take(folder, name, "linked") == [b"picture"]
