"""Server-sent events as `darkroom generate` reads them."""

from __future__ import annotations

from worker.client_events import Event, read_events


def test_events_are_read_with_their_ids_and_comments_are_passed_over() -> None:
    lines = ["id: 1", 'data: {"a": 1}', "", ": keep-alive", "", 'data: {"b":', "data: 2}", "", "id: 3", 'data: {"c']
    assert list(read_events(lines)) == [Event("1", {"a": 1}), Event("1", {"b": 2})]
