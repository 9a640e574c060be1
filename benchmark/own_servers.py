"""A Redis and a PostgreSQL of a benchmark's own, on free ports, with empty folders that go at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import redis

from benchmark.engine_start import free_port

START_SECONDS = 60.0
COUNTER = "pg_stat_statements"
USER = "postgres"  # as whom the server runs where this process is root


@contextlib.contextmanager
def redis_server() -> Iterator[str]:
    """Run a Redis that writes every change to its folder as deployed ones do; yield its URL."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        options = ["--port", str(port), "--dir", folder, "--appendonly", "yes", "--save", ""]
        url = f"redis://127.0.0.1:{port}/0"
        with _running([_program("redis-server"), *options], lambda: redis.Redis.from_url(url).ping(), None):
            yield url


@contextlib.contextmanager
def postgres_server(*, is_counted: bool = False) -> Iterator[str]:
    """Run a PostgreSQL without fsync, whose disk is not what is measured; yield its URL.

    `is_counted`: it counts statements (`pg_stat_statements`).
    """
    user = USER if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as parent:
        folder, port = Path(parent) / "data", free_port()
        folder.mkdir(mode=0o700)
        if user is not None:
            Path(parent).chmod(0o755)
            shutil.chown(folder, user)
        made = [_program("initdb"), "-D", str(folder), "--no-sync", "--auth=trust", f"--username={USER}"]
        subprocess.run([*made, "--encoding=UTF8", "--locale=C"], check=True, stdout=subprocess.DEVNULL, user=user)
        url = f"postgresql://{USER}@127.0.0.1:{port}/postgres"
        settings = "fsync=off", "max_connections=200", *([f"shared_preload_libraries={COUNTER}"] if is_counted else [])
        options = ["-h", "127.0.0.1", "-p", str(port), "-k", "", *(w for one in settings for w in ("-c", one))]
        with _running([_program("postgres"), "-D", str(folder), *options], lambda: psycopg.connect(url).close(), user):
            yield url


@contextlib.contextmanager
def _running(command: list[str], answers: Callable[[], object], user: str | None) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=user)
    try:
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                answers()
                break
            except (redis.RedisError, psycopg.OperationalError, OSError):
                if process.poll() is not None or time.monotonic() > until:
                    raise
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def _program(name: str) -> str:
    """Return the path of a server's program; Debian keeps PostgreSQL's out of PATH."""
    found = shutil.which(name)
    packaged = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    if found is None and not packaged:
        raise FileNotFoundError(f"{name}: not installed; expected it in PATH (Debian: postgresql, redis-server)")
    return str(packaged[-1] if name != "redis-server" and packaged else found)
