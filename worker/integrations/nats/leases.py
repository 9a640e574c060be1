"""Leases of jobs in a NATS bucket: the holder, and deliveries that do not count. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Final

from darkroom.worker.json.values import WRONG_SHAPE

ACKNOWLEDGED: Final = "$JS.ACK."
PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}(?<!\.)")


@dataclass(frozen=True, slots=True)
class Lease:
    """Holder of a job, empty for none, and the deliveries after which the job was given back."""

    holder: str = ""
    num_uncounted: int = 0

    @staticmethod
    def of(stored: bytes | None) -> Lease:
        return Lease() if stored is None else Lease(**json.loads(stored))

    def as_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def parts_of(receipt: str) -> tuple[str, str] | None:
    """Return the job's id and the reply subject of a receipt, None for that of another broker."""
    try:
        job_id, reply = json.loads(receipt)
        return (str(job_id), reply) if reply.startswith(ACKNOWLEDGED) else None
    except WRONG_SHAPE:
        return None


def key_of(job_id: str) -> str:
    """Return the key of a job in every bucket: its id, or a digest of an id that no key can be."""
    if PLAIN_KEY.fullmatch(job_id) and ".." not in job_id:
        return job_id
    return f"sha256-{sha256(job_id.encode(errors='replace')).hexdigest()}"
