"""Run: one prompt that an engine has, with its progress."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from darkroom.worker.engines.client.lost import EngineLost
from darkroom.worker.engines.preview_frames import PreviewFrame

OnMessage = Callable[[str, Mapping[str, Any]], None]
OnPreview = Callable[[PreviewFrame], None]


@dataclass(slots=True, eq=False)
class Run:
    """Prompt that the engine has, with its progress and the event that wakes its waiting task."""

    prompt_id: str
    on_message: OnMessage
    has_events: bool = True
    """On our socket; False for a prompt of the front before this one."""
    is_own: bool = False
    """True for a prompt of the front itself, which belongs to no job."""
    on_preview: OnPreview | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    should_look: bool = False
    """In the history, because it may have ended."""
    is_sent: bool = False
    is_recalled: bool = False
    is_past_nodes: bool = False
    """Its nodes have run; the rest holds nothing up."""
    started_at: float | None = None
    """The event loop's clock."""
    reported_at: float | None = None
    """The same: its last progress report."""
    longest_gap_seconds: float = 0.0
    """Between two of them."""
    lost: EngineLost | None = None
    first_id: str = ""
    """Id of the prompt that this one continues, by way of others; empty: none."""

    def following(self, prompt_id: str) -> Run:
        """Return the run of a prompt that continues this one, for the job a part of the same run."""
        return Run(
            prompt_id,
            self.on_message,
            has_events=self.has_events,
            is_own=self.is_own,
            on_preview=self.on_preview,
            is_sent=True,
            should_look=True,
            started_at=self.started_at,
            first_id=self.first_id or self.prompt_id,
        )

    def report(self, now: float) -> None:
        """Note a progress report."""
        if self.reported_at is not None:
            self.longest_gap_seconds = max(self.longest_gap_seconds, now - self.reported_at)
        self.reported_at = now

    def look(self) -> None:
        """Wake the waiting task, which then looks in the history."""
        self.should_look = True
        self.wake.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for `wake`, which is cleared. Return False when it did not come within the time."""
        if not self.wake.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.wake.wait()
        was_woken = self.wake.is_set()
        self.wake.clear()
        return was_woken


def at_nodes(runs: Iterable[Run]) -> list[Run]:
    """Return the runs that have nodes left to execute, as far as is known."""
    return [run for run in runs if not run.is_past_nodes]


def sent(runs: Sequence[Run]) -> list[Run]:
    """Return the runs whose prompt the engine has; where none is known to be there, all that are being sent."""
    return [run for run in runs if run.is_sent] or list(runs)
