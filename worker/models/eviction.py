"""Eviction policies of the model files on disk: which to remove so that the others fit. Pure.

`lru` removes the file that was unused for longest. `gdsf` (Greedy-Dual Size Frequency; Cherkasova, 1998) removes the
one whose next use is worth least: uses times the seconds of its download, per byte, with a clock that ages old uses.
`ttl` removes what was unused for a while even where there is room, and by `lru` beyond that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal

Policy = Literal["lru", "gdsf", "ttl"]

FETCH_SECONDS = 2.0  # of a download of any size
FETCH_BYTES_PER_SECOND = 200e6


@dataclass(frozen=True, slots=True)
class FileUse:
    """Use of a model file. `worth` is its priority by `gdsf`, set at each use."""

    place: str
    size_bytes: int
    used_at_seconds: float
    num_uses: int = 1
    worth: float = 0.0


@dataclass(frozen=True, slots=True)
class EvictionRules:
    """`max_bytes` 0: no limit. `unused_seconds` counts for `ttl` alone."""

    policy: Policy = "lru"
    max_bytes: int = 0
    unused_seconds: float = 7 * 86400.0


def after_use(use: FileUse, at_seconds: float, clock: float) -> FileUse:
    """Return the use of a file after one more; `clock` is the worth of the last file that was evicted."""
    num_uses = use.num_uses + 1
    return replace(use, used_at_seconds=at_seconds, num_uses=num_uses, worth=clock + _gain(use.size_bytes, num_uses))


def first_use(place: str, size_bytes: int, at_seconds: float, clock: float) -> FileUse:
    """Return the use of a file that has just come."""
    return FileUse(place, size_bytes, at_seconds, worth=clock + _gain(size_bytes, 1))


def choose_victims(
    files: Iterable[FileUse], held: Collection[str], rules: EvictionRules, now_seconds: float, *, room_bytes: int = 0
) -> list[FileUse]:
    """Return the files to remove, in order, so that `room_bytes` more fit below the limit.

    A held file is never among them, even if the limit cannot be kept then.
    """
    listed = list(files)
    free_to_go = sorted((file for file in listed if file.place not in held), key=lambda file: _rank(file, rules))
    expired = [file for file in free_to_go if _is_expired(file, rules, now_seconds)]
    victims = list(expired)
    if rules.max_bytes:
        over = sum(file.size_bytes for file in listed) + room_bytes - rules.max_bytes
        over -= sum(file.size_bytes for file in expired)
        for file in free_to_go:
            if over <= 0:
                break
            if file not in expired:
                victims.append(file)
                over -= file.size_bytes
    return victims


def victims_for_room(
    files: Iterable[FileUse], held: Collection[str], rules: EvictionRules, needed_bytes: int
) -> list[FileUse]:
    """Return the files whose removal frees the wanted bytes of the disk; fewer where the others are held."""
    victims: list[FileUse] = []
    for file in sorted((file for file in files if file.place not in held), key=lambda file: _rank(file, rules)):
        if needed_bytes <= 0:
            break
        victims.append(file)
        needed_bytes -= file.size_bytes
    return victims


def _rank(file: FileUse, rules: EvictionRules) -> tuple[float, float]:
    return (file.worth if rules.policy == "gdsf" else 0.0, file.used_at_seconds)


def _is_expired(file: FileUse, rules: EvictionRules, now_seconds: float) -> bool:
    return rules.policy == "ttl" and now_seconds - file.used_at_seconds > rules.unused_seconds


def _gain(size_bytes: int, num_uses: int) -> float:
    """Return the seconds of download that a file saves for each byte it takes."""
    return num_uses * (FETCH_SECONDS + size_bytes / FETCH_BYTES_PER_SECOND) / max(1, size_bytes)
