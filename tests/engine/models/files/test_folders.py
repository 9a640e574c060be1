"""Model files of a base directory, by kind and name, extra paths and the built-in folder included."""

from __future__ import annotations

import os
from pathlib import Path

from darkroom.engine.models.files.folders import ModelFolders


def _touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def test_files_are_listed_by_kind_with_their_subfolders(tmp_path: Path) -> None:
    _touch(tmp_path / "checkpoints" / "b.safetensors")
    _touch(tmp_path / "checkpoints" / "sub" / "a.ckpt")
    _touch(tmp_path / "checkpoints" / "readme.txt")
    folders = ModelFolders(tmp_path)
    assert folders.names("checkpoints") == ["b.safetensors", "sub/a.ckpt"]
    assert folders.path("checkpoints", "sub/a.ckpt") == tmp_path / "checkpoints" / "sub" / "a.ckpt"


def test_a_new_file_shows_up(tmp_path: Path) -> None:
    _touch(tmp_path / "vae" / "a.pt")
    folders = ModelFolders(tmp_path)
    assert folders.names("vae") == ["a.pt"]
    _touch(tmp_path / "vae" / "b.pt")
    os.utime(tmp_path / "vae", (1, 1))  # the clock may be too coarse to tell the two writes apart
    assert folders.names("vae") == ["a.pt", "b.pt"]


def test_old_kinds_and_folders_still_work(tmp_path: Path) -> None:
    _touch(tmp_path / "clip" / "old.safetensors")
    _touch(tmp_path / "text_encoders" / "new.safetensors")
    assert ModelFolders(tmp_path).names("clip") == ["new.safetensors", "old.safetensors"]


def test_a_name_never_leads_out_of_its_folder(tmp_path: Path) -> None:
    _touch(tmp_path / "secret.safetensors")
    (tmp_path / "checkpoints").mkdir()
    assert ModelFolders(tmp_path).path("checkpoints", "../secret.safetensors") is None


def test_what_ships_with_the_engine_is_listed_last_and_gives_way_to_a_file_of_the_same_name(tmp_path: Path) -> None:
    built_in, user = tmp_path / "built_in", tmp_path / "models" / "checkpoints"
    _touch(built_in / "a.safetensors")
    _touch(user / "z.safetensors")
    folders = ModelFolders(tmp_path / "models", built_in={"checkpoints": built_in})
    assert folders.names("checkpoints") == ["z.safetensors", "a.safetensors"]
    assert folders.path("checkpoints", "a.safetensors") == built_in / "a.safetensors"
    _touch(user / "a.safetensors")
    os.utime(user, (1, 1))
    assert folders.names("checkpoints") == ["a.safetensors", "z.safetensors"]
    assert folders.path("checkpoints", "a.safetensors") == user / "a.safetensors"
    assert folders.names("vae") == []


def test_a_kind_that_is_new_accepts_every_file_and_a_known_one_keeps_its_endings(tmp_path: Path) -> None:
    for name in ("a.ttf", "b.safetensors"):
        (tmp_path / name).touch()
    folders = ModelFolders(tmp_path / "models", extra={"luts": [tmp_path]})
    folders.add_folder("fonts", tmp_path)
    folders.add_folder("loras", tmp_path)
    assert [folders.names(kind) for kind in ("luts", "fonts", "loras")] == [
        ["a.ttf", "b.safetensors"], ["a.ttf", "b.safetensors"], ["b.safetensors"],
    ]  # fmt: skip
