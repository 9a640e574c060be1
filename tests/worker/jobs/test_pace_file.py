"""The pace of the last runs on disk: what was written is read, and what is damaged counts as empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.worker.jobs.pace_file import NAME, PaceFile
from darkroom.worker.jobs.wait_estimate import REMEMBERED_RUNS, Run


def test_what_was_written_is_read_and_no_more_than_is_remembered(tmp_path: Path) -> None:
    runs = [Run(float(number), 20.0, 1) for number in range(REMEMBERED_RUNS + 5)]
    PaceFile(tmp_path / "state").write(runs)
    assert PaceFile(tmp_path / "state").read() == runs[-REMEMBERED_RUNS:]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"version": 2, "runs": [[1, 2, 3]]}', '{"version": 1, "runs": [[1, 2]]}',
     '{"version": 1, "runs": 3}',
     '{"version": 1, "runs": [[-1, 2, 3], [NaN, 1, 1], [1e999, 1, 1]]}', "\x00\x01"],
)  # fmt: skip
def test_a_damaged_file_counts_as_empty(tmp_path: Path, content: str) -> None:
    (tmp_path / NAME).write_text(content)
    assert PaceFile(tmp_path).read() == []


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    PaceFile(tmp_path / "state").write([Run(1.0, 2.0, 3)])
    assert PaceFile(tmp_path / "state").read() == []
