"""The history keeps so many entries, in order, by page and by id."""

from __future__ import annotations

from darkroom.engine.server.history import History, HistoryEntry
from darkroom.engine.server.queue import QueuedPrompt


def entry(prompt_id: str) -> HistoryEntry:
    return HistoryEntry(QueuedPrompt(0, prompt_id, {}, {}, ("1",)), {}, {}, "success", [])


def ids(entries: list[HistoryEntry]) -> str:
    return "".join(found.item.prompt_id for found in entries)


def filled(max_entries: int = 10) -> History:
    history = History(max_entries)
    for prompt_id in "abcde":
        history.add(entry(prompt_id))
    return history


def test_the_oldest_entries_leave_when_it_is_full() -> None:
    assert ids(filled(3).page()) == "cde"


def test_pages_count_from_the_oldest_and_without_an_offset_from_the_newest() -> None:
    history = filled()
    assert ids(history.page(2, 0)) == "ab"
    assert ids(history.page(2, 3)) == "de"
    assert ids(history.page(2)) == "de"
    assert ids(history.page(None, 3)) == "de"
    assert ids(history.page(100)) == "abcde"


def test_a_repeated_id_replaces_its_entry() -> None:
    history = filled()
    history.add(entry("a"))
    assert ids(history.page()) == "bcdea"


def test_entries_are_deleted_by_id() -> None:
    history = filled()
    assert history.delete("c") and not history.delete("c")
    assert history.get("c") is None and len(history) == 4
