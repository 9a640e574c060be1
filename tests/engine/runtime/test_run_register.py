"""The runs that were submitted and are not over."""

from __future__ import annotations

from darkroom.engine.runtime.run_register import RunRegister


def test_only_running_prompts_are_interrupted_and_each_by_its_id() -> None:
    register = RunRegister()
    (first, cancel_first), (second, cancel_second) = register.add("a"), register.add("b")
    assert not register.interrupt(None), "none of them runs yet"
    register.begin(first)
    register.begin(second)
    assert register.interrupt("b") and cancel_second.is_cancelled and not cancel_first.is_cancelled
    assert not register.interrupt("c")
    assert register.interrupt(None) and cancel_first.is_cancelled


def test_prompts_that_wait_are_cancelled_with_all_others() -> None:
    register = RunRegister()
    _, waiting = register.add("a")
    register.cancel_all()
    assert waiting.is_cancelled


def test_it_is_empty_once_every_run_is_over_or_was_refused() -> None:
    register = RunRegister()
    running, _ = register.add("a")
    refused, _ = register.add("b")
    register.begin(running)
    register.remove(refused)
    is_empty = register.is_empty
    assert not is_empty
    register.remove(running)
    is_empty, is_interrupted = register.is_empty, register.interrupt(None)
    assert is_empty and not is_interrupted
