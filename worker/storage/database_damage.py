"""Damage of the job database's file: found at the start, within a time, and named with what to do. Blocking."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Final

import sqlalchemy as sa
import structlog

from darkroom.worker.errors import StateUnusable

WAY_OUT: Final = (
    "restore a backup of the state directory, or move the directory away to begin without its jobs and results"
)
CHECK_SECONDS: Final = 2.0
"""Time for a check of the pages at a start, as far as SQLite looks at the time."""

MAX_CHECKED_BYTES: Final = 512 * 1024 * 1024
"""Largest file whose pages are checked at a start: 370 MB take 0.6 s from memory, and longer from a disk."""

STEPS_BETWEEN_LOOKS: Final = 20_000  # of SQLite's machine
LOG_HEADER_BYTES: Final = 32
LOG_MAGIC: Final = (bytes.fromhex("377f0682"), bytes.fromhex("377f0683"))
DAMAGE_WORDS: Final = ("malformed", "not a database", "could not decode", "corrupt", "unsupported file format")

log = structlog.get_logger("jobs.store")


def damaged(path: Path, what: str) -> StateUnusable:
    """Return the error of a damaged database, with what to do."""
    return StateUnusable(f"{path}: damaged: {what}. Stop the worker and {WAY_OUT}")


def damage_of(error: Exception) -> str | None:
    """Return the damage of its file that an error of the database tells; None for another error."""
    if isinstance(error, UnicodeDecodeError):
        return "a text is not UTF-8"
    said = str(error.orig if isinstance(error, sa.exc.DBAPIError) else error).partition("\n")[0]
    return said if any(words in said.lower() for words in DAMAGE_WORDS) else None


def check_file(path: Path) -> None:
    """Check the size of the file and the beginning of its write-ahead log. Raises StateUnusable.

    SQLite takes an empty file for a new database, and passes over a log that is none: the jobs in them would be gone
    without a word.
    """
    journal = path.with_name(f"{path.name}-wal")
    try:
        size_bytes = path.stat().st_size
        with contextlib.ExitStack() as opened:
            head = b""
            if journal.is_file():
                head = opened.enter_context(journal.open("rb")).read(LOG_HEADER_BYTES)
    except OSError as error:
        raise StateUnusable(f"{path}: cannot be read: {error.strerror or error}; check STATE_DIRECTORY") from None
    num_folders = sum(1 for _ in path.parent.glob("jobs/*"))
    if size_bytes == 0 and not head and num_folders:
        raise damaged(path, f"empty, though there are folders of {num_folders} jobs")
    if len(head) == LOG_HEADER_BYTES and head[:4] not in LOG_MAGIC and any(head):
        what = f"no write-ahead log; the last changes of {path.name} were in it"
        raise StateUnusable(
            f"{journal}: damaged: {what}. Stop the worker and restore a backup of the state directory, or move this "
            "file away to go on without them"
        )


def check_content(path: Path) -> None:
    """Check the structure of all pages of a file that is not too large. Raises StateUnusable, sqlite3.DatabaseError."""
    if path.stat().st_size > MAX_CHECKED_BYTES:
        log.info("job database not checked", file=str(path), reason="larger than a start may check")
        return
    ends_at = time.monotonic() + CHECK_SECONDS
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
        connection.set_progress_handler(lambda: time.monotonic() > ends_at, STEPS_BETWEEN_LOOKS)
        try:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.OperationalError as error:
            if "interrupted" not in str(error):
                raise
            log.info("job database checked in part", file=str(path), seconds=CHECK_SECONDS)
            return
    if found != "ok":
        raise damaged(path, " ".join(str(found).split()))
