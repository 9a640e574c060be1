"""HeaderAnswers: what headers of model files say, kept while the files stay as they are."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TypeVar, cast

MAX_FILES = 10_000

Answer = TypeVar("Answer")


class HeaderAnswers:
    """Cache of answers to questions about files, by path, size and modification time. Callable from any thread.

    The files that were asked about longest ago leave it when there are more than `max_files`. Only answers are kept,
    neither headers nor open files.
    """

    def __init__(self, max_files: int = MAX_FILES) -> None:
        self._max_files = max_files
        self._lock = threading.Lock()
        self._files: OrderedDict[tuple[Path, int, int], dict[Hashable, object]] = OrderedDict()

    def find(self, path: Path, question: Hashable, read: Callable[[], Answer]) -> Answer:
        """Return the answer to a question about a file, by `read` if the file is new or has changed.

        Equal questions have answers of one type. Raises OSError for a file that is not there.
        """
        state = path.stat()
        key = path, state.st_size, state.st_mtime_ns
        with self._lock:
            answers = self._files.setdefault(key, {})
            self._files.move_to_end(key)
            if question in answers:
                return cast(Answer, answers[question])
            while len(self._files) > self._max_files:
                self._files.popitem(last=False)
        found = answers[question] = read()  # without the lock: two threads may read a new file at once
        return found
