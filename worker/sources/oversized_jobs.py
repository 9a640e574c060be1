"""Jobs that are acknowledged and then turn out larger than a message of the broker may be. Pure.

What they ask for at their end goes to a worker in their place, which ends them like any job that cannot begin: its
outbox sends the webhook.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from darkroom.worker.errors import RequestTooLarge
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.sources.broker import JobTooLarge

SIZES: Final = "too_large"
KEPT: Final = ("webhook", "metadata")


def message_in_place_of(body: JsonObject, error: JobTooLarge) -> dict[str, Any]:
    """Return the message that is sent for a job that is too large: its webhook, its metadata and the sizes."""
    given = object_at(body, "input")
    kept = {name: given[name] for name in KEPT if given.get(name) is not None}
    return {"input": kept, SIZES: {"bytes": error.size_bytes, "max_bytes": error.max_bytes}}


def check_size(body: Mapping[str, Any]) -> None:
    """Raise RequestTooLarge for a message that was sent in place of a job that is too large."""
    sizes = object_at(body, SIZES)
    size, most = sizes.get("bytes"), sizes.get("max_bytes")
    if isinstance(size, int) and isinstance(most, int):
        raise too_large(JobTooLarge(size, most))


def too_large(error: JobTooLarge) -> RequestTooLarge:
    """Return the refusal of a job that is too large for the broker."""
    return RequestTooLarge(f"body: too large for the broker; {error}", value=error.size_bytes)
