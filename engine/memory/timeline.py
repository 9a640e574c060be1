"""Memory timeline of a prompt: what each stage brings to a device of a given size, and who leaves for it. Pure.

The decisions are those of the pool (`plan.py`); sizes are of headers and formulas, so the bytes are estimates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from darkroom.engine.memory.plan import LoadRequest, ResidentModel, limits_of, plan_residency

StageKind = Literal["text_encoder", "network", "vae"]


@dataclass(frozen=True, slots=True)
class StageNeed:
    """A node that computes with a model: the bytes of the weights, of the largest layer, and of working memory."""

    node_id: str
    class_type: str
    kind: StageKind
    model: str
    weights_bytes: int
    block_bytes: int = 0
    working_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A stage on the device: weights that are brought whole or in part, those brought layer by layer, who leaves.

    `device_bytes` is what all weights and the working memory take while it computes, `missing_bytes` what lacks.
    """

    need: StageNeed
    loaded_bytes: int
    streamed_bytes: int
    evicted: tuple[tuple[StageKind, str], ...]
    device_bytes: int
    missing_bytes: int


def memory_timeline(needs: Sequence[StageNeed], total_bytes: int, *, is_shared: bool = False) -> Iterator[StagePlan]:
    """Yield the plan of each stage in order, on a device that is empty at first.

    With `is_shared` the memory is the processor's own, where weights stay and nothing is streamed.
    """
    limits = limits_of(total_bytes)
    names = list(dict.fromkeys((need.kind, need.model) for need in needs))
    on_device: dict[int, int] = {}  # bytes of each model
    last_used: dict[int, int] = {}
    for turn, need in enumerate(needs):
        own = names.index((need.kind, need.model))
        sizes = {names.index((item.kind, item.model)): item.weights_bytes for item in needs}
        others = [
            ResidentModel(item, loaded, sizes[item], last_used[item])
            for item, loaded in on_device.items()
            if item != own and loaded
        ]
        request = LoadRequest(own, need.weights_bytes, on_device.get(own, 0), 0, need.block_bytes)
        plan = plan_residency(
            [request], others, free_bytes=total_bytes - sum(on_device.values()), working_bytes=need.working_bytes,
            limits=limits, in_part=not is_shared,
        )  # fmt: skip
        for item in plan.evict:
            on_device[item.id] -= item.num_bytes
        on_device[own], last_used[own] = plan.weights[own], turn
        buffers = plan.num_buffers * plan.buffer_bytes if plan.weights[own] < need.weights_bytes else 0
        yield StagePlan(
            need,
            plan.weights[own],
            need.weights_bytes - plan.weights[own],
            tuple(names[item.id] for item in plan.evict),
            sum(on_device.values()) + buffers + need.working_bytes,
            plan.missing_bytes,
        )
