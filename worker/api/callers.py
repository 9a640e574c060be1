"""Identification of callers before their body is read: by the headers, else by the envelope at the body's start."""

from __future__ import annotations

import json
import re
from typing import Final

from fastapi import Request

from worker.api.results import check_caller, services_of
from worker.errors import Unauthorized
from worker.guard.bodies import Sender
from worker.integrations.vast.envelope import EnvelopeOpener

START_BYTES: Final = 64 * 1024
"""Largest offset of `auth_data`'s end in a body at which it identifies the caller before the rest is read."""

_AUTH_DATA: Final = re.compile(r'\s*\{\s*"auth_data"\s*:\s*(?=\{)')


class EnvelopeSender(Sender):
    """Caller that only the signature of Vast's envelope can identify."""

    def __init__(self, envelopes: EnvelopeOpener) -> None:
        super().__init__(is_known=False)
        self._envelopes = envelopes

    def prove(self, start: bytes | bytearray) -> bool:
        """Verify the signature where `auth_data` is the first key of the body, whole within the first 64 KiB.

        Raises SignatureRejected, EnvelopeRejected, NotReady.
        """
        if not self.is_known:
            text = bytes(start[:START_BYTES]).decode("utf-8", "replace")
            found = _AUTH_DATA.match(text)
            if found is None:
                return False
            try:
                auth_data, _ = json.JSONDecoder().raw_decode(text, found.end())
            except (ValueError, RecursionError):
                return False
            self._envelopes.open({"auth_data": auth_data, "payload": {}})
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
