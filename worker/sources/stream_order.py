"""Order in which a worker looks through the streams of a broker. Pure.

Streams of higher priority come first. Within a priority the owner goes first whose last turn is the longest ago, so
that one with few jobs does not wait for all those of another. Of an owner, streams of models that the worker used last
come before the stream of any model, and streams of other models last; but a stream whose oldest job has waited for
longer than `PATIENCE_SECONDS` goes first, so that no model starves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

PRIORITIES = ("high", "normal", "low")
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class JobStream:
    """A stream of one priority, of the jobs of one model or of one owner where these are not empty."""

    priority: str
    model: str = ""
    owner: str = ""

    @property
    def suffix(self) -> str:
        """Name of the stream below the prefix of all keys."""
        owner = f":owner:{quote(self.owner, safe='')}" if self.owner else ""
        model = f":model:{self.model}" if self.model else ""
        return f"jobs:{self.priority}{owner}{model}"

    @property
    def is_common(self) -> bool:
        """True for the stream of all models and owners, which is always there."""
        return not self.model and not self.owner

    @staticmethod
    def of(suffix: str) -> JobStream | None:
        """Return the stream of a name, None for a name that no stream has."""
        kind, _, rest = suffix.partition(":")
        priority, _, rest = rest.partition(":")
        if kind != "jobs" or priority not in PRIORITIES:
            return None
        owner, separator = "", ""
        if rest.startswith("owner:"):
            owner, separator, rest = rest.removeprefix("owner:").partition(":")
            if not owner or (separator and not rest):
                return None
        if not rest:
            return JobStream(priority, owner=unquote(owner))
        word, _, model = rest.partition(":")
        return JobStream(priority, model, unquote(owner)) if word == "model" and model else None


def priority_name(priority: int) -> str:
    """Return the stream's word for the `priority` of a request."""
    return "high" if priority > 0 else "low" if priority < 0 else "normal"


def in_order(
    streams: Iterable[JobStream],
    models: Sequence[str],
    waited_seconds: Mapping[JobStream, float],
    last_turns: Mapping[str, float],
) -> list[JobStream]:
    """Return the streams in the order to take jobs from. `models`: those used by the worker, the last one first.

    `last_turns`: when an owner's job was taken last; an owner without one comes first.
    """

    def key(stream: JobStream) -> tuple[int, float, float, int, str, str]:
        waited = waited_seconds.get(stream, 0.0)
        is_late = waited > PATIENCE_SECONDS
        place = models.index(stream.model) if stream.model in models else len(models) + bool(stream.model)
        turn = last_turns.get(stream.owner, 0.0)
        priority = PRIORITIES.index(stream.priority)
        return priority, turn, -waited if is_late else 0.0, place, stream.owner, stream.model

    return sorted(streams, key=key)
