"""Questions of `run.sh` before it starts: the folder of files, the address to listen at, the certificate."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def where(cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    ours = ("WORKER_", "BASE_", "USE_SSL", "SSL_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        [sys.executable, "-m", "tools.where"],
        cwd=cwd,
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_worker_on_all_interfaces_is_asked_on_this_machine(tmp_path: Path) -> None:
    told = where(
        tmp_path, BASE_DIRECTORY=str(tmp_path / "base"), WORKER_HOST="0.0.0.0", WORKER_PORT="8123", API_KEYS="k"
    )
    base = tmp_path / "base"
    key_file = base / "state" / "keys" / "front"
    assert told.stdout.splitlines() == [str(base), "http://127.0.0.1:8123", "", str(key_file)]


def test_a_worker_that_serves_https_shows_its_certificate(tmp_path: Path) -> None:
    told = where(tmp_path, BASE_DIRECTORY=str(tmp_path), USE_SSL="true", SSL_CERTFILE="a.crt", SSL_KEYFILE="a.key")
    assert told.stdout.splitlines()[1:3] == ["https://127.0.0.1:8000", str(tmp_path / "a.crt")]


def test_a_setting_that_does_not_parse_is_named_and_so_is_a_port_left_to_chance(tmp_path: Path) -> None:
    wrong, chance = where(tmp_path, WORKER_PORT="many"), where(tmp_path, WORKER_PORT="0")
    assert (wrong.returncode, chance.returncode) == (2, 2)
    open_door = where(tmp_path, WORKER_HOST="0.0.0.0")
    assert open_door.returncode == 2 and "UNSECURED" in open_door.stderr
    assert "WORKER_PORT" in wrong.stderr and "WORKER_PORT" in chance.stderr
