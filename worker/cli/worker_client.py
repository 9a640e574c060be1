"""HTTP client of the commands that send requests to a worker."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import httpx

from darkroom.worker.guard.plain_responses import blocking_plain_client

# A proxy that the environment names cannot reach this machine for us, and NO_PROXY is often not set.
ASKED_DIRECTLY: Mapping[str, None] = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}


def worker_client(
    *, api_key: str = "", timeout: httpx.Timeout | float = 5.0, verify: ssl.SSLContext | bool = True
) -> httpx.Client:
    """Create a client that sends the key in every request.

    `verify`: verification of the server's certificate, as httpx takes it.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return blocking_plain_client(headers=headers, timeout=timeout, verify=verify, mounts=ASKED_DIRECTLY)
