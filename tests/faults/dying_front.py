"""The front as it is, but for one thing: at one named point of a job's way it kills itself, as a machine vanishes.

    python -m tests.faults.dying_front POINT FILE

Real kills from outside cannot be aimed at the moment between a commit and the answer about it; this one is. It dies
when FILE is there, and removes it before, so that a test says which job is the last.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from darkroom.worker.app.serve import serve
from darkroom.worker.engines.client.prompt_runner import PromptRunner
from darkroom.worker.jobs.delivered_outputs import DeliveredOutputs
from darkroom.worker.jobs.fetched_inputs import FetchedInputs
from darkroom.worker.jobs.outbox import Outbox
from darkroom.worker.outputs.webhook import WebhookSender
from darkroom.worker.storage.store import JobStore

AFTER: dict[str, tuple[type, str]] = {
    "acknowledging": (JobStore, "insert"),  # on disk, and the client does not know
    "fetched": (FetchedInputs, "fetch"),
    "sent to the engine": (PromptRunner, "run"),  # it has run to its end, and nothing is known of it but there
    "collected": (DeliveredOutputs, "collect"),  # files linked, `generated` not on disk
    "delivered": (DeliveredOutputs, "deliver"),  # uploaded, and the end not on disk
    "webhook sent": (WebhookSender, "deliver"),  # received, and the outbox does not know
}
BEFORE: dict[str, tuple[type, str]] = {
    "running": (PromptRunner, "await_end"),  # the engine has taken it
    "delivering": (DeliveredOutputs, "deliver"),  # `generated`, and nothing uploaded yet
    "ended": (Outbox, "wake"),  # the end is on disk, its webhook not sent
}
POINTS = (*BEFORE, *AFTER)
TRIGGER = "die"
"""The file's name in the worker's folder."""


def arrange_death(point: str, trigger: Path) -> None:
    def die_if_told() -> None:
        if trigger.exists():
            trigger.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    owner, name = (BEFORE | AFTER)[point]
    surround = _dying_before if point in BEFORE else _dying_after
    setattr(owner, name, surround(getattr(owner, name), die_if_told))


def _dying_before(method: Callable[..., Any], die_if_told: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(method)
    def dying(*arguments: Any, **named: Any) -> Any:
        die_if_told()
        return method(*arguments, **named)

    return dying


def _dying_after(method: Callable[..., Awaitable[Any]], die_if_told: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def dying(*arguments: Any, **named: Any) -> Any:
        result = await method(*arguments, **named)
        die_if_told()
        return result

    return dying


if __name__ == "__main__":
    arrange_death(sys.argv[1], Path(sys.argv[2]))
    sys.exit(serve())
