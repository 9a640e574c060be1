"""A real PostgreSQL server of this machine, started once for a session. Tests are skipped where none is installed."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from darkroom.worker.engines.supervisor import free_port
from darkroom.worker.gateway.database import SUFFIX
from darkroom.worker.settings.database import DatabaseConfig
from darkroom.worker.storage.migrations.__main__ import migrate

SCHEMA = "darkroom"
FAST = ("fsync=off", "full_page_writes=off", "max_connections=200", "shared_buffers=16MB")


class PostgresServer:
    """A server on a free port of this machine, which can be killed and started again."""

    def __init__(self, folder: Path, programs: Path, user: str | None) -> None:
        self.port = free_port()
        self._folder = folder
        self._programs = programs
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count()

    def make(self) -> None:
        """Create the server's files, and a database with today's tables from which others are copied."""
        self._run("initdb", "--no-sync", "--auth=trust", "--username=test", "--locale=C", "--encoding=UTF8")
        self.start()
        with self._admin() as admin:
            admin.execute("CREATE DATABASE template_tables")
        url = self.url("template_tables").replace("postgresql://", "postgresql+psycopg://")
        for schema in (SCHEMA, f"{SCHEMA}{SUFFIX}"):  # of a worker, and of gateways
            with psycopg.connect(self.url("template_tables"), autocommit=True) as connection:
                connection.execute(f"CREATE SCHEMA {schema}")
            migrate(f"{url}?options=-csearch_path%3D{schema}")

    def start(self) -> None:
        options = [word for setting in FAST for word in ("-c", setting)]
        self._process = subprocess.Popen(
            [
                self._programs / "postgres",
                "-D",
                self._folder,
                "-h",
                "127.0.0.1",
                "-p",
                str(self.port),
                "-k",
                "",
                *options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self._user,
            start_new_session=True,
        )
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(psycopg.OperationalError), self._admin():
                return
            assert time.monotonic() < until, "PostgreSQL does not answer"
            time.sleep(0.02)

    def kill(self) -> None:
        """End the server and all its sessions at once, without a word to anybody: it recovers at the next start."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def close_sessions(self, database: str) -> None:
        """End every session of a database, as a server does that fails over."""
        with self._admin() as admin:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [database])

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://test@127.0.0.1:{self.port}/{database}"

    def new_database(self, *, is_empty: bool = False) -> str:
        """Return the name of a new database, with today's tables unless it is to be empty."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        with self._admin() as admin:
            admin.execute(f"CREATE DATABASE {name} TEMPLATE {'template0' if is_empty else 'template_tables'}")
        return name

    def config(self, database: str) -> DatabaseConfig:
        return DatabaseConfig(url=SecretStr(self.url(database)), schema_name=SCHEMA)

    def _admin(self) -> psycopg.Connection:
        return psycopg.connect(self.url(), autocommit=True, connect_timeout=5)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._programs / program, "-D", self._folder, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            user=self._user,
        )


def _programs() -> Path | None:
    """Return the folder of the server's programs."""
    found = shutil.which("initdb") or shutil.which("postgres")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    is_root = os.geteuid() == 0  # it does not run as root
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as parent:
        folder = Path(parent) / "data"
        folder.mkdir(mode=0o700)
        if is_root:
            Path(parent).chmod(0o755)
            shutil.chown(folder, "postgres")
        server = PostgresServer(folder, programs, "postgres" if is_root else None)
        try:
            server.make()
            yield server
        finally:
            server.kill()
