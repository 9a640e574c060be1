"""UnixSocket: the Unix socket on which one engine of ours listens.

The front binds it and passes it to each process of the engine, which therefore needs no access to its folder. Only the
front's user may enter that folder. Web pages and other machines cannot reach the socket at all.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from pathlib import Path

MAX_PATH_BYTES = 107  # the kernel's limit, without the closing NUL
BACKLOG = 4096  # a full backlog refuses at once, where TCP would wait


class UnixSocket:
    """Unix socket of one engine. `directory` None: a private temporary folder.

    The temporary folder is also used where the directory's path is too long or does not support sockets. A file of that
    name in `directory` is left from an earlier front and is replaced: the caller owns the directory.
    """

    def __init__(self, name: str, directory: Path | None) -> None:
        self._file_name = f"{name}.sock"
        self._own_folder: Path | None = None
        directory = None if directory is None else directory.absolute()
        fits = directory is not None and len(os.fsencode(directory / self._file_name)) <= MAX_PATH_BYTES
        self._directory = directory if fits else None

    @property
    def name(self) -> str:
        return self._file_name

    @property
    def path(self) -> Path:
        """Path of the socket. Raises FileNotFoundError before the temporary folder is made."""
        folder = self._own_folder or self._directory
        if folder is None:
            raise FileNotFoundError(f"{self._file_name} is not listened on")
        return folder / self._file_name

    def listen(self) -> socket.socket:
        """Bind anew and return the listening socket, to be closed by the caller. Raises OSError."""
        try:
            return self._bound()
        except OSError:
            if self._directory is None:
                raise
            self._directory = None  # a file system without sockets
            return self._bound()

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        if self._own_folder is not None:
            with contextlib.suppress(OSError):
                self._own_folder.rmdir()
            self._own_folder = None

    def _bound(self) -> socket.socket:
        path = self._folder() / self._file_name
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(path))
            path.chmod(0o600)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        return listening

    def _folder(self) -> Path:
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._directory.chmod(0o700)
            return self._directory
        if self._own_folder is None:
            self._own_folder = Path(tempfile.mkdtemp(prefix="darkroom-", dir=_short_temporary_folder()))
        return self._own_folder


def _short_temporary_folder() -> str | None:
    """Return `/tmp` where no socket path would fit below `TMPDIR`, else None for the default."""
    return None if len(os.fsencode(tempfile.gettempdir())) < MAX_PATH_BYTES // 2 else "/tmp"  # noqa: S108
