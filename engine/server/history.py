"""History of the last prompts, as in ComfyUI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from darkroom.contract.graph.spec import ValueDict
from darkroom.contract.wire import CONTINUED_BY
from darkroom.engine.server.queue import QueuedPrompt

MAX_ENTRIES = 10_000


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One finished prompt. `messages` are the run's own messages, `[type, data]`, as its client got them.

    `continued_by` are the prompts that its nodes queued.
    """

    item: QueuedPrompt
    outputs: Mapping[str, Any]
    meta: Mapping[str, Any]
    status: Literal["success", "error"]
    messages: Sequence[tuple[str, Mapping[str, Any]]]
    continued_by: Sequence[str] = ()

    def as_json(self) -> ValueDict:
        continued = {CONTINUED_BY: list(self.continued_by)} if self.continued_by else {}
        return {
            "prompt": self.item.as_json(),
            "outputs": self.outputs,
            "status": {
                "status_str": self.status,
                "completed": self.status == "success",
                "messages": [list(message) for message in self.messages],
            },
            "meta": self.meta,
            **continued,
        }


class History:
    """Sole holder of finished prompts, oldest first; the oldest leave when there are more than `max_entries`."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._entries: dict[str, HistoryEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: HistoryEntry) -> None:
        """Add an entry. One of the same id is replaced, and counts as new."""
        self._entries.pop(entry.item.prompt_id, None)
        self._entries[entry.item.prompt_id] = entry
        while len(self._entries) > self._max_entries:
            del self._entries[next(iter(self._entries))]

    def get(self, prompt_id: str) -> HistoryEntry | None:
        return self._entries.get(prompt_id)

    def page(self, max_items: int | None = None, offset: int = -1) -> list[HistoryEntry]:
        """Return `max_items` entries from number `offset`, oldest first; a negative offset means the newest ones."""
        entries = list(self._entries.values())
        if max_items is None:
            return entries[max(0, offset) :]
        start = offset if offset >= 0 else max(0, len(entries) - max_items)
        return entries[start : start + max(0, max_items)]

    def delete(self, prompt_id: str) -> bool:
        return self._entries.pop(prompt_id, None) is not None

    def clear(self) -> None:
        self._entries.clear()
