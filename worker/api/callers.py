"""Callers identified before their body is read: by the headers, else by the envelope with which the body begins."""

from __future__ import annotations

import json
import re
from typing import Final

from fastapi import Request

from worker.api.bodies import Sender
from worker.api.results import check_caller, services_of
from worker.autoscaler.vast.envelope import EnvelopeOpener
from worker.errors import Unauthorized

START_BYTES: Final = 64 * 1024
"""How far into a body `auth_data` may reach and still prove the caller before the rest is read."""

_AUTH_DATA: Final = re.compile(r'\s*\{\s*"auth_data"\s*:\s*(?=\{)')


class EnvelopeSender(Sender):
    """A caller whom only the signature of Vast's envelope can prove."""

    def __init__(self, envelopes: EnvelopeOpener) -> None:
        super().__init__(is_known=False)
        self._envelopes = envelopes

    def prove(self, start: bytes | bytearray) -> bool:
        """Check the signature where `auth_data` is the first key of the body, whole within the first 64 KiB.

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
            self.is_known = True
        return True


def sender_of(request: Request) -> Sender:
    """Return the caller as the headers alone show him. Raises Unauthorized, Forbidden, before any body is read."""
    try:
        check_caller(request)
    except Unauthorized:
        check_caller(request, has_vast_envelope=True)  # where no signature is checked, an envelope proves nothing
        return EnvelopeSender(services_of(request).platform.envelopes)
    return Sender(is_known=True)
