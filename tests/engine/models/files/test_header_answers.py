"""Questions about a file are answered once, until the file changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from darkroom.engine.models.files.header_answers import HeaderAnswers


class Asked:
    """Answers of several questions, with a count of the readings."""

    def __init__(self, max_files: int = 100) -> None:
        self.answers = HeaderAnswers(max_files)
        self.num_read = 0

    def about(self, path: Path, question: str = "length") -> int:
        def read() -> int:
            self.num_read += 1
            return len(path.read_bytes())

        return self.answers.find(path, question, read)


def test_a_file_is_read_once_a_question_and_again_when_it_changes(tmp_path: Path) -> None:
    asked, path = Asked(), tmp_path / "a"
    path.write_bytes(b"12")
    assert [asked.about(path), asked.about(path), asked.num_read] == [2, 2, 1]
    assert [asked.about(path, "other"), asked.about(path), asked.num_read] == [2, 2, 2]
    path.write_bytes(b"123")
    assert [asked.about(path), asked.num_read] == [3, 3]
    os.utime(path, ns=(1, 1))
    assert [asked.about(path), asked.num_read] == [3, 4]
    path.unlink()
    with pytest.raises(FileNotFoundError):
        asked.about(path)


def test_the_files_asked_about_longest_ago_are_forgotten(tmp_path: Path) -> None:
    asked, paths = Asked(max_files=2), [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_bytes(b"1")
    for path in (paths[0], paths[1], paths[0], paths[2]):
        asked.about(path)
    assert asked.num_read == 3
    asked.about(paths[0])
    assert asked.num_read == 3, "it was asked about again before the third file came"
    asked.about(paths[1])
    assert asked.num_read == 4
