"""Address of one engine: a URL or a Unix socket, with the token for its requests."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import SecretStr

from darkroom.worker.engines.unix_socket import UnixSocket

LOCALHOST = "localhost"
UNIX_PREFIX = "unix:"
NO_TOKEN = SecretStr("")


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Address of one engine. `url` is its name in health, metrics and logs, and the HTTP address without a `socket`.

    `token` is the bearer token that the engine requires; empty: none.
    """

    url: str
    socket: UnixSocket | None = None
    token: SecretStr = NO_TOKEN

    @staticmethod
    def of(address: EngineAddress | str) -> EngineAddress:
        return EngineAddress(address.rstrip("/")) if isinstance(address, str) else address

    @staticmethod
    def of_socket(socket: UnixSocket) -> EngineAddress:
        return EngineAddress(f"{UNIX_PREFIX}{socket.name}", socket)

    @property
    def http_url(self) -> str:
        return self.url if self.socket is None else f"http://{LOCALHOST}"

    @property
    def headers(self) -> dict[str, str]:
        """Headers that every request needs beside `Host`."""
        token = self.token.get_secret_value()
        return {"Authorization": f"Bearer {token}"} if token else {}
