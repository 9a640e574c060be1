"""The key of the front's own commands and children on this machine, so that they need no trust in an address.

It is made anew at each start, has an operator's rights, and lies in the state directory for the front's user alone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from pydantic import SecretStr

SECRET_BYTES = 32


def own_key_path(state_directory: Path) -> Path:
    """Return where the front of this state directory keeps its key."""
    return state_directory / "keys" / "front"


def read_own_key(path: Path) -> str:
    """Return the key of the front that runs, empty where there is none or it is another user's."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


class OwnKey:
    """One start's key; on disk between `publish` and `withdraw`."""

    def __init__(self, state_directory: Path) -> None:
        self.secret = SecretStr(secrets.token_urlsafe(SECRET_BYTES))
        self._path = own_key_path(state_directory)

    def publish(self) -> None:
        """Write the key with mode 0600. The state directory must be taken: another front's key would be lost."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = self._path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self.secret.get_secret_value())
        fresh.replace(self._path)

    def withdraw(self) -> None:
        """Remove the key from the disk."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
