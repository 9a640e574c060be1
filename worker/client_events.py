"""Reads server-sent events whose data is JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """`id` is what `Last-Event-ID` repeats; empty when none has come yet."""

    id: str
    data: dict[str, Any]


def read_events(lines: Iterable[str]) -> Iterator[Event]:
    """The events of a stream, as its lines come. Comments and unknown fields are passed over; a cut one is none."""
    event_id, data = "", []
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id" and line:
            event_id = value
        elif name == "data" and line:
            data.append(value)
        elif not line and data:
            yield Event(event_id, json.loads("\n".join(data)))
            data = []
