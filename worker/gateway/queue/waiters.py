"""Waiters: the requests of workers that wait at this gateway for a job. A job wakes one of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Waiter:
    """One request that waits, and the models that its worker used last. It looks whenever it is woken.

    `fall_asleep` is called once it waits again.
    """

    models: frozenset[str]
    fall_asleep: Callable[[Waiter], None]
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
        if self.woken_for is None:
            return False
        self.woken_for = None
        self._woken.clear()
        self.fall_asleep(self)
        return True


class Waiters:
    """Owner of the waiters, the one that has been asleep for the longest first. Each is found at once.

    `_of_models` has those that are asleep by each model that they used last.
    """

    def __init__(self) -> None:
        self._asleep: OrderedDict[Waiter, None] = OrderedDict()
        self._of_models: dict[str, OrderedDict[Waiter, None]] = {}

    @property
    def has_any(self) -> bool:
        """True if somebody waits who was not woken."""
        return bool(self._asleep)

    @contextlib.contextmanager
    def waiting(self, models: Sequence[str]) -> Iterator[Waiter]:
        """Count a waiter. One that was woken and does not look any more wakes another."""
        waiter = Waiter(frozenset(models), self._add)
        self._add(waiter)
        try:
            yield waiter
        finally:
            if waiter.woken_for is None:
                self._remove(waiter)
            else:
                self.wake(waiter.woken_for)

    def wake(self, model: str = "") -> bool:
        """Wake one waiter, if possible one that used this model last. Returns False without one."""
        waiter = next(iter(self._of_models.get(model, self._asleep)), None)
        if waiter is None:
            return False
        self._remove(waiter)
        waiter.wake(model)
        return True

    def wake_some(self, model: str, num: int) -> int:
        """Wake as many waiters. Returns the number of those that there were."""
        return next((woken for woken in range(num) if not self.wake(model)), num)

    def wake_all(self) -> None:
        """Wake everybody: jobs may have come of which nobody was told."""
        while self.wake():
            pass

    def _add(self, waiter: Waiter) -> None:
        self._asleep[waiter] = None
        for model in waiter.models:
            self._of_models.setdefault(model, OrderedDict())[waiter] = None

    def _remove(self, waiter: Waiter) -> None:
        del self._asleep[waiter]
        for model in waiter.models:
            those = self._of_models[model]
            del those[waiter]
            if not those:
                del self._of_models[model]
