"""EngineAddress: where and how one engine is reached."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import SecretStr

from worker.engines.unix_socket import UnixSocket

LOCALHOST = "localhost"
UNIX_PREFIX = "unix:"
NO_TOKEN = SecretStr("")


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """`url` names the engine in health, metrics and logs, and is the HTTP address unless `socket` is a Unix socket.

    `token` is the bearer token that the engine asks for; empty where it asks for none.
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
        """The headers that every request needs beside `Host`."""
        token = self.token.get_secret_value()
        return {"Authorization": f"Bearer {token}"} if token else {}
