"""A port that is taken ends the start before anything else is started, with one line that names the holder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from darkroom.worker.guard.listener.errors import CannotListen
from darkroom.worker.guard.listener.server import bind
from tests.s3_server import free_ports

ROOT = Path(__file__).parents[4]


@pytest.mark.timeout(60)
def test_a_worker_whose_port_is_taken_ends_with_one_line_and_starts_no_engine(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "darkroom.worker",
                "serve",
                "--port",
                str(port),
                "--base-directory",
                str(tmp_path),
                "--cpu",
            ],
            cwd=ROOT,
            env={**os.environ, "BENCHMARK": "off", "LOG_FORMAT": "json"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line and not line.startswith("{")]
    assert f"127.0.0.1:{port}" in line and f"(process {os.getpid()})" in line and "WORKER_PORT" in line
    everything = done.stdout + done.stderr
    assert "Traceback" not in everything and "engine" not in everything and "the log has" not in everything


async def test_an_address_of_another_machine_is_named_without_a_holder() -> None:
    (port,) = free_ports(1)
    with pytest.raises(CannotListen, match=f"203.0.113.1:{port}: cannot assign requested address$"):
        await bind("203.0.113.1", port)


async def test_a_name_that_is_no_host_is_named() -> None:
    with pytest.raises(CannotListen, match=r"no-host\.invalid:8000"):
        await bind("no-host.invalid", 8000)
