"""Residency plan of a use: the evictions and the bytes of each model to load. Pure arithmetic in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIB = 1 << 20
MINIMUM_INFERENCE_BYTES = 4 * (1 << 30) // 5  # 0.8 GiB: kept free of weights for working memory
DEFAULT_RESERVE_BYTES = 400 * MIB  # for other programs on the device


@dataclass(frozen=True, slots=True)
class Limits:
    """Memory never given to weights: a reserve, and on it a margin for inference that grows with the estimate."""

    reserve_bytes: int = DEFAULT_RESERVE_BYTES
    minimum_inference_bytes: int = MINIMUM_INFERENCE_BYTES

    def kept_free(self, working_bytes: int) -> int:
        return self.reserve_bytes + max(self.minimum_inference_bytes, working_bytes)


def limits_of(total_bytes: int) -> Limits:
    """Return the limits of a device of that size: below 2 GiB they are shares of it."""
    return Limits(
        reserve_bytes=min(DEFAULT_RESERVE_BYTES, total_bytes // 5),
        minimum_inference_bytes=min(MINIMUM_INFERENCE_BYTES, total_bytes * 2 // 5),
    )


@dataclass(frozen=True, slots=True)
class ResidentModel:
    """Model on the device that may be evicted. `last_used` grows with every use; `references` are its live values.

    `is_kept`: it was asked for to stay, and is evicted after all others.
    """

    id: int
    loaded_bytes: int
    size_bytes: int
    last_used: int
    references: int = 1
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Model that is about to run.

    `fixed_bytes` cannot be streamed block by block. `block_bytes` is the buffer for the largest of the other blocks
    (0: there are none). `casts`: all blocks pass through the buffers, also those on the device, since they are stored
    in another type than they compute in. `conversion_bytes` are taken while it loads, `patching_bytes` while it loads
    and, for offloaded blocks, while it computes. `patched_copy_bytes` are what its patched weights will take in
    addition, beside originals that stay on the device.
    """

    id: int
    size_bytes: int
    loaded_bytes: int = 0
    fixed_bytes: int = 0
    block_bytes: int = 0
    casts: bool = False
    conversion_bytes: int = 0
    patching_bytes: int = 0
    patched_copy_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Eviction:
    """Eviction of at least `num_bytes` of a model, or of all of it when that is all it has on the device."""

    id: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ResidencyPlan:
    """Plan of one use: evictions in order, then the bytes of weights of each request, then the cast buffers.

    `missing_bytes` is what lacks after all of it (0: it fits).
    """

    evict: tuple[Eviction, ...]
    weights: dict[int, int]
    num_buffers: int = 0
    buffer_bytes: int = 0
    missing_bytes: int = 0

    @property
    def evicted(self) -> tuple[int, ...]:
        return tuple(item.id for item in self.evict)


def eviction_order(residents: Sequence[ResidentModel]) -> list[ResidentModel]:
    """Sort models by the order of their eviction.

    First those that are not kept; then the least recently used; those offloaded most already; those with fewer
    references; the larger ones.
    """
    return sorted(
        residents,
        key=lambda item: (
            item.is_kept,
            item.last_used,
            item.loaded_bytes - item.size_bytes,
            item.references,
            -item.size_bytes,
        ),
    )


def plan_residency(
    requests: Sequence[LoadRequest],
    residents: Sequence[ResidentModel],
    *,
    free_bytes: int,
    working_bytes: int = 0,
    limits: Limits,
    max_buffers: int = 2,
    open_buffers: tuple[int, int] = (0, 0),
    in_part: bool = True,
    weights_share: float = 1.0,
) -> ResidencyPlan:
    """Plan how the requested models come to the device with `working_bytes` to compute in.

    They are loaded whole if others can be evicted for that. Otherwise, where `in_part` allows, as much is loaded as
    fits beside the margin for inference and the buffers; at the least the blocks that cannot be streamed and one
    buffer, even into the margin. `weights_share` below 1 loads only that share of the weights, 0 as few as possible.

    `open_buffers` are those of other uses, their number and size: they count as free, and stay.
    """
    num_open, open_bytes = open_buffers
    patched_copy_bytes = sum(item.patched_copy_bytes for item in requests)
    conversion_bytes = max((item.conversion_bytes for item in requests), default=0)
    patching_bytes = max((item.patching_bytes for item in requests), default=0)
    kept_free = limits.kept_free(max(working_bytes, conversion_bytes, patching_bytes))
    size_bytes = sum(item.size_bytes for item in requests)
    missing_bytes = size_bytes - sum(item.loaded_bytes for item in requests)
    casting_bytes = max((item.block_bytes for item in requests if item.casts), default=0)
    buffer_bytes, num_buffers = max(casting_bytes, open_bytes), max_buffers if casting_bytes else num_open
    wanted = missing_bytes + patched_copy_bytes + num_buffers * buffer_bytes + kept_free
    takes_all = weights_share >= 1.0
    if takes_all:
        evict, lacking = _evictions(residents, wanted - free_bytes)
        if lacking <= 0 or not in_part:
            whole = {item.id: item.size_bytes for item in requests}
            return ResidencyPlan(evict, whole, num_buffers, buffer_bytes, max(0, lacking))
    least_free = max(working_bytes + patching_bytes, conversion_bytes)
    kept_free = limits.kept_free(least_free)
    own_bytes = size_bytes - missing_bytes
    free_for_all = free_bytes + own_bytes + sum(item.loaded_bytes for item in residents)
    block_bytes = max(open_bytes, max((item.block_bytes for item in requests), default=0))
    least_buffers = max(num_open, 1 if block_bytes else 0)
    kept_free += patched_copy_bytes
    fixed_bytes = sum(item.fixed_bytes for item in requests)
    most_bytes = fixed_bytes + int((size_bytes - fixed_bytes) * weights_share)
    for num_buffers in range(max_buffers, least_buffers - 1, -1) if block_bytes else (0,):
        room = min(most_bytes, free_for_all - kept_free - num_buffers * block_bytes)
        if room >= fixed_bytes:
            break
    else:
        num_buffers, room = least_buffers, fixed_bytes
        kept_free = least_free + patched_copy_bytes
    evict, lacking = _evictions(residents, room + num_buffers * block_bytes + kept_free - own_bytes - free_bytes)
    return ResidencyPlan(evict, _shared_out(requests, room), num_buffers, block_bytes, max(0, lacking))


def _shared_out(requests: Sequence[LoadRequest], room: int) -> dict[int, int]:
    """Share `room` out: to each model its fixed bytes, then to the smaller models first all they can use."""
    shares = {item.id: item.fixed_bytes for item in requests}
    left = room - sum(shares.values())
    for item in sorted(requests, key=lambda item: item.size_bytes):
        more = max(0, min(left, item.size_bytes - item.fixed_bytes))
        shares[item.id] += more
        left -= more
    return shares


def _evictions(residents: Sequence[ResidentModel], missing: int) -> tuple[tuple[Eviction, ...], int]:
    """Return the evictions that free `missing` bytes, and the bytes that lack even then."""
    evict: list[Eviction] = []
    for resident_model in eviction_order(residents):
        if missing <= 0:
            break
        evict.append(Eviction(resident_model.id, min(resident_model.loaded_bytes, missing)))
        missing -= resident_model.loaded_bytes
    return tuple(evict), missing


def choose_blocks(block_bytes: Sequence[int], is_loaded: Sequence[bool], room: int) -> list[bool]:
    """Choose the blocks to be on the device within `room` bytes.

    Larger ones come first, so that the streamed ones are small; among equals those that are loaded already.
    """
    order = sorted(range(len(block_bytes)), key=lambda index: (-block_bytes[index], not is_loaded[index], index))
    chosen = [False] * len(block_bytes)
    for index in order:
        if block_bytes[index] <= room:
            chosen[index] = True
            room -= block_bytes[index]
    return chosen
