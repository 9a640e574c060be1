"""Back-off: the pauses between tries of anything that may go well later. Pure."""

from __future__ import annotations

import email.utils
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenacity import RetryCallState

MAX_EXPONENT = 64  # beyond it every pause is the longest, and a power would overflow


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow by `factor` up to `longest_seconds`; also tenacity's `wait`.

    `jitter` is the share by which chance lengthens or shortens a pause.
    """

    first_seconds: float
    longest_seconds: float
    factor: float = 2.0
    jitter: float = 0.0

    def seconds(self, num_failures: int, chance: float = 0.5) -> float:
        """Return the pause after this number of failures in a row, 1 after the first; `chance` in 0..1 spreads it."""
        exponent = min(max(num_failures - 1, 0), MAX_EXPONENT)
        pause = min(self.first_seconds * self.factor**exponent, self.longest_seconds)
        return pause * (1 - self.jitter + 2 * self.jitter * chance)

    def __call__(self, state: RetryCallState) -> float:
        return self.seconds(state.attempt_number)


def retry_after_seconds(header: str | None, now_seconds: float) -> float | None:
    """Return the wait of a `Retry-After` header, which has seconds or an HTTP date; None when it has neither.

    `now_seconds` is the epoch's; a date that has passed asks for no wait.
    """
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:10])
    try:
        at = email.utils.parsedate_to_datetime(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return max(0.0, (at - datetime.fromtimestamp(now_seconds, UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None
