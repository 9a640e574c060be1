"""Vast's envelope around a request: `{auth_data, payload, session_id?}`, its refusals, and its signature.

Only the URL is signed: RSA, PKCS#1 v1.5, SHA-256, over the JSON of `{"url": ...}` as `signed_text` writes it. The
public key comes from the autoscaler (`PublicKeySource`); until it has come every envelope is refused, unless UNSECURED.
The cryptography is imported with the first use: 7 MB that a worker outside the platform never needs.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import structlog

from worker.errors import Problem, RequestRejected, SessionGone, Unauthorized

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

AUTH_KEYS = ("cost", "endpoint", "reqnum", "request_idx", "signature", "url")
DEFAULT_REPORT_ADDRESS = "https://run.vast.ai"
KEY_TRY_SECONDS = 10.0
KEY_WAITS_SECONDS = (1.0, 2.0, 4.0, 8.0)

log = structlog.get_logger("vast")


class EnvelopeRejected(RequestRejected):
    """The envelope is incomplete. `body` is the JSON that Vast's own worker answers with its 422."""

    code = "envelope_rejected"

    def __init__(self, problems: Sequence[Problem], body: Mapping[str, Any]) -> None:
        super().__init__(problems)
        self.body = dict(body)


class SignatureRejected(Unauthorized):
    """The signature does not fit. Vast's own worker answers 401 with an empty body."""

    code = "signature_rejected"


@dataclass(frozen=True, slots=True)
class Envelope:
    """What was wrapped, and the autoscaler's word about it (partial when UNSECURED)."""

    auth_data: Mapping[str, Any]
    payload: dict[str, Any]
    session_id: str | None

    def __repr__(self) -> str:
        return f"Envelope(request_idx={self.auth_data.get('request_idx')!r})"


def is_envelope(body: Mapping[str, Any]) -> bool:
    return "auth_data" in body or "payload" in body


def parse_envelope(body: Mapping[str, Any], *, is_unsecured: bool) -> Envelope:
    """The envelope of a request body. Extra keys of `auth_data` are ignored.

    Raises EnvelopeRejected with everything that is missing, SessionGone for a session (none can be open here).
    """
    absent = {name: "field missing" for name in ("auth_data", "payload") if name not in body}
    if absent:
        raise _rejected(absent, [Problem("field missing", field=name) for name in absent])
    auth_data, payload = body["auth_data"], body["payload"]
    wrong = {
        name: "must be an object"
        for name, value in (("auth_data", auth_data), ("payload", payload))
        if not isinstance(value, dict)
    }
    if wrong:
        raise _rejected(wrong, [Problem(message, field=name) for name, message in wrong.items()])
    missing = {} if is_unsecured else {key: "missing parameter" for key in AUTH_KEYS if key not in auth_data}
    if missing:
        raise _rejected(
            {"auth_data": missing}, [Problem("missing parameter", field=f"auth_data.{key}") for key in missing]
        )
    session_id = body.get("session_id")
    if session_id is not None:
        raise SessionGone("invalid session")
    return Envelope(auth_data, payload, session_id)


def signed_text(url: str) -> bytes:
    """The bytes that the autoscaler signs for a worker's URL."""
    return json.dumps({"url": url}, sort_keys=True, indent=4).encode("utf-8")


def is_signed(public_key: RSAPublicKey, url: Any, signature: Any) -> bool:
    """Whether `signature` (base64) is the key's signature of `url`. Never raises, whatever the two are."""
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


class PublicKeySource:
    """Holds the autoscaler's public key once `fetch()` has brought it."""

    def __init__(
        self,
        addresses: Sequence[str],
        http: httpx.AsyncClient,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._addresses = tuple(address.rstrip("/") for address in addresses) or (DEFAULT_REPORT_ADDRESS,)
        self._http = http
        self._sleep = sleep
        self.key: RSAPublicKey | None = None

    async def fetch(self) -> bool:
        """Asks each address in turn, five rounds with growing waits. Gives whether there is a key now."""
        for wait_seconds in (*KEY_WAITS_SECONDS, None):
            for address in self._addresses:
                self.key = await self._ask(address)
                if self.key is not None:
                    return True
            if wait_seconds is not None:
                await self._sleep(wait_seconds)
        log.error("no public key from the autoscaler; envelopes are refused", addresses=self._addresses)
        return False

    async def _ask(self, address: str) -> RSAPublicKey | None:
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            response = await self._http.get(f"{address}/pubkey/", timeout=KEY_TRY_SECONDS)
            response.raise_for_status()
            key = load_pem_public_key(_pem_in(response.text))
        except (httpx.HTTPError, ValueError) as error:
            log.warning("public key not had", address=address, reason=type(error).__name__)
            return None
        return key if isinstance(key, RSAPublicKey) else None


class EnvelopeOpener:
    """Takes the payload out of envelopes, checking signatures where MASTER_TOKEN is set and UNSECURED is not."""

    def __init__(self, keys: PublicKeySource | None, *, is_unsecured: bool) -> None:
        self._keys = keys
        self._is_unsecured = is_unsecured or keys is None

    def open(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Raises EnvelopeRejected, SessionGone or SignatureRejected."""
        envelope = parse_envelope(body, is_unsecured=self._is_unsecured)
        if not self._is_unsecured and self._keys is not None:
            key = self._keys.key
            auth = envelope.auth_data
            if key is None or not is_signed(key, auth.get("url"), auth.get("signature")):
                raise SignatureRejected("The signature does not fit")
        return envelope.payload


def _rejected(body: Mapping[str, Any], problems: Sequence[Problem]) -> EnvelopeRejected:
    return EnvelopeRejected(problems, body)


def _pem_in(text: str) -> bytes:
    """The PEM block of a reply, which may have come as a JSON string."""
    stripped = text.strip()
    if stripped.startswith('"'):
        stripped = str(json.loads(stripped))
    return stripped.encode()
