"""The program that listens on a port of this machine: whether it is a worker, and which process it is."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LIVE: Final = "/live"
ALIVE: Final = {"status": "alive"}
ANSWER_SECONDS: Final = 1.0
MAX_ANSWER_BYTES: Final = 4096
LISTENING: Final = "0A"
PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class PortHolder:
    """A listening program. `process` and `program` are None where the system does not show them to this user."""

    is_worker: bool
    process: int | None = None
    program: str | None = None

    def __str__(self) -> str:
        name = "a worker of Darkroom" if self.is_worker else self.program or "another program"
        return name if self.process is None else f"{name} (process {self.process})"


def find_port_holder(host: str, port: int, *, proc: Path = PROC) -> PortHolder:
    """Return the holder of a port; `host` is an address at which it can be asked."""
    process = _process_of(_listening_inodes(port, proc), proc)
    program = None if process is None else _text(proc / str(process) / "comm").strip() or None
    return PortHolder(_is_worker(host, port), process, program)


def _is_worker(host: str, port: int) -> bool:
    """Return True where `/live` is answered as by a worker, without TLS or with it."""
    for has_tls in (False, True):
        try:
            if _answers_as_worker(host, port, has_tls=has_tls):
                return True
        except TimeoutError:  # neither would get an answer
            return False
        except (OSError, http.client.HTTPException, ValueError):
            continue
    return False


def _answers_as_worker(host: str, port: int, *, has_tls: bool) -> bool:
    if has_tls:
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host,
            port,
            timeout=ANSWER_SECONDS,
            context=ssl._create_unverified_context(),  # nothing is told to it, and its word is used for a message alone
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", LIVE)
        return bool(json.loads(connection.getresponse().read(MAX_ANSWER_BYTES)) == ALIVE)
    finally:
        connection.close()


def _listening_inodes(port: int, proc: Path) -> set[str]:
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in _text(proc / "net" / table).splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                inodes.add(words[9])
    return inodes


def _process_of(inodes: set[str], proc: Path) -> int | None:
    links = {f"socket:[{inode}]" for inode in inodes}
    if not links:
        return None
    return next(
        (process for process in _processes(proc) if not links.isdisjoint(_open_files(proc / str(process)))), None
    )


def _processes(proc: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield from sorted(int(name) for name in os.listdir(proc) if name.isdecimal())


def _open_files(process: Path) -> Iterator[str]:
    try:
        names = os.listdir(process / "fd")
    except OSError:  # another user's, or gone
        return
    for name in names:
        with contextlib.suppress(OSError):
            yield os.readlink(process / "fd" / name)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
