"""Who leaves the device, and how much of a model comes, before it runs: pure arithmetic in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIB = 1 << 20
MINIMUM_INFERENCE_BYTES = 4 * (1 << 30) // 5  # 0.8 GiB: kept free of weights for what computing takes
DEFAULT_RESERVE_BYTES = 400 * MIB  # for other programs on the device


@dataclass(frozen=True, slots=True)
class Limits:
    """What is never given to weights. A margin for inference is on top of the reserve, and grows with the estimate."""

    reserve_bytes: int = DEFAULT_RESERVE_BYTES
    minimum_inference_bytes: int = MINIMUM_INFERENCE_BYTES

    def kept_free(self, working_bytes: int) -> int:
        return self.reserve_bytes + max(self.minimum_inference_bytes, working_bytes)


def limits_of(total_bytes: int) -> Limits:
    """The limits of a device so large: on less than 2 GiB the same shares of it."""
    return Limits(
        reserve_bytes=min(DEFAULT_RESERVE_BYTES, total_bytes // 5),
        minimum_inference_bytes=min(MINIMUM_INFERENCE_BYTES, total_bytes * 2 // 5),
    )


@dataclass(frozen=True, slots=True)
class Occupant:
    """A model on the device that may leave. `last_used` grows with every use; `references` are its values alive.

    `is_kept`: somebody asked for it to stay; it leaves after all others. `fixed_bytes` leave only with the rest.
    """

    id: int
    loaded_bytes: int
    size_bytes: int
    last_used: int
    references: int = 1
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A model that is about to run. `fixed_bytes` cannot be brought over block by block; `block_bytes` is what the
    largest of the other blocks takes while it is (0: there are none). `casts`: all blocks pass through the buffers,
    also those on the device, since they are kept in another type than they compute in. `landing_bytes` are taken while
    it loads, `patching_bytes` while it loads and, for blocks that are away, while it computes. `beside_bytes` are what
    its patched weights will take more than now, beside originals that stay on the device.
    """

    id: int
    size_bytes: int
    loaded_bytes: int = 0
    fixed_bytes: int = 0
    block_bytes: int = 0
    casts: bool = False
    landing_bytes: int = 0
    patching_bytes: int = 0
    beside_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Eviction:
    """At least `num_bytes` of a model leave; all of it when that is all it has there."""

    id: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ResidencyPlan:
    """`evict` in order; `weights`: how many bytes of each newcomer may lie on the device; then so many cast buffers of
    that size. `missing_bytes` is what lacks after all of it (0: it fits).
    """

    evict: tuple[Eviction, ...]
    weights: dict[int, int]
    num_buffers: int = 0
    buffer_bytes: int = 0
    missing_bytes: int = 0

    @property
    def evicted(self) -> tuple[int, ...]:
        return tuple(item.id for item in self.evict)


def eviction_order(occupants: Sequence[Occupant]) -> list[Occupant]:
    """Who leaves first: those not kept; the least recently used; those off-loaded most already; those with fewer
    references; the larger ones.
    """
    return sorted(
        occupants,
        key=lambda item: (
            item.is_kept,
            item.last_used,
            item.loaded_bytes - item.size_bytes,
            item.references,
            -item.size_bytes,
        ),
    )


def plan_residency(
    newcomers: Sequence[Newcomer],
    occupants: Sequence[Occupant],
    *,
    free_bytes: int,
    working_bytes: int = 0,
    limits: Limits,
    max_buffers: int = 2,
    open_buffers: tuple[int, int] = (0, 0),
    in_part: bool = True,
    weights_share: float = 1.0,
) -> ResidencyPlan:
    """How the newcomers come to the device with `working_bytes` to compute in.

    Whole if the others can leave for that; else, where `in_part` allows, as much as fits beside the margin for
    inference and the buffers; at the least the blocks that cannot be brought over and one buffer, the margin
    notwithstanding. `weights_share` below 1 lets only that share of the weights come, 0 as few as possible.

    `open_buffers` are those of other uses, how many and of what size: they count as free, and stay.
    """
    num_open, open_bytes = open_buffers
    beside_bytes = sum(item.beside_bytes for item in newcomers)
    landing_bytes = max((item.landing_bytes for item in newcomers), default=0)
    patching_bytes = max((item.patching_bytes for item in newcomers), default=0)
    kept_free = limits.kept_free(max(working_bytes, landing_bytes, patching_bytes))
    size_bytes = sum(item.size_bytes for item in newcomers)
    missing_bytes = size_bytes - sum(item.loaded_bytes for item in newcomers)
    casting_bytes = max((item.block_bytes for item in newcomers if item.casts), default=0)
    buffer_bytes, num_buffers = max(casting_bytes, open_bytes), max_buffers if casting_bytes else num_open
    wanted = missing_bytes + beside_bytes + num_buffers * buffer_bytes + kept_free
    takes_all = weights_share >= 1.0
    if takes_all:
        evict, lacking = _evictions(occupants, wanted - free_bytes)
        if lacking <= 0 or not in_part:
            whole = {item.id: item.size_bytes for item in newcomers}
            return ResidencyPlan(evict, whole, num_buffers, buffer_bytes, max(0, lacking))
    least_free = max(working_bytes + patching_bytes, landing_bytes)
    kept_free = limits.kept_free(least_free)
    own_bytes = size_bytes - missing_bytes
    free_for_all = free_bytes + own_bytes + sum(item.loaded_bytes for item in occupants)
    block_bytes = max(open_bytes, max((item.block_bytes for item in newcomers), default=0))
    least_buffers = max(num_open, 1 if block_bytes else 0)
    kept_free += beside_bytes
    fixed_bytes = sum(item.fixed_bytes for item in newcomers)
    most_bytes = fixed_bytes + int((size_bytes - fixed_bytes) * weights_share)
    for num_buffers in range(max_buffers, least_buffers - 1, -1) if block_bytes else (0,):
        room = min(most_bytes, free_for_all - kept_free - num_buffers * block_bytes)
        if room >= fixed_bytes:
            break
    else:
        num_buffers, room = least_buffers, fixed_bytes
        kept_free = least_free + beside_bytes
    evict, lacking = _evictions(occupants, room + num_buffers * block_bytes + kept_free - own_bytes - free_bytes)
    return ResidencyPlan(evict, _shared_out(newcomers, room), num_buffers, block_bytes, max(0, lacking))


def _shared_out(newcomers: Sequence[Newcomer], room: int) -> dict[int, int]:
    """What each may have: all its fixed bytes, then the smaller ones first as much as they can use."""
    shares = {item.id: item.fixed_bytes for item in newcomers}
    left = room - sum(shares.values())
    for item in sorted(newcomers, key=lambda item: item.size_bytes):
        more = max(0, min(left, item.size_bytes - item.fixed_bytes))
        shares[item.id] += more
        left -= more
    return shares


def _evictions(occupants: Sequence[Occupant], missing: int) -> tuple[tuple[Eviction, ...], int]:
    """Who leaves so that `missing` bytes become free, and what lacks even then."""
    evict: list[Eviction] = []
    for occupant in eviction_order(occupants):
        if missing <= 0:
            break
        evict.append(Eviction(occupant.id, min(occupant.loaded_bytes, missing)))
        missing -= occupant.loaded_bytes
    return tuple(evict), missing


def choose_blocks(block_bytes: Sequence[int], is_there: Sequence[bool], room: int) -> list[bool]:
    """Which blocks lie on the device when `room` bytes are theirs: larger ones first, so that those brought over again
    and again are small; among equals those that are there already.
    """
    order = sorted(range(len(block_bytes)), key=lambda index: (-block_bytes[index], not is_there[index], index))
    chosen = [False] * len(block_bytes)
    for index in order:
        if block_bytes[index] <= room:
            chosen[index] = True
            room -= block_bytes[index]
    return chosen
