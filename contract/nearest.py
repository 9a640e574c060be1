"""The name that was probably meant by a wrong one: what a "did you mean" says. Pure."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable
from typing import Any, Final

MAX_NAME_LENGTH = 300  # to compare a megabyte with anything takes seconds, too
MAX_COMPARISONS: Final = 100_000
"""Products of the lengths of two names that are compared letter by letter, for one wrong name: some 30 ms."""

CLOSE = 0.6
MAX_CANDIDATES = 3
MODEL_ENDINGS = frozenset({".safetensors", ".ckpt", ".pt", ".pth", ".bin"})


def nearest_name(given: str, known: Iterable[Any], *, cutoff: float = CLOSE, by_start: bool = False) -> str | None:
    """Return the known name that looks most like `given`; None when none does.

    Another case, `-` for `_`, another folder or another ending of a model count as the same name. `cutoff` in 0..1 is
    how alike the others must be; with `by_start` one that begins like `given`, or the other way round, will do.
    """
    return KnownNames(known).nearest(given, cutoff=cutoff, by_start=by_start)


class KnownNames:
    """Names that may have been meant, for several wrong ones."""

    def __init__(self, known: Iterable[Any]) -> None:
        self._names = {_folded(str(name)): str(name) for name in known}
        self._letters = {name: _letters(name) for name in self._names}

    def nearest(self, given: str, *, cutoff: float = CLOSE, by_start: bool = False) -> str | None:
        """Return the known name that is closest to `given`, as `nearest_name` does; None without a close one."""
        if not given or len(given) > MAX_NAME_LENGTH:
            return None
        wanted = _folded(given)
        if wanted in self._names:
            return self._names[wanted]
        # Of names with other letters no two are so alike; difflib looks at each a hundred times longer to say so.
        letters = _letters(wanted)
        fitting = [
            name
            for name, others in self._letters.items()
            if 2 * min(len(name) - (others & ~letters).bit_count(), len(wanted) - (letters & ~others).bit_count())
            >= cutoff * len(name + wanted)
        ]
        alike = _closest(wanted, fitting, MAX_CANDIDATES, cutoff)
        alike = [name for name in alike if not _means_another(wanted, name)]
        if not alike and by_start:
            alike = [name for name in self._names if name.startswith(wanted) or wanted.startswith(name)]
        return self._names[alike[0]] if alike else None


def nearest_names(given: str, known: Iterable[Any], *, limit: int, cutoff: float = CLOSE) -> tuple[str, ...]:
    """Return at most `limit` known names that look like `given`, the most alike first; see `nearest_name`."""
    if not given or len(given) > MAX_NAME_LENGTH:
        return ()
    names = {_folded(str(name)): str(name) for name in known}
    return tuple(names[name] for name in _closest(_folded(given), names, limit, cutoff))


def _closest(wanted: str, known: Iterable[str], limit: int, cutoff: float) -> list[str]:
    """Return the close matches as `difflib.get_close_matches`, in bounded time: hostile names could cost seconds.

    The bound of each ratio by the letters alone is computed first, and the most promising names are compared, until no
    other can be among the answer or MAX_COMPARISONS are spent.
    """
    matcher = difflib.SequenceMatcher(b=wanted)
    promising: list[tuple[float, str]] = []
    for name in known:
        if len(name) > MAX_NAME_LENGTH:
            continue
        matcher.set_seq1(name)
        if matcher.real_quick_ratio() >= cutoff and (most := matcher.quick_ratio()) >= cutoff:
            promising.append((most, name))
    found: list[tuple[float, str]] = []
    num_left = MAX_COMPARISONS
    for most, name in sorted(promising, reverse=True):
        num_left -= len(name) * len(wanted)
        if num_left < 0 or (len(found) == limit and most < found[0][0]):
            break
        matcher.set_seq1(name)
        if (ratio := matcher.ratio()) >= cutoff:
            heapq.heappush(found, (ratio, name))
            if len(found) > limit:
                heapq.heappop(found)
    return [name for _, name in sorted(found, reverse=True)]


def _means_another(given: str, known: str) -> bool:
    """Return True for names alike by common words alone, as `lora_name` and `vae_name` are."""
    left, right = given.split("_"), known.split("_")
    num_words = min(len(left), len(right))
    start = next((index for index in range(num_words) if left[index] != right[index]), num_words)
    left, right = left[start:], right[start:]
    num_words = min(len(left), len(right))
    end = next((index for index in range(num_words) if left[-1 - index] != right[-1 - index]), num_words)
    if start + end == 0 or len(left) == end or len(right) == end:
        return False
    own, other = "_".join(left[: len(left) - end]), "_".join(right[: len(right) - end])
    if not (own.replace("_", "").isalpha() and other.replace("_", "").isalpha()):  # versions and sizes are near
        return False
    return difflib.SequenceMatcher(None, own, other).ratio() < CLOSE


def _folded(name: str) -> str:
    """Return the name without folder and ending of a model, in lower case."""
    base = name.replace("\\", "/").lower().rstrip("/").rpartition("/")[2]
    stem, _, ending = base.rpartition(".")
    if stem and f".{ending}" in MODEL_ENDINGS:
        base = stem
    return base.replace("-", "_").replace(" ", "_")


def _letters(name: str) -> int:
    """Return a set of the name's characters as 64 bits; some characters share one."""
    letters = 0
    for character in set(name):
        letters |= 1 << ord(character) % 64
    return letters
