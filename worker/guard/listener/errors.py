"""CannotListen: the address of the server cannot be had, with what holds it."""

from __future__ import annotations

import errno

from darkroom.host.port_holder import find_port_holder

EVERYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


class CannotListen(OSError):
    """Error for an address that cannot be listened on. The message names it and, for a taken port, the holder."""

    def __init__(self, host: str, port: int, error: OSError) -> None:
        reason = (error.strerror or str(error)).lower()
        if error.errno == errno.EADDRINUSE:
            holder = find_port_holder(EVERYWHERE.get(host, host), port)
            reason += f" by {holder}; stop it, or set another WORKER_PORT (`--port`)"
        super().__init__(f"WORKER_HOST, WORKER_PORT: cannot listen on {host}:{port}: {reason}")
