"""Interface of a source as a transfer reads it: bytes from an offset, with what tells its content apart. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RemoteBody:
    """Bytes of a file as they come, from `start` on.

    `size_bytes` is the whole file's, None if the source does not give it. `validator` differs for different contents at
    one source (an ETag). `sha256` is what the source publishes. A source that `has_ranges` gives any part of the file.
    """

    start: int
    size_bytes: int | None
    validator: str
    sha256: str | None
    has_ranges: bool
    chunks: AsyncIterator[bytes]


class Remote(Protocol):
    """A model file at one of its sources."""

    @property
    def shown(self) -> str:
        """The source without secrets."""
        ...

    def open(self, start: int, stop: int) -> AbstractAsyncContextManager[RemoteBody]:
        """Open bytes `start` to `stop` (exclusive), or the whole file where the source has no ranges.

        Raises Passing where another try may succeed, and SourceFailed; both also while the bytes come.
        """
        ...


class Passing(Exception):
    """A fault of a source that may be over at the next try. `reason` is short and without addresses."""

    def __init__(self, reason: str, *, retry_after_seconds: float = 0.0, has_answered: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds
        self.has_answered = has_answered
