"""EngineEndpoint: where one engine of ours listens: a Unix socket, or a port of this machine with a token."""

from __future__ import annotations

import asyncio
import hashlib
import socket

from pydantic import SecretStr

from darkroom.worker.engines.address import NO_TOKEN, EngineAddress
from darkroom.worker.engines.unix_socket import UnixSocket
from darkroom.worker.errors import EngineStartFailed

PORT_TRIES, PORT_PAUSE_SECONDS = 100, 0.1


class UnixEndpoint:
    """Unix socket that the front binds and each process of the engine inherits."""

    has_port = False

    def __init__(self, unix_socket: UnixSocket) -> None:
        self._socket = unix_socket

    @property
    def address(self) -> EngineAddress:
        return EngineAddress.of_socket(self._socket)

    async def wait_until_free(self) -> None:
        """Return at once: nobody else listens there."""

    def listen(self) -> socket.socket:
        """Bind anew and return the listening socket, to be closed by the caller. Raises OSError."""
        return self._socket.listen()

    def flags(self, listening: socket.socket | None) -> list[str]:
        """Return the engine's flags for a socket that it inherits."""
        assert listening is not None
        return ["--listen-fd", str(listening.fileno())]

    def remove(self) -> None:
        """Remove the socket's file."""
        self._socket.remove()


class PortEndpoint:
    """Port on which the engine itself listens, at the address `listen`; the front connects to `host`."""

    has_port = True

    def __init__(self, listen: str, host: str, port: int, token: SecretStr = NO_TOKEN) -> None:
        self._listen = listen
        self._host = host
        self._port = port
        self._token = token

    @property
    def address(self) -> EngineAddress:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return EngineAddress(f"http://{host}:{self._port}", token=self._token)

    async def wait_until_free(self) -> None:
        """Wait until the port is free: the engine of a front that has just died may hold it.

        A foreign process on the port is never adopted. Raises EngineStartFailed.
        """
        for _ in range(PORT_TRIES):
            with socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((self._host, self._port))
                except OSError:
                    await asyncio.sleep(PORT_PAUSE_SECONDS)
                    continue
            return
        raise EngineStartFailed(f"Port {self._port} is in use by another process")

    def listen(self) -> None:
        """Return None: the engine binds the port itself."""

    def flags(self, _listening: socket.socket | None) -> list[str]:
        """Return the engine's flags for the port, with the digest of the token that it requires."""
        flags = ["--listen", self._listen, "--port", str(self._port)]
        token = self._token.get_secret_value()
        return [*flags, "--token-sha256", hashlib.sha256(token.encode()).hexdigest()] if token else flags

    def remove(self) -> None:
        """Leave nothing: a port has no file."""


EngineEndpoint = UnixEndpoint | PortEndpoint
