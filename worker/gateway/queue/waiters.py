"""Waiters: the requests of workers that wait at this gateway for a job. A job wakes one of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Waiter:
    """One request that waits, and the models that its worker used last. It looks whenever it is woken."""

    models: frozenset[str]
    woken_for: str | None = None
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self, model: str) -> None:
        self.woken_for = model
        self._woken.set()

    async def is_woken(self, seconds: float) -> bool:
        """Wait to be woken. Returns False after this time. The caller looks for jobs then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        is_woken, self.woken_for = self.woken_for is not None, None
        self._woken.clear()
        return is_woken


class Waiters:
    """Owner of the waiters, the one that has waited for the longest first."""

    def __init__(self) -> None:
        self._waiting: dict[Waiter, None] = {}

    @property
    def has_any(self) -> bool:
        """True if somebody waits who was not woken."""
        return any(waiter.woken_for is None for waiter in self._waiting)

    @contextlib.contextmanager
    def waiting(self, models: Sequence[str]) -> Iterator[Waiter]:
        """Count a waiter. One that was woken and does not look any more wakes another."""
        waiter = Waiter(frozenset(models))
        self._waiting[waiter] = None
        try:
            yield waiter
        finally:
            del self._waiting[waiter]
            if waiter.woken_for is not None:
                self.wake(waiter.woken_for)

    def wake(self, model: str = "") -> bool:
        """Wake one waiter, if possible one that used this model last. Returns False without one."""
        asleep = [waiter for waiter in self._waiting if waiter.woken_for is None]
        if not asleep:
            return False
        fitting = (waiter for waiter in asleep if model in waiter.models)
        next(fitting, asleep[0]).wake(model)
        return True

    def wake_some(self, model: str, num: int) -> int:
        """Wake as many waiters. Returns the number of those that there were."""
        return next((woken for woken in range(num) if not self.wake(model)), num)

    def wake_all(self) -> None:
        """Wake everybody: jobs may have come of which nobody was told."""
        while self.wake():
            pass
