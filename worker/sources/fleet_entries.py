"""Entries by which workers announce themselves at a broker: a worker's name and the digests of its node lists. Pure."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from hashlib import sha256

from darkroom.worker.json.values import JsonObject

DIGEST_LENGTH = 16


@dataclass(frozen=True, slots=True)
class NodeList:
    """A node list as it is sent, and its digest."""

    id: str
    packed: bytes

    @staticmethod
    def of(object_info: JsonObject) -> NodeList:
        """Pack a node list; the same one gives the same digest."""
        text = json.dumps(object_info, sort_keys=True, separators=(",", ":")).encode()
        return NodeList(sha256(text).hexdigest()[:DIGEST_LENGTH], gzip.compress(text, mtime=0))


def entry_of(worker: str, facts: JsonObject) -> bytes:
    """Return the announcement of a worker."""
    return json.dumps({**facts, "worker": worker}).encode()


def marked_last(entry: bytes) -> bytes:
    """Return the entry of a worker that is gone."""
    return json.dumps({**json.loads(entry), "is_last": True}).encode()
