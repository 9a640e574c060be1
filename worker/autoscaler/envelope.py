"""Envelopes: port for a platform's envelope around a request, whose signature may stand for a key.

A request in an envelope is one like any other once it is opened. The worker never reads an envelope itself: the
platform's integration does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from darkroom.worker.autoscaler.autoscaler import Caller
from darkroom.worker.errors import Problem, RequestRejected, Unauthorized
from darkroom.worker.json.values import JsonObject


class EnvelopeRejected(RequestRejected):
    """Error for an incomplete envelope. `body` is the JSON that Vast's own worker answers with its 422."""

    code = "envelope_rejected"

    def __init__(self, problems: Sequence[Problem], body: Mapping[str, Any]) -> None:
        super().__init__(problems)
        self.body = dict(body)


class SignatureRejected(Unauthorized):
    """Error for an invalid signature. Vast's own worker answers 401 with an empty body."""

    code = "signature_rejected"


class OpenedEnvelope(Protocol):
    """An envelope whose signature has been verified, where it is required."""

    @property
    def payload(self) -> dict[str, Any]:
        """Body of the request within the envelope."""
        ...

    def repeat_id(self, body_hash: str) -> str:
        """Return the job id of a request that names none, the same for a repetition; empty where it cannot be known."""
        ...


class Envelopes(Protocol):
    """Parser and verifier of a platform's envelopes."""

    def is_envelope(self, body: JsonObject) -> bool:
        """Return True for a body that is an envelope."""
        ...

    def caller_of(self, body: JsonObject) -> Caller:
        """Return the caller that an envelope names, as far as it can be parsed."""
        ...

    def open(self, body: JsonObject) -> OpenedEnvelope:
        """Parse and verify an envelope. Raises EnvelopeRejected, SignatureRejected, or NotReady without a key."""
        ...

    def open_request(self, body: JsonObject) -> OpenedEnvelope:
        """Open the envelope of a request for a job; a request of a session extends that.

        Raises EnvelopeRejected, SignatureRejected, NotReady or SessionGone.
        """
        ...

    def is_proven(self, start: bytes | bytearray) -> bool:
        """Return True if the first bytes of a body have a valid signature, False where they do not have it whole.

        Raises EnvelopeRejected, SignatureRejected, NotReady.
        """
        ...
