"""PromptTexts: the texts of recent prompts, which no log record may contain unless LOG_PROMPTS is set.

A text is a literal of a node's input, line by line. Names of files stay visible, and so do numbers. A text is replaced
where it occurs whole; a node that logs a part of one or another spelling of it is not detected.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Final

from darkroom.worker.json.values import JsonObject, object_at

MIN_LENGTH: Final = 3
MAX_TEXTS: Final = 1000  # of one prompt, the longest first
MAX_LINES: Final = 20_000  # of one prompt that are compared
PROMPTS_KEPT: Final = 32  # after their job has ended: the engine's output may come later
HIDDEN: Final = "[prompt]"

_LINE: Final = re.compile(r"[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")  # as `splitlines` has them
_FILE_NAME: Final = re.compile(r"[^\s]+\.[A-Za-z0-9]{2,12}")


class PromptTexts:
    """Texts of the prompts that run and of the last ones that have ended, by job."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, ...]] = {}
        self._released: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def hold(self, job_id: str, prompt: JsonObject) -> None:
        """Remember the texts of a job's prompt until it is released."""
        if job_id not in self._held:
            texts = set(islice(texts_of(prompt), MAX_LINES))
            self._held[job_id] = tuple(sorted(texts, key=len, reverse=True)[:MAX_TEXTS])

    def release(self, job_id: str) -> None:
        """Forget the texts of a job that has ended once PROMPTS_KEPT others have ended after it."""
        self._released[job_id] = self._held.pop(job_id, ())
        self._released.move_to_end(job_id)
        while len(self._released) > PROMPTS_KEPT:
            self._released.popitem(last=False)

    def hide(self, value: str) -> str:
        """Return a text of a log record without the texts of prompts."""
        for texts in (*self._held.values(), *self._released.values()):
            for text in texts:
                if text in value:
                    value = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", HIDDEN, value)
        return value


def texts_of(prompt: JsonObject) -> Iterator[str]:
    """Yield the lines of the literal texts in a prompt. Pure."""
    for node_id in prompt:
        for value in object_at(prompt, node_id, "inputs").values():
            for line in _lines(value) if isinstance(value, str) else ():
                text = line.strip()
                if len(text) >= MIN_LENGTH and not _FILE_NAME.fullmatch(text) and not text.isdigit():
                    yield text


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a text without a list of all of them: there may be millions."""
    return (found[0] for found in _LINE.finditer(text))
