"""Entries of Redis streams as jobs: their fields, and the receipt of one that a worker holds. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import ResponseError

from darkroom.worker.json.values import WRONG_SHAPE

STREAMS: Final = "jobs:"


@dataclass(frozen=True, slots=True)
class Receipt:
    """An entry of a stream, the consumer that holds it, and the id of its job."""

    suffix: str
    entry: str
    consumer: str
    job_id: str

    @property
    def text(self) -> str:
        return json.dumps([self.suffix, self.entry, self.consumer, self.job_id])

    @staticmethod
    def of(text: str) -> Receipt | None:
        """Return a receipt of this broker, None for that of another one, which a worker may have from before."""
        try:
            fields = json.loads(text)
            return Receipt(*fields) if fields[0].startswith(STREAMS) else None
        except WRONG_SHAPE:
            return None


def text_of(fields: Mapping[bytes, bytes], name: bytes) -> str:
    """Return a field as text, "" for one that is not there."""
    return fields.get(name, b"").decode(errors="replace")


def fields_of(pairs: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the fields of an entry as a script has them: names and values in turn."""
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def listed(found: Any) -> list[Any]:
    """Return the items of a reply: a list, or pairs of a mapping as newer protocols have them; none for an error."""
    if isinstance(found, Mapping):
        return [(name, entries[0] if len(entries) == 1 else entries) for name, entries in found.items()]
    return found if isinstance(found, list) else []


def is_without_group(error: ResponseError) -> bool:
    """Return True for the error of a stream that has no group: the server has lost its data."""
    return any(word in str(error) for word in ("NOGROUP", "UNBLOCKED", "no such key"))
