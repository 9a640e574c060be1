"""Reads server-sent events whose data is JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any


def read_events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data:"):
            yield json.loads(line[5:])
