"""Turns of the runs of one engine: one of them computes at a time, the others wait for what they need.

A run has the turn while it calls nodes. It gives the turn away while it sleeps, and while it waits for an evaluation of
a network: when no run has anything else to do, the evaluations that wait are made together, by one of their runs.
"""

from __future__ import annotations

import selectors
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Restore = Callable[[], None]


class Parked:
    """Something that a run waits for while others have the turn; `is_over` once made, failed or taken back."""

    def __init__(self) -> None:
        self.is_over = False


Evaluate = Callable[[Sequence[Any]], None]
"""Make all evaluations that wait, and set `is_over` of each. Called by a run that has the turn; must not raise."""


class Turns:
    """Sole holder of the turn. `save_state` returns a function that restores the process's state of a run.

    It is called when a run gives its turn away, and the returned function when it gets it back: random state and the
    like, of which a process has one.
    """

    def __init__(self, save_state: Callable[[], Restore]) -> None:
        self._save_state = save_state
        self._changed = threading.Condition()
        self._holder: int | None = None
        self._ready: deque[object] = deque()  # tickets, the next one first
        self._parked: list[Parked] = []
        self._runs: set[int] = set()
        self._lonely: deque[int] = deque()  # runs that wait to be alone, and the one that is, which is the first
        self._is_alone = False

    @property
    def num_runs(self) -> int:
        """Return the number of runs in progress."""
        return len(self._runs)

    @property
    def num_ready(self) -> int:
        """Return the number of runs that wait for their turn."""
        return len(self._ready)

    @property
    def num_lonely(self) -> int:
        """Return the number of runs that are alone or wait to be."""
        return len(self._lonely)

    @property
    def holder(self) -> int | None:
        """Return the identifier of the thread that has the turn. For any thread."""
        return self._holder

    @property
    def is_alone(self) -> bool:
        """Return True while the run that has the turn is the only one inside of a node."""
        return self._is_alone

    @property
    def has_turn(self) -> bool:
        """Return True on the thread of the run that has the turn."""
        return self._holder == threading.get_ident()

    @contextmanager
    def run(self) -> Iterator[None]:
        """Take part as a run while the context is open, from its first turn to its last."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: not self._lonely)
            self._runs.add(me)
        try:
            self._take()
            try:
                yield
            finally:
                self._give()
        finally:
            with self._changed:
                self._runs.discard(me)
                self._changed.notify_all()

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Give the turn away while the context is open: for a run that sleeps."""
        restore = self._save_state()
        self._give()
        try:
            yield
        finally:
            self._take()
            restore()

    @contextmanager
    def alone(self, is_given_up: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Be the only run inside of a node while the context is open; yields True if that had to be waited for.

        Runs that wait for the same are between two calls of nodes, and are no company. Reentrant. It waits no longer
        once `is_given_up`, for which whoever changes that calls `nudge`, and the run is then not alone.
        """
        me = threading.get_ident()
        if self._is_alone:
            yield False
            return
        restore = self._save_state()
        with self._changed:
            self._lonely.append(me)
            self._release()
            had_company = not self._runs <= set(self._lonely)
            self._changed.wait_for(lambda: self._may_be_alone(me) or (self._is_idle() and is_given_up()))
            self._holder, self._is_alone = me, self._may_be_alone(me)
        try:
            restore()
            yield had_company
        finally:
            with self._changed:
                self._is_alone = False
                self._lonely.remove(me)
                self._changed.notify_all()

    def wait_until(self, is_due: Callable[[], bool]) -> None:
        """Give the turn away until `is_due`, which other runs' turns change, or whoever calls `nudge` afterwards."""
        while not is_due():
            restore = self._save_state()
            with self._changed:
                self._release()
                self._changed.wait_for(lambda: self._is_free() and is_due())
                self._holder = threading.get_ident()
            restore()

    def nudge(self) -> None:
        """Let runs that wait look again. For any thread."""
        with self._changed:
            self._changed.notify_all()

    def park(self, parked: Parked, evaluate: Evaluate) -> None:
        """Wait until the evaluation is over. The last run that has nothing else to do makes all that wait."""
        restore = self._save_state()
        with self._changed:
            self._parked.append(parked)
            self._release()
            self._changed.wait_for(lambda: parked.is_over or self._is_first_of_idle(parked))
            if parked.is_over:
                self._wait_for_turn()
                waiting: list[Parked] = []
            else:
                self._holder = threading.get_ident()
                waiting, self._parked = self._parked, []
        if waiting:
            evaluate(waiting)
            with self._changed:
                self._changed.notify_all()
        restore()

    def take_back(self, parked: Parked) -> None:
        """Let a run go on whose evaluation is not wanted any more, unless it is being made. For any thread."""
        with self._changed:
            if parked in self._parked:
                self._parked.remove(parked)
                parked.is_over = True
                self._changed.notify_all()

    def check_integrity(self) -> None:
        """Raise AssertionError where something is left. For when nothing runs."""
        with self._changed:
            assert self._holder is None and not self._ready and not self._parked
            assert not self._runs and not self._lonely and not self._is_alone

    def _is_idle(self) -> bool:
        """Return True where nobody has the turn or waits for it, and nobody is alone."""
        return self._holder is None and not self._ready and not self._is_alone

    def _may_be_alone(self, me: int) -> bool:
        return self._lonely[0] == me and self._holder is None and self._lonely_is_due()

    def _is_free(self) -> bool:
        """Return True where nobody has the turn or comes before."""
        return self._holder is None and not self._ready and not self._lonely_is_due()

    def _is_first_of_idle(self, parked: Parked) -> bool:
        return self._holder is None and not self._ready and bool(self._parked) and self._parked[0] is parked

    def _lonely_is_due(self) -> bool:
        return bool(self._lonely) and self._runs <= set(self._lonely)

    def _take(self) -> None:
        with self._changed:
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        ticket = object()
        self._ready.append(ticket)
        self._changed.wait_for(lambda: self._holder is None and self._ready[0] is ticket)
        self._ready.popleft()
        self._holder = threading.get_ident()

    def _give(self) -> None:
        with self._changed:
            self._release()

    def _release(self) -> None:
        assert self._holder == threading.get_ident(), "only the run that has the turn can give it away"
        self._holder = None
        self._changed.notify_all()


class TurnSelector(selectors.BaseSelector):
    """Selector of a run's event loop that gives the turn away while nothing happens in it.

    All code of the run, that of its async nodes too, has the turn.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._inner = selectors.DefaultSelector()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = self._inner.select(0)
        if found or (timeout is not None and timeout <= 0) or not self._turns.has_turn:
            return found
        with self._turns.elsewhere():
            return self._inner.select(timeout)

    def close(self) -> None:
        self._inner.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()
