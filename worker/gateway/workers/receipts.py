"""Receipts of jobs that a gateway has given to a worker: signed, so that a worker can name no other job. Pure.

All gateways have the same key, so a receipt of one is good at each of them. It is bound to the worker: that of another
one is not accepted, nor what a worker has made up.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from dataclasses import dataclass
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class GivenJob:
    """A job that was given to a worker: its id at the broker, and the broker's receipt."""

    job_id: str
    receipt: str


class Receipts:
    """Signer of receipts with the key of the gateways."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sealed(self, worker: str, given: GivenJob) -> str:
        """Return the receipt that a worker gets."""
        payload = base64.urlsafe_b64encode(json.dumps([given.job_id, given.receipt]).encode())
        return f"{payload.decode()}.{self._signature(worker, payload)}"

    def opened(self, worker: str, text: str) -> GivenJob | None:
        """Return the job of a receipt, None for one that this worker was not given."""
        payload, _, signature = text.rpartition(".")
        expected = self._signature(worker, payload.encode(errors="replace"))
        if not hmac.compare_digest(signature.encode(errors="replace"), expected.encode()):
            return None
        try:
            job_id, receipt = json.loads(base64.urlsafe_b64decode(payload))
        except (ValueError, binascii.Error):
            return None
        return GivenJob(job_id, receipt)

    def _signature(self, worker: str, payload: bytes) -> str:
        return hmac.new(self._key, worker.encode() + b"\0" + payload, sha256).hexdigest()
