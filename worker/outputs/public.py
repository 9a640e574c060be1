"""What a client sees of an output's record. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

INTERNAL_FIELDS = frozenset({"path", "media_type", "size_bytes"})

Link = Callable[[str], str]


def public_record(record: Mapping[str, Any], link: Link | None) -> dict[str, Any]:
    """Without what only we need; a file that was not uploaded gets a link (to its path below the job's folder).

    The thumbnail within it is a file like it.
    """
    shown = {key: value for key, value in record.items() if key not in INTERNAL_FIELDS}
    if record.get("path") and "url" not in shown and link is not None:
        shown["url"] = link(str(record["path"]))
    if isinstance(record.get("thumbnail"), Mapping):
        shown["thumbnail"] = public_record(record["thumbnail"], link)
    return shown


def files_of(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The file of a record and its thumbnail, as far as there are any."""
    if record.get("path"):
        yield record
    if isinstance(record.get("thumbnail"), Mapping):
        yield record["thumbnail"]
