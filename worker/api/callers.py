"""Identification of callers before their body is read: by the headers, else by the envelope at the body's start."""

from __future__ import annotations

from fastapi import Request

from darkroom.worker.api.results import check_caller, services_of
from darkroom.worker.autoscaler.envelope import Envelopes
from darkroom.worker.errors import Unauthorized
from darkroom.worker.guard.bodies import Sender


class EnvelopeSender(Sender):
    """Caller that only the signature of a platform's envelope can identify."""

    def __init__(self, envelopes: Envelopes) -> None:
        super().__init__(is_known=False)
        self._envelopes = envelopes

    def prove(self, start: bytes | bytearray) -> bool:
        """Verify the signature where the body's first bytes have it whole.

        Raises SignatureRejected, EnvelopeRejected, NotReady.
        """
        if not self.is_known:
            if not self._envelopes.is_proven(start):
                return False
            self.identify()
        return True


def sender_of(request: Request) -> Sender:
    """Return the caller that the headers identify. Raises Unauthorized, Forbidden, before any body is read."""
    try:
        check_caller(request)
    except Unauthorized:
        check_caller(request, has_vast_envelope=True)  # without a check of signatures an envelope proves nothing
        return EnvelopeSender(services_of(request).platform.envelopes)
    return Sender(is_known=True)
