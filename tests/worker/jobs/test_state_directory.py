"""State directories that cannot be used: the message names the file, what is wrong with it and what to do."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from tests.worker.databases import give_database
from tests.worker.running_front import settings_for
from worker.errors import StateUnusable
from worker.jobs.store import JobStore
from worker.observe.prompt_texts import PromptTexts
from worker.serve import CannotStart, run_front


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
