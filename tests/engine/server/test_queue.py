"""The queue in itself: order, one prompt at a time, and a random walk over all its calls."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from darkroom.engine.server.queue import PromptQueue, QueuedPrompt


def item(prompt_id: str, number: float = 0, **extra_data: Any) -> QueuedPrompt:
    return QueuedPrompt(number, prompt_id, {}, extra_data, ("1",))


def test_lower_numbers_run_first_and_equal_ones_in_order_of_arrival() -> None:
    queue = PromptQueue()
    for prompt_id, number in (("a", 3), ("b", -1), ("c", 3), ("d", 0)):
        queue.put(item(prompt_id, number))
    assert [waiting.prompt_id for waiting in queue.waiting()] == ["b", "d", "a", "c"]
    first = queue.start_next()
    assert first is not None and first.prompt_id == "b"


def test_only_one_prompt_runs_at_a_time() -> None:
    queue = PromptQueue()
    queue.put(item("a"))
    queue.put(item("b"))
    first = queue.start_next()
    assert first is not None
    assert queue.start_next() is None
    assert queue.remaining == 2
    queue.finish(first)
    second = queue.start_next()
    assert second is not None and second.prompt_id == "b"


def test_while_one_saves_another_may_run() -> None:
    queue = PromptQueue()
    for prompt_id in "abc":
        queue.put(item(prompt_id))
    first = queue.start_next()
    assert first is not None
    queue.save(first)
    second = queue.start_next()
    assert queue.start_next() is None and queue.all_running == [first, second] and queue.running is first
    queue.check_integrity()
    queue.finish(first)
    assert queue.all_running == [second] and queue.computing == [second] and queue.start_next() is None


def test_several_run_at_once_and_end_in_any_order() -> None:
    queue = PromptQueue(at_once=2)
    for prompt_id in "abcde":
        queue.put(item(prompt_id))
    first, second = queue.start_next(), queue.start_next()
    assert first is not None and second is not None and queue.start_next() is None
    queue.save(second)
    third = queue.start_next()
    assert third is not None and queue.computing == [first, third] and queue.start_next() is None
    queue.check_integrity()
    queue.finish(third)
    queue.finish(second)
    assert queue.all_running == [first] and queue.running is first
    assert queue.start_next() is not None and queue.start_next() is None
    queue.check_integrity()


def test_clearing_leaves_the_running_prompt() -> None:
    queue = PromptQueue()
    queue.put(item("a"))
    queue.start_next()
    queue.put(item("b"))
    queue.clear()
    assert queue.remaining == 1 and queue.running is not None


def test_credentials_are_not_shown() -> None:
    shown = item("a", api_key_comfy_org="secret", auth_token_comfy_org="secret", client_id="me").as_json()
    assert shown[3] == {"client_id": "me"}


@given(st.lists(st.tuples(st.sampled_from(["put", "start", "finish", "delete", "clear"]), st.integers(0, 5))))
def test_any_sequence_of_calls_keeps_the_queue_in_order(calls: list[tuple[str, int]]) -> None:
    queue = PromptQueue()
    expected: list[tuple[int, int]] = []  # number, arrival
    for arrival, (call, number) in enumerate(calls):
        if call == "put":
            queue.put(item(f"{number}-{arrival}", number))
            expected.append((number, arrival))
        elif call == "start" and queue.running is None:
            started = queue.start_next()
            first = min(expected, default=None)
            assert (started is None) == (first is None)
            if started is not None and first is not None:
                assert started.prompt_id == f"{first[0]}-{first[1]}"
                expected.remove(first)
        elif call == "finish" and queue.running is not None:
            queue.finish(queue.running)
        elif call == "delete" and expected:
            gone = expected.pop(number % len(expected))
            assert queue.delete(f"{gone[0]}-{gone[1]}")
        elif call == "clear":
            queue.clear()
            expected.clear()
        queue.check_integrity()
        assert [waiting.prompt_id for waiting in queue.waiting()] == [f"{a}-{b}" for a, b in sorted(expected)]


def test_another_number_at_once_holds_from_the_next_start_on() -> None:
    queue = PromptQueue(2)
    for name in "abc":
        queue.put(item(name))
    first, second = queue.start_next(), queue.start_next()
    queue.allow(1)
    queue.check_integrity()
    assert first is not None and second is not None
    queue.finish(first)
    assert queue.start_next() is None
    queue.finish(second)
    assert queue.start_next() is not None
    queue.check_integrity()
