"""Folders of jobs that are removed."""

from __future__ import annotations

import os
from pathlib import Path

from darkroom.worker.outputs.job_folders import JobFolder, folders_in, remove_older, remove_orphans, surplus_folders


def test_the_oldest_go_until_the_rest_fits() -> None:
    folders = [JobFolder("old", 10, 1), JobFolder("newer", 10, 2), JobFolder("newest", 10, 3)]
    assert surplus_folders(folders, (), 30) == []
    assert surplus_folders(folders, (), 25) == ["old"]
    assert surplus_folders(folders, (), 5) == ["newest", "newer", "old"]


def test_those_of_live_jobs_stay_and_count() -> None:
    folders = [JobFolder("live", 20, 1), JobFolder("ended", 10, 2)]
    assert surplus_folders(folders, {"live"}, 25) == ["ended"]
    assert surplus_folders(folders, {"live", "ended"}, 0) == []


def test_sizes_count_everything_below(tmp_path: Path) -> None:
    (tmp_path / "one" / "delivered").mkdir(parents=True)
    (tmp_path / "one" / "a").write_bytes(bytes(10))
    (tmp_path / "one" / "delivered" / "a").write_bytes(bytes(5))
    (tmp_path / "a file").touch()
    assert [(folder.job_id, folder.size_bytes) for folder in folders_in(tmp_path)] == [("one", 15)]


def test_folders_that_no_job_knows_go(tmp_path: Path) -> None:
    for name in ("known", "unknown"):
        (tmp_path / name / "deep").mkdir(parents=True)
    assert remove_orphans(tmp_path, {"known"}) == ["unknown"] and os.listdir(tmp_path) == ["known"]


def test_only_old_files_leave_a_folder(tmp_path: Path) -> None:
    (tmp_path / "8189").mkdir()
    for name, at in (("8189/old.png", 100), ("new.png", 300)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (at, at))
    remove_older(tmp_path, 200)
    remove_older(tmp_path / "none", 200)
    assert sorted(os.listdir(tmp_path)) == ["8189", "new.png"] and os.listdir(tmp_path / "8189") == []
