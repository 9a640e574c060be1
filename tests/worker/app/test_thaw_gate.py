"""The gate at which a front waits for a snapshot of its process: nothing of one worker is made before it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest

from darkroom.worker.app.thaw_gate import parse_variables, wait_at_gate
from darkroom.worker.engines.supervisor import free_port
from darkroom.worker.errors import SettingsInvalid
from tests.worker.running_front import until


def test_variables_are_lines_and_a_wrong_one_is_named_by_its_number() -> None:
    assert parse_variables("# of this copy\nA=1\n\n B = two=2 \n") == {"A": "1", "B": "two=2"}
    with pytest.raises(SettingsInvalid, match="line 2") as refused:
        parse_variables("A=1\nsecret without a name\n")
    assert "secret" not in str(refused.value)


def test_the_gate_says_when_it_is_reached_and_opens_by_its_file(tmp_path: Path) -> None:
    gate = tmp_path / "thaw"
    looks = []

    def sleep(seconds: float) -> None:
        assert (tmp_path / "thaw.frozen").is_file()
        looks.append(seconds)
        if len(looks) == 2:
            gate.write_text("WORKER_PORT=1\n")

    assert wait_at_gate(gate, sleep=sleep) == {"WORKER_PORT": "1"}
    assert len(looks) == 2


def test_a_gate_in_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match="thaw-file"):
        wait_at_gate(tmp_path / "none" / "thaw")


@pytest.mark.slow
async def test_a_front_takes_its_port_state_and_keys_after_the_thaw(tmp_path: Path) -> None:
    gate, state, port = tmp_path / "thaw", tmp_path / "state", free_port()
    given = {
        "STATE_DIRECTORY": str(tmp_path / "of-the-snapshot"),
        "BENCHMARK": "off",
        "ENGINE_URL": "http://127.0.0.1:9",
    }
    command = [sys.executable, "-m", "darkroom.worker", "serve", "--thaw-file", str(gate)]
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **given})
    try:
        frozen = tmp_path / "thaw.frozen"

        async def is_frozen() -> bool:
            return frozen.is_file()

        await until(is_frozen)
        assert not (tmp_path / "of-the-snapshot").exists() and process.returncode is None
        gate.write_text(f"WORKER_PORT={port}\nSTATE_DIRECTORY={state}\n")
        async with httpx.AsyncClient() as http:

            async def is_live() -> bool:
                try:
                    return (await http.get(f"http://127.0.0.1:{port}/live")).status_code == 200
                except httpx.TransportError:
                    return False

            await until(is_live)

        async def has_key() -> bool:
            return (state / "keys" / "front").is_file()

        await until(has_key)
        assert not (tmp_path / "of-the-snapshot").exists()
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
