"""Public form of an output's record, as sent to clients. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from darkroom.worker.media.facts import is_media

INTERNAL_FIELDS = frozenset({"path", "media_type", "size_bytes"})

Link = Callable[[str], str]


def public_record(record: Mapping[str, Any], link: Link | None, *, shows_folders: bool = True) -> dict[str, object]:
    """Return a record without internal fields, of which videos and audio keep their size in bytes.

    `local_path` is the file's path on this machine with `shows_folders`, else below the job's folder. A file that was
    not uploaded gets a link, made from that path. The thumbnail in the record is treated in the same way.
    """
    shown = {key: value for key, value in record.items() if key not in INTERNAL_FIELDS}
    if not shows_folders and "local_path" in shown:
        shown["local_path"] = str(record.get("path") or "")
    if is_media(record.get("media_type")) and "size_bytes" in record:
        shown["size_bytes"] = record["size_bytes"]
    if record.get("path") and "url" not in shown and link is not None:
        shown["url"] = link(str(record["path"]))
    if isinstance(record.get("thumbnail"), Mapping):
        shown["thumbnail"] = public_record(record["thumbnail"], link, shows_folders=shows_folders)
    return shown


def files_of(record: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """Yield the file of a record and its thumbnail, where they exist."""
    if record.get("path"):
        yield record
    thumbnail = record.get("thumbnail")
    if isinstance(thumbnail, Mapping):
        yield thumbnail
