from __future__ import annotations

import threading

from engine.runtime.idle_timer import IdleTimer


def test_it_acts_once_nothing_has_happened_for_long_enough() -> None:
    acted = threading.Event()
    timer = IdleTimer(0.01, acted.set)
    timer.start()
    assert acted.wait(10)


def test_it_does_not_act_after_a_stop_and_never_without_a_time() -> None:
    acted = threading.Event()
    for seconds in (0.05, 0.0):
        timer = IdleTimer(seconds, acted.set)
        timer.start()
        timer.stop()
        assert not acted.wait(0.2)
