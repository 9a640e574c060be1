"""Copies of a job's checkpoints: stored while it runs, fetched by the next worker, removed at the end."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from darkroom.contract.wire import CHECKPOINT_KEY, is_checkpoint_key
from darkroom.worker.jobs.checkpoints import CopyFailed, JobCheckpoints
from darkroom.worker.storage.job import Job, JobRequest, JobTimes
from tests.worker.running_front import until

FIRST, SECOND = "0123456789abcdef/00000000.safetensors", "0123456789abcdef/00000007.safetensors"


class Bucket:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.is_away = False

    async def names(self, key: str) -> list[str]:
        if self.is_away:
            raise CopyFailed("away")
        return sorted(name.removeprefix(f"{key}/") for name in self.objects if name.startswith(f"{key}/"))

    async def fetch(self, key: str, name: str, path: Path) -> None:
        path.write_bytes(self.objects[f"{key}/{name}"])  # noqa: ASYNC240

    async def store(self, key: str, name: str, path: Path) -> None:
        if self.is_away:
            raise CopyFailed("away")
        self.objects[f"{key}/{name}"] = path.read_bytes()  # noqa: ASYNC240

    async def remove(self, key: str) -> None:
        for name in await self.names(key):
            del self.objects[f"{key}/{name}"]


JOB = Job("one", 1, "hash", JobRequest(), {}, JobTimes(0))


def write(folder: Path, key: object, name: str, content: bytes) -> None:
    path = folder / str(key) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


async def test_another_worker_gets_what_was_stored_before_the_first_was_lost(tmp_path: Path) -> None:
    bucket = Bucket()
    first = JobCheckpoints(tmp_path / "first", 0.01, bucket)
    async with first.of(JOB) as sent:
        write(tmp_path / "first", sent[CHECKPOINT_KEY], FIRST, b"1")

        async def is_stored() -> bool:
            return bool(bucket.objects)

        await until(is_stored)
    second = JobCheckpoints(tmp_path / "second", 60.0, bucket)
    async with second.of(JOB) as sent:
        assert is_checkpoint_key(sent[CHECKPOINT_KEY])
        assert (tmp_path / "second" / str(sent[CHECKPOINT_KEY]) / FIRST).read_bytes() == b"1"
    await second.remove(JOB)
    await second.close()
    assert not bucket.objects
    assert not list((tmp_path / "second").iterdir())


async def test_a_run_that_is_broken_off_stores_its_last_steps(tmp_path: Path) -> None:
    bucket = Bucket()
    checkpoints = JobCheckpoints(tmp_path, 60.0, bucket)
    with pytest.raises(KeyError):
        async with checkpoints.of(JOB) as sent:
            write(tmp_path, sent[CHECKPOINT_KEY], SECOND, b"2")
            raise KeyError
    assert list(bucket.objects.values()) == [b"2"]


async def test_a_store_that_is_away_costs_no_job(tmp_path: Path) -> None:
    bucket = Bucket()
    bucket.is_away = True
    checkpoints = JobCheckpoints(tmp_path, 0.01, bucket)
    async with checkpoints.of(JOB) as sent:
        write(tmp_path, sent[CHECKPOINT_KEY], FIRST, b"1")
    await checkpoints.remove(JOB)
    await checkpoints.close()


async def test_another_body_under_the_same_id_has_another_folder(tmp_path: Path) -> None:
    checkpoints = JobCheckpoints(tmp_path, 60.0)
    async with checkpoints.of(JOB) as sent, checkpoints.of(replace(JOB, body_hash="other")) as other:
        assert sent != other


async def test_records_that_nobody_came_back_to_are_removed_after_a_day(tmp_path: Path) -> None:
    for name in ("old", "new"):
        write(tmp_path, name, FIRST, b"1")
    for path in [*(tmp_path / "old").rglob("*"), tmp_path / "old"]:
        os.utime(path, (1, 1))
    await JobCheckpoints(tmp_path, 60.0).forget_old()
    assert [path.name for path in tmp_path.iterdir()] == ["new"]  # noqa: ASYNC240
