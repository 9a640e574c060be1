"""Announcements of workers over HTTP: what is taken of them, and node lists that are what their digests say. Pure."""

from __future__ import annotations

import zlib
from hashlib import sha256
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from darkroom.worker.sources.fleet_entries import DIGEST_LENGTH, entry_of

MAX_LIST_BYTES: Final = 16 * 1024 * 1024
"""Bytes of an unpacked node list: five times those of our engine with ten thousand model files."""

PIECE_BYTES: Final = 256 * 1024  # that are unpacked at a time

GZIP: Final = 16 + zlib.MAX_WBITS

Digest = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{DIGEST_LENGTH}}}$")]
Number = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
ModelName = Annotated[str, Field(max_length=200)]


class WorkerEntry(BaseModel):
    """Announcement of a worker, for checks and routing. Its name is that of its token and id."""

    model_config = ConfigDict(extra="ignore")

    nodes: Digest
    fallback_nodes: Digest | None = None
    has_fallback: bool = False
    speed: Number = 0.0
    price_per_hour: Number = 0.0
    wait_seconds: Number = 0.0
    num_runs: Annotated[int, Field(ge=1, le=10_000)] = 1
    models: Annotated[list[ModelName], Field(max_length=16)] = Field(default_factory=list)

    @property
    def lists(self) -> list[str]:
        """Digests of its node lists."""
        return [name for name in (self.nodes, self.fallback_nodes) if name is not None]

    def as_bytes(self, worker: str) -> bytes:
        """Return the entry as the broker has it."""
        return entry_of(worker, self.model_dump(exclude_none=True))


def is_list_of(nodes_id: str, packed: bytes) -> bool:
    """Return True for a packed node list that has this digest and is not too large."""
    reader, digest, num_bytes = zlib.decompressobj(GZIP), sha256(), 0
    try:
        while not reader.eof:
            piece = reader.decompress(packed, PIECE_BYTES)
            packed = reader.unconsumed_tail
            num_bytes += len(piece)
            if num_bytes > MAX_LIST_BYTES or not (piece or packed or reader.eof):
                return False
            digest.update(piece)
    except zlib.error:
        return False
    return not reader.unused_data and digest.hexdigest()[:DIGEST_LENGTH] == nodes_id
