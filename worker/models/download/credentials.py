"""Credentials of downloads: which bearer token goes to which address, and to no other. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from pydantic import SecretStr

from darkroom.worker.guard.plain_paths import is_below

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A token for the addresses below a prefix: `https://host/` or `https://host/folder/`."""

    prefix: str
    token: SecretStr

    def is_for(self, url: str) -> bool:
        """Return True if a request to the URL may carry the token: same scheme, host and port, and a path below."""
        mine, asked = urlsplit(self.prefix), urlsplit(url)
        folder = mine.path if mine.path.endswith("/") else f"{mine.path}/"
        return _place(mine.scheme, mine.hostname, mine.port) == _place(asked.scheme, asked.hostname, asked.port) and (
            is_below(f"{asked.path.removesuffix('/')}/", folder)
        )


class Credentials:
    """Tokens by address. The longest prefix that fits wins."""

    def __init__(self, tokens: Sequence[BearerToken] = ()) -> None:
        self._tokens = sorted(tokens, key=lambda token: len(token.prefix), reverse=True)

    def headers_for(self, url: str) -> dict[str, str]:
        """Return the headers of a request; a redirect to another host gets those of its own address alone."""
        for token in self._tokens:
            if token.token.get_secret_value() and token.is_for(url):
                return {"Authorization": f"Bearer {token.token.get_secret_value()}"}
        return {}

    def has_for(self, url: str) -> bool:
        """Return True if there is a token for the URL."""
        return bool(self.headers_for(url))


def _place(scheme: str, host: str | None, port: int | None) -> tuple[str, str, int]:
    return scheme.lower(), (host or "").lower().rstrip("."), port or DEFAULT_PORTS.get(scheme.lower(), 0)
