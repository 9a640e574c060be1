"""Entries by which workers announce themselves at a broker: a worker's name and the digest of its node list. Pure."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from hashlib import sha256

from darkroom.worker.json.values import JsonObject

DIGEST_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Announcement:
    """A node list as it is sent, and its digest."""

    nodes_id: str
    nodes: bytes

    @staticmethod
    def of(object_info: JsonObject) -> Announcement:
        """Pack a node list; the same one gives the same digest."""
        text = json.dumps(object_info, sort_keys=True, separators=(",", ":")).encode()
        return Announcement(sha256(text).hexdigest()[:DIGEST_LENGTH], gzip.compress(text, mtime=0))

    def entry(self, worker: str, facts: JsonObject) -> bytes:
        """Return the announcement of a worker; `facts` are those that routing uses (`worker/gateway/placing.py`)."""
        return json.dumps({**facts, "worker": worker, "nodes": self.nodes_id}).encode()


def marked_last(entry: bytes) -> bytes:
    """Return the entry of a worker that is gone."""
    return json.dumps({**json.loads(entry), "is_last": True}).encode()
