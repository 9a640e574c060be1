"""Owner of the strategies that have failed and are used by no run until the engine's next start."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping

log = logging.getLogger(__name__)


class BarredStrategies:
    """Strategies of one engine that raised an error while a run used them. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}
        self._failures: dict[str, int] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._reasons

    @property
    def reasons(self) -> Mapping[str, str]:
        """The first error of each barred strategy, as `<class>: <first line of its message>`."""
        with self._lock:
            return dict(self._reasons)

    @property
    def failures(self) -> Mapping[str, int]:
        """Number of failures of each strategy that failed; those of strategies that were barred together count each."""
        with self._lock:
            return dict(self._failures)

    def reason(self, name: str) -> str | None:
        """Return the error for which a strategy is barred, or None for one that is not."""
        return self._reasons.get(name)

    def bar(self, names: Collection[str], reason: str) -> None:
        """Bar strategies until the next start, count the failure of each, and log it once. Without names do nothing.

        `reason` is the error in one line. The first one of each strategy stays.
        """
        if not names:
            return
        with self._lock:
            for name in names:
                self._reasons.setdefault(name, reason)
                self._failures[name] = self._failures.get(name, 0) + 1
        log.warning("strategies barred until the next start: names=%s reason=%s", ",".join(names), reason)


def error_in_words(error: BaseException) -> str:
    """Return an error as one line: its class and the first line of its message."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
