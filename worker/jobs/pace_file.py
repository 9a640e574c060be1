"""PaceFile: the durations of the last runs in the state directory, so that a worker estimates right after a restart."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from darkroom.worker.jobs.wait_estimate import REMEMBERED_RUNS, Run

NAME: Final = "pace.json"
VERSION: Final = 1

log = structlog.get_logger("jobs")


class PaceFile:
    """The last runs, in one file that is replaced as a whole. An unreadable file counts as empty."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME

    def read(self) -> list[Run]:
        try:
            body = json.loads(self._path.read_text(encoding="utf-8"))
            rows = body["runs"][-REMEMBERED_RUNS:] if body["version"] == VERSION else []
            runs = [Run(float(seconds), float(cost), int(num_files)) for seconds, cost, num_files in rows]
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return []
        return [run for run in runs if 0 <= run.seconds < float("inf") and 0 <= run.cost < float("inf")]

    def write(self, runs: Sequence[Run]) -> None:
        """Replace the file. A full disk is logged: estimates are then made anew after a restart."""
        rows = [[round(run.seconds, 4), run.cost, run.num_files] for run in runs]
        whole = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump({"version": VERSION, "runs": rows}, file)
            whole.replace(self._path)
        except OSError as error:
            log.warning("pace not stored", reason=error.strerror or str(error))
