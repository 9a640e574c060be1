"""A path at which nothing is: the nearest name, a folder that is not there, a folder where a file is expected."""

from __future__ import annotations

from pathlib import Path

from darkroom.contract.missing_file import missing_file, unreadable_file


def test_the_nearest_name_of_the_folder_is_named_and_nothing_that_is_far(tmp_path: Path) -> None:
    (tmp_path / "portrait.png").write_bytes(b"")
    assert missing_file(tmp_path / "potrait.png") == f"no such file (did you mean '{tmp_path}/portrait.png'?)"
    assert missing_file(tmp_path / "xyz.toml") == "no such file"


def test_a_folder_and_a_missing_folder_are_said(tmp_path: Path) -> None:
    assert missing_file(tmp_path, kind="workflow") == "is a folder; expected a workflow"
    assert missing_file(tmp_path / "a" / "b.json") == f"no such file: the folder {tmp_path / 'a'} does not exist"


def test_a_file_that_may_not_be_read_has_the_systems_reason() -> None:
    assert unreadable_file(Path("x"), PermissionError(13, "Permission denied")) == "cannot be read: permission denied"
