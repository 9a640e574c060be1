"""Order in which a worker looks through the streams of a broker. Pure.

Streams of higher priority come first. Within a priority, streams of models that the worker used last come before the
stream of any model, and streams of other models last; but a stream whose oldest job has waited for longer than
`PATIENCE_SECONDS` goes first, so that no model starves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PRIORITIES = ("high", "normal", "low")
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class JobStream:
    """A stream of one priority, of the jobs of one model if `model` is not empty."""

    priority: str
    model: str = ""

    @property
    def suffix(self) -> str:
        """Name of the stream below the prefix of all keys."""
        return f"jobs:{self.priority}:model:{self.model}" if self.model else f"jobs:{self.priority}"

    @staticmethod
    def of(suffix: str) -> JobStream | None:
        """Return the stream of a name, None for a name that no stream has."""
        kind, _, rest = suffix.partition(":")
        priority, _, rest = rest.partition(":")
        if kind != "jobs" or priority not in PRIORITIES:
            return None
        if not rest:
            return JobStream(priority)
        word, _, model = rest.partition(":")
        return JobStream(priority, model) if word == "model" and model else None


def priority_name(priority: int) -> str:
    """Return the stream's word for the `priority` of a request."""
    return "high" if priority > 0 else "low" if priority < 0 else "normal"


def in_order(
    streams: Iterable[JobStream], models: Sequence[str], waited_seconds: dict[JobStream, float]
) -> list[JobStream]:
    """Return the streams in the order to take jobs from. `models`: those used by the worker, the last one first."""

    def key(stream: JobStream) -> tuple[int, float, int, str]:
        waited = waited_seconds.get(stream, 0.0)
        is_late = waited > PATIENCE_SECONDS
        place = models.index(stream.model) if stream.model in models else len(models) + bool(stream.model)
        return PRIORITIES.index(stream.priority), -waited if is_late else 0.0, place, stream.model

    return sorted(streams, key=key)
