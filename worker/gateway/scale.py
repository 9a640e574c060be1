"""Work of the fleet for autoscalers: every job that waits or that a worker holds, by class. `GET /api/v1/scale`.

A worker is wanted for each of these jobs, those of model streams among them. A job that is stored and not sent yet
counts as well: it will be sent.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable

from pydantic import BaseModel, Field

from darkroom.worker.errors import DatabaseUnreachable, NotReady
from darkroom.worker.gateway.gateway import Gateway
from darkroom.worker.sources.broker import BrokerUnreachable, StreamDepth
from darkroom.worker.sources.stream_order import PRIORITIES


class Work(BaseModel):
    """Jobs that wait or that workers hold. `jobs` is all of them, what an autoscaler goes by."""

    jobs: int
    """Jobs at the broker and not sent yet."""

    unsent: int = 0
    """Jobs that are stored and not at the broker."""

    by_priority: dict[str, int] = Field(default_factory=dict)
    """Jobs at the broker by their stream's priority: high, normal and low."""

    by_model: dict[str, int] = Field(default_factory=dict)
    """Jobs at the broker by the model file of their stream, "" for the streams of every worker."""


def work_of(depths: Iterable[StreamDepth], num_unsent: int) -> Work:
    """Return the work in streams, and of jobs that are in none yet."""
    by_priority, by_model = Counter(dict.fromkeys(PRIORITIES, 0)), Counter({"": 0})
    for depth in depths:
        by_priority[depth.priority] += depth.num_jobs
        by_model[depth.model] += depth.num_jobs
    return Work(
        jobs=by_priority.total() + num_unsent, unsent=num_unsent, by_priority=by_priority, by_model=by_model
    )  # fmt: skip


async def read_work(gateway: Gateway) -> Work:
    """Return the work at the broker and in the database; of that which answers where one is away.

    Raises NotReady where neither does: an autoscaler must not take that for no work.
    """
    try:
        depths = await gateway.producer.depths()
    except BrokerUnreachable as error:
        try:
            return Work(jobs=await gateway.records.num_live(is_probe=True))
        except DatabaseUnreachable:
            raise NotReady(f"The broker cannot be reached: {error}", retry_after_seconds=5) from None
    num_unsent = 0
    with contextlib.suppress(DatabaseUnreachable):
        num_unsent = await gateway.records.num_unsent()
    return work_of(depths, num_unsent)
