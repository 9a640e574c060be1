"""PublicKeySource: fetches the public key of Vast's autoscaler, retrying until it succeeds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import httpx
import structlog

from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.guard.plain_responses import plain_body
from darkroom.worker.settings.platforms import VastTiming

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

FAILED_WORDS = "Failed to get Serverless public key after all retry attempts"

log = structlog.get_logger("vast")


class PublicKeySource:
    """Holder of the autoscaler's public key once `fetch()` has succeeded."""

    def __init__(
        self,
        addresses: Sequence[str],
        http: httpx.AsyncClient,
        timing: VastTiming,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._addresses = tuple(addresses)
        self._http = http
        self._timing = timing
        self._sleep = sleep
        self.key: RSAPublicKey | None = None

    async def poll(self, on_failed: Callable[[str], None], on_fetched: Callable[[], None]) -> None:
        """Fetch until the key is there. `on_failed` is called with the reason after each five failed rounds."""
        while not await self.fetch():
            on_failed(FAILED_WORDS)
            await self._sleep(self._timing.key_pause)
        on_fetched()

    async def fetch(self) -> bool:
        """Request the key from each address in turn, five rounds with growing waits. Return True if there is a key."""
        for wait_seconds in (*self._timing.key_waits, None):
            for address in self._addresses:
                self.key = await self._ask(address)
                if self.key is not None:
                    return True
            if wait_seconds is not None:
                await self._sleep(wait_seconds)
        log.error("public key missing, envelopes refused", addresses=self._addresses)
        return False

    async def _ask(self, address: str) -> RSAPublicKey | None:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        try:
            key = load_pem_public_key(_pem_in(await self._get(f"{address}/pubkey/")))
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError, UnsupportedAlgorithm) as error:
            log.warning("public key fetch failed", address=address, reason=_reason(error))
            return None
        return key if isinstance(key, RSAPublicKey) else None

    async def _get(self, url: str) -> str:
        seconds = self._timing.key_request
        async with asyncio.timeout(seconds), self._http.stream("GET", url, timeout=seconds) as response:
            response.raise_for_status()
            return (await plain_body(response)).decode()


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"status {error.response.status_code}"
    is_network = isinstance(error, httpx.HTTPError | httpx.InvalidURL | TimeoutError)
    return cause_of(error) if is_network else "the answer holds no public key"


def _pem_in(text: str) -> bytes:
    """Return the PEM block of a reply, which may have come as a JSON string."""
    stripped = text.strip()
    if stripped.startswith('"'):
        stripped = str(json.loads(stripped))
    return stripped.encode()
