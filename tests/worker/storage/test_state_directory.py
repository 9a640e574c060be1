"""State directories that cannot be used: the message names the file, what is wrong with it and what to do."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from darkroom.worker.app.serve import CannotStart, run_front
from darkroom.worker.errors import StateUnusable
from darkroom.worker.observe.prompt_texts import PromptTexts
from darkroom.worker.storage.job import Job, JobRequest, JobState, JobTimes
from darkroom.worker.storage.store import JobStore
from tests.worker.databases import give_database
from tests.worker.running_front import settings_for


def database_with(folder: Path, *statements: str) -> Path:
    give_database(folder)
    path = folder / "darkroom.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path


def test_a_directory_of_a_newer_version_names_both_revisions(tmp_path: Path) -> None:
    path = database_with(tmp_path, "UPDATE alembic_version SET version_num = '0099'")
    with pytest.raises(StateUnusable, match=f"^{path}: written by a newer version.*0099.*restore a backup"):
        JobStore(tmp_path).take_directory()


def test_a_file_that_is_no_database_is_named_and_the_lock_released(tmp_path: Path) -> None:
    (tmp_path / "darkroom.db").write_text("something else, written by hand")
    for _ in range(2):
        with pytest.raises(StateUnusable, match=r"darkroom\.db: damaged: file is not a database.*move the directory"):
            JobStore(tmp_path).take_directory()


async def make_jobs(folder: Path, num_jobs: int = 40) -> Path:
    """A state directory as a killed worker leaves it: with jobs that wait, their folders, and a write-ahead log."""
    give_database(folder)
    store = JobStore(folder)
    await store.open()
    for index in range(num_jobs):
        job = Job(f"job-{index}", index, "h", JobRequest(), {"1": {"text": "a" * 3000}}, JobTimes(queued_at_ms=1))
        await store.insert(job)
        store.job_directory(job.id).mkdir(parents=True)
    copy = folder.with_name(f"{folder.name}-copy")
    shutil.copytree(folder, copy)  # before the store is closed, which empties the log
    await store.close()
    return copy


async def start(folder: Path) -> int:
    """Start a store as a worker does; return the number of its jobs."""
    store = JobStore(folder)
    await store.open()
    num_jobs = len(store.jobs)
    await store.close()
    return num_jobs


@pytest.mark.parametrize("part", ["", "-wal"])
async def test_damage_anywhere_in_the_database_is_named_or_does_no_harm(tmp_path: Path, part: str) -> None:
    whole = await make_jobs(tmp_path / "state")
    if not part:
        assert await start(whole) == 40  # which empties the log into the file
        (whole / "darkroom.db-wal").unlink(missing_ok=True)
    size = (whole / f"darkroom.db{part}").stat().st_size
    rng, num_named = random.Random(5), 0
    for number in range(25):
        folder = tmp_path / f"damaged-{number}"
        shutil.copytree(whole, folder)
        path = folder / f"darkroom.db{part}"
        content = bytearray(path.read_bytes())
        kind = ("bytes", "page", "cut", "end", "bits")[number % 5]
        at = rng.randrange(size - 4096) // 4096 * 4096
        if kind == "bytes":
            for _ in range(200):
                content[rng.randrange(size)] = rng.randrange(256)
        elif kind == "bits":
            for _ in range(400):
                content[rng.randrange(size)] ^= 0x80
        elif kind == "page":
            content[at : at + 4096] = b"\xff" * 4096
        else:
            content = content[:at] if kind == "cut" else content[: size - 100]
        path.write_bytes(content)
        try:
            num_jobs = await start(folder)
        except StateUnusable as error:
            num_named += 1
            assert str(folder) in error.message and "backup" in error.message, error.message
        else:
            assert num_jobs <= 40
    assert part or num_named > 15  # of a log, SQLite leaves out what follows a wrong checksum, as after a power loss


async def test_an_empty_database_beside_jobs_is_refused_and_a_new_one_is_not(tmp_path: Path) -> None:
    used = await make_jobs(tmp_path / "used", 2)
    for path in used.glob("darkroom.db*"):
        path.unlink()
    (used / "darkroom.db").touch()
    with pytest.raises(StateUnusable, match=r"darkroom\.db: damaged: empty, though .* 2 jobs.*restore a backup"):
        JobStore(used).take_directory()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "darkroom.db").touch()
    assert await start(tmp_path / "new") == 0


async def test_a_log_that_is_none_is_refused(tmp_path: Path) -> None:
    used = await make_jobs(tmp_path / "used", 2)
    (used / "darkroom.db-wal").write_bytes(b"garbage" * 1000)
    with pytest.raises(StateUnusable, match=r"darkroom\.db-wal: damaged: no write-ahead log.*restore a backup"):
        JobStore(used).take_directory()


async def test_damage_met_while_running_is_named(tmp_path: Path) -> None:
    give_database(tmp_path)
    store = JobStore(tmp_path)
    await store.open()
    job = Job("one", 1, "h", JobRequest(), {"1": {"text": "a" * 3000}}, JobTimes(queued_at_ms=1))
    await store.insert(job)
    job.end(JobState.CANCELLED, "done", 2)
    await store.save(job)
    store._finished.clear()
    with contextlib.closing(sqlite3.connect(tmp_path / "darkroom.db")) as connection:
        connection.execute("UPDATE jobs SET message = CAST(x'ff80' AS TEXT)")
        connection.commit()
    with pytest.raises(StateUnusable, match=r"darkroom\.db: damaged.*restore a backup"):
        await store.find("one")
    await store.close()


def test_a_second_worker_is_told_who_is_there_and_that_it_needs_a_directory_of_its_own(tmp_path: Path) -> None:
    first = JobStore(tmp_path)
    first.take_directory()
    with pytest.raises(StateUnusable, match=r"in use by process \d+ on .*STATE_DIRECTORY of its own"):
        JobStore(tmp_path).take_directory()


async def test_a_database_without_its_tables_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    database_with(tmp_path, "DROP TABLE jobs")
    with pytest.raises(StateUnusable, match=r"darkroom\.db"):
        await JobStore(tmp_path).open()


def test_a_damaged_job_is_named_by_the_start_and_not_the_port(tmp_path: Path) -> None:
    names = (
        "id, number, body_hash, request, prompt, state, stage, attempt, seq, message, outputs, engine_response, times"
    )
    values = "'one', 1, 'h', '{}', '{}', 'pending', 'queued', 1, 1, '', '[]', '{}', '{\"queued_at_ms\": 1}'"
    database_with(tmp_path / "state", f"INSERT INTO jobs ({names}) VALUES ({values})")
    settings = settings_for(tmp_path / "state", "http://127.0.0.1:1", worker_port=0, base_directory=tmp_path)
    with pytest.raises(CannotStart, match="^job one in the job database: damaged: KeyError: 'webhook'"):
        run_front(settings, PromptTexts())
