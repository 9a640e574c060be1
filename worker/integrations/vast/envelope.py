"""Vast's envelope around a request: `{auth_data, payload, session_id?}`, its refusals, and its signature.

Only the URL is signed: RSA, PKCS#1 v1.5, SHA-256, over the JSON of `{"url": ...}` as `signed_text` writes it. A
signature made for another worker's URL is valid too, so the URL is compared with ours where that is known and the
comparison is not switched off. Until the public key has been fetched every envelope is refused, unless UNSECURED. The
cryptography is imported with the first use: 7 MB that a worker outside the platform never needs.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

import structlog

from darkroom.worker.autoscaler.autoscaler import Caller
from darkroom.worker.autoscaler.envelope import EnvelopeRejected, SignatureRejected
from darkroom.worker.errors import NotReady, Problem, SessionGone
from darkroom.worker.integrations.vast.sessions import SessionStore
from darkroom.worker.json.values import JsonObject

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

START_BYTES: Final = 64 * 1024
"""Largest offset of `auth_data`'s end in a body at which it identifies the caller before the rest is read."""

AUTH_DATA: Final = re.compile(r'\s*\{\s*"auth_data"\s*:\s*(?=\{)')
AUTH_KEYS = ("cost", "endpoint", "reqnum", "request_idx", "signature", "url")

log = structlog.get_logger("vast")


@dataclass(frozen=True, slots=True)
class Envelope:
    """Payload of an envelope, and the autoscaler's data about it (partial when UNSECURED)."""

    auth_data: Mapping[str, Any]
    payload: dict[str, Any]
    session_id: Any
    is_signed: bool = False

    @property
    def caller(self) -> Caller:
        return caller_of({"auth_data": self.auth_data, "session_id": self.session_id})

    def repeat_id(self, body_hash: str) -> str:
        """Return the job id for a request that names none: the same when the platform's client repeats the request.

        Empty where a repetition cannot be recognised reliably: without a signature, within a session (all its requests
        have the session's index), or without an index.
        """
        index = self.caller.request_idx
        if not self.is_signed or self.session_id is not None or not index:
            return ""
        known = json.dumps([str(self.auth_data.get("endpoint")), index, body_hash])
        return f"vast-{index}-{sha256(known.encode()).hexdigest()[:20]}"

    def __repr__(self) -> str:
        return f"Envelope(request_idx={self.auth_data.get('request_idx')!r})"


class KeyHolder(Protocol):
    @property
    def key(self) -> RSAPublicKey | None: ...


def is_envelope(body: JsonObject) -> bool:
    return "auth_data" in body or "payload" in body


def caller_of(body: JsonObject) -> Caller:
    """Return the caller that an envelope names, as far as it can be parsed."""
    auth_data, session_id = body.get("auth_data"), body.get("session_id")
    auth = auth_data if isinstance(auth_data, Mapping) else {}
    return Caller(
        request_idx=_whole(auth.get("request_idx")),
        reqnum=_whole(auth.get("reqnum")),
        session_id=session_id if isinstance(session_id, str) else None,
    )


def parse_envelope(body: Mapping[str, Any], *, is_unsecured: bool) -> Envelope:
    """Parse the envelope of a request body. Extra keys of `auth_data` are ignored.

    Raises EnvelopeRejected with every problem, in the terms of Vast's own worker.
    """
    wrong: dict[str, Any] = {}
    problems: list[Problem] = []
    for name in ("auth_data", "payload"):
        message = "field missing" if name not in body else "must be an object"
        if not isinstance(body.get(name), dict):
            wrong[name] = message
            problems.append(Problem(message, field=name))
    if "auth_data" not in wrong and not is_unsecured:
        missing = {key: "missing parameter" for key in AUTH_KEYS if key not in body["auth_data"]}
        if missing:
            wrong["auth_data"] = missing
            problems += [Problem("missing parameter", field=f"auth_data.{key}") for key in missing]
    if wrong:
        raise EnvelopeRejected(problems, wrong)
    return Envelope(body["auth_data"], body["payload"], body.get("session_id"))


def signed_text(url: str) -> bytes:
    """Return the bytes that the autoscaler signs for a worker's URL."""
    return json.dumps({"url": url}, sort_keys=True, indent=4).encode("utf-8")


def is_signed(public_key: RSAPublicKey, url: object, signature: object) -> bool:
    """Return True if `signature` (base64) is the key's signature of `url`. Never raises, for any values of the two."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    if not isinstance(url, str) or not isinstance(signature, str):
        return False
    try:
        public_key.verify(
            base64.b64decode(signature, validate=True), signed_text(url), padding.PKCS1v15(), hashes.SHA256()
        )
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


def is_same_url(one: object, other: str) -> bool:
    """Return True if two URLs name the same worker: scheme, host and port, ignoring case and a trailing slash."""
    if not isinstance(one, str):
        return False
    try:
        return _place(one) == _place(other)
    except ValueError:
        return False


class EnvelopeOpener:
    """Parser and verifier of envelopes.

    `own_url` empty: the signed URL is not compared. `sessions` None: no request is of a session that is there.
    """

    def __init__(
        self,
        keys: KeyHolder | None,
        *,
        is_unsecured: bool,
        own_url: str = "",
        sessions: SessionStore | None = None,
    ) -> None:
        self._keys = keys
        self._is_unsecured = is_unsecured or keys is None
        self._own_url = own_url
        self._sessions = sessions

    def is_envelope(self, body: JsonObject) -> bool:
        """Return True for a body that has a key of an envelope."""
        return is_envelope(body)

    def caller_of(self, body: JsonObject) -> Caller:
        """Return the caller that an envelope names, as far as it can be parsed."""
        return caller_of(body)

    def open_request(self, body: JsonObject) -> Envelope:
        """Open the envelope of a request for a job; a request of a session extends that.

        Raises EnvelopeRejected, SignatureRejected, NotReady or SessionGone.
        """
        envelope = self.open(body)
        if envelope.session_id is not None:
            if self._sessions is None:
                raise SessionGone("invalid session")
            self._sessions.touch(envelope.session_id)
        return envelope

    def is_proven(self, start: bytes | bytearray) -> bool:
        """Return True if `auth_data` is a body's first key, whole within its first 64 KiB, and its signature valid.

        Raises SignatureRejected, EnvelopeRejected, NotReady.
        """
        text = bytes(start[:START_BYTES]).decode("utf-8", "replace")
        found = AUTH_DATA.match(text)
        if found is None:
            return False
        try:
            auth_data, _ = json.JSONDecoder().raw_decode(text, found.end())
        except (ValueError, RecursionError):
            return False
        self.open({"auth_data": auth_data, "payload": {}})
        return True

    def open(self, body: Mapping[str, Any]) -> Envelope:
        """Parse and verify an envelope. Raises EnvelopeRejected, SignatureRejected, or NotReady without a key."""
        envelope = parse_envelope(body, is_unsecured=self._is_unsecured)
        if self._is_unsecured or self._keys is None:
            return envelope
        auth, key = envelope.auth_data, self._keys.key
        if key is None:
            # Vast's own worker answers 401 here, which its client treats as final; a restarted worker
            # would lose every request that comes before the key.
            raise NotReady("The public key for signatures is not fetched yet", retry_after_seconds=2)
        if not is_signed(key, auth.get("url"), auth.get("signature")):
            raise SignatureRejected("The signature is invalid")
        if self._own_url and not is_same_url(auth.get("url"), self._own_url):
            log.warning("envelope signed for another worker", url=str(auth.get("url"))[:200], own=self._own_url)
            raise SignatureRejected("The signature is for another worker")
        return Envelope(auth, envelope.payload, envelope.session_id, is_signed=True)


def unsigned_envelopes() -> EnvelopeOpener:
    """Return a parser of envelopes that checks no signature, for workers without Vast's key, and for gateways.

    At a gateway the signature is for the worker that Vast named; it goes by the request's key.
    """
    return EnvelopeOpener(None, is_unsecured=True)


def _place(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme.lower())


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
