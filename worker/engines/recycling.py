"""Choice of the engine to replace for its memory, where what it can release does not suffice. Pure.

An engine that legitimately needs more than the limit would be replaced after every job; so each replacement that did
not help for long doubles the time until the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FIRST_REST_SECONDS = 30.0
LONGEST_REST_SECONDS = 3600.0
DEFAULT_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of one engine of ours, and the facts that decide about its replacement.

    `num_prompts` have run since its start; `age_seconds` is the time since its start or since it last released all
    memory it could; `num_recycled` counts its replacements and the releases that sufficed.
    """

    name: str
    rss_bytes: int
    num_prompts: int
    age_seconds: float
    num_recycled: int


def soft_limit_bytes(asked: int | None, total: int | None) -> int | None:
    """Return the limit that is set (0: no limit), else a share of the total; None: no limit."""
    if asked is not None:
        return asked or None
    return None if total is None else round(total * DEFAULT_SHARE)


def is_over_limit(total_bytes: int, limit_bytes: int | None, *, is_below_floor: bool) -> bool:
    return is_below_floor or (limit_bytes is not None and total_bytes > limit_bytes)


def engine_to_recycle(
    engines: Sequence[MemoryUse], front_bytes: int, limit_bytes: int | None, *, is_below_floor: bool
) -> str | None:
    """Return the name of the engine to replace, the largest that may be; None where none needs to be or may be.

    An engine that has run nothing since its start would come back as it is.
    """
    total = front_bytes + sum(engine.rss_bytes for engine in engines)
    if not is_over_limit(total, limit_bytes, is_below_floor=is_below_floor):
        return None
    may_be = [
        engine for engine in engines if engine.num_prompts > 0 and engine.age_seconds >= min_interval_seconds(engine)
    ]
    largest = max(may_be, key=lambda engine: engine.rss_bytes, default=None)
    return None if largest is None else largest.name


def min_interval_seconds(engine: MemoryUse) -> float:
    """Return the minimum time between two replacements of an engine; the first may come at once."""
    if engine.num_recycled == 0:
        return 0.0
    return min(FIRST_REST_SECONDS * 2.0 ** (engine.num_recycled - 1), LONGEST_REST_SECONDS)
