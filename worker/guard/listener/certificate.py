"""Certificate of the front's own TLS, reloaded when its files change on disk."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from darkroom.worker.settings.listener import TlsFiles

LOOK_SECONDS: Final = 2.0

FileStates = tuple[tuple[int, int, int] | None, ...]

log = structlog.get_logger("tls")


class Certificate:
    """TLS context for new connections. Construction raises OSError when the files cannot be used."""

    def __init__(self, files: TlsFiles, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._clock = clock
        self._states = _states_of(files)
        self._context = make_context(files)
        self._looked_at = clock()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection, of the newest certificate that could be used.

        The files are checked when a client connects, at most every few seconds. One that is broken, or does not match
        the key yet, leaves the old one in use until the files change again.
        """
        now = self._clock()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._look()
        return self._context

    def _look(self) -> None:
        states = _states_of(self._files)
        if states == self._states:
            return
        self._states = states
        names = {"certificate": str(self._files.certificate), "key": str(self._files.key)}
        try:
            self._context = make_context(self._files)
        except OSError as error:
            log.error("certificate reload failed, old one kept", reason=str(error.strerror or error), **names)
        else:
            log.info("certificate reloaded", **names)


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the context of a server with this certificate. Raises OSError, of which SSLError is one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could repeat the expensive half of a handshake
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(files.certificate, files.key)
    return context


def _states_of(files: TlsFiles) -> FileStates:
    """Return the state of each of the files: inode, size and time of change; None for a missing one."""
    return tuple(map(_state_of, (files.certificate, files.key)))


def _state_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
