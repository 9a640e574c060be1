"""The timer that tells when an engine has had nothing to do for so long."""

from __future__ import annotations

import threading

from darkroom.engine.runtime.idle_timer import IdleTimer


def test_it_acts_once_nothing_has_happened_for_long_enough() -> None:
    acted = threading.Event()
    timer = IdleTimer(0.01, acted.set)
    timer.start()
    assert acted.wait(60)


def test_it_does_not_act_after_a_stop_and_never_without_a_time() -> None:
    acted = threading.Event()
    stopped, never = IdleTimer(1.0, acted.set), IdleTimer(0.0, acted.set)
    for timer in (stopped, never):
        timer.start()
    stopped.stop()
    assert not acted.wait(1.1)
