"""Signed, expiring links to outputs. Pure but for the key it is given."""

from __future__ import annotations

import base64
import hmac
from hashlib import sha256
from urllib.parse import quote, urlencode

from darkroom.worker.errors import Forbidden

MAX_TIME_DIGITS = 20
LIFETIME_SECONDS = 86_400  # a result is kept for a quarter of a day by default, and may be kept for longer


class LinkSigner:
    def __init__(self, key: bytes, lifetime_seconds: int = LIFETIME_SECONDS) -> None:
        self._key = key
        self._lifetime_seconds = lifetime_seconds

    def link(self, base_url: str, job_id: str, file_name: str, now: float) -> str:
        expires = int(now) + self._lifetime_seconds
        query = urlencode({"expires": expires, "signature": self._signature(job_id, file_name, expires)})
        return f"{base_url}/outputs/{quote(job_id)}/{quote(file_name)}?{query}"

    def check(self, job_id: str, file_name: str, expires: str, signature: str, now: float) -> None:
        """Check the signature and expiry of a link. Raises Forbidden when the link is forged or has expired."""
        if (
            not expires.isascii()
            or not expires.isdigit()
            or len(expires) > MAX_TIME_DIGITS
            or not hmac.compare_digest(self._signature(job_id, file_name, int(expires)).encode(), signature.encode())
        ):
            raise Forbidden("The link is not valid")
        if now > int(expires):
            raise Forbidden("The link has expired")

    def _signature(self, job_id: str, file_name: str, expires: int) -> str:
        text = f"{job_id}\n{file_name}\n{expires}".encode()
        return base64.urlsafe_b64encode(hmac.new(self._key, text, sha256).digest()).decode().rstrip("=")
