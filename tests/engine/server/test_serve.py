"""The process: `python -m darkroom.engine` as its users and its parent see it."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from darkroom.engine.server.serve import EXIT_FAILED, EXIT_PARENT_GONE, EXIT_PORT_TAKEN
from tests.engine.server.certificate import write_certificate
from tests.engine.server.running_engine import ROOT, running_engine, start


def test_it_answers_and_ends_cleanly_on_sigterm(tmp_path: Path) -> None:
    (tmp_path / "temp").mkdir()
    (tmp_path / "temp" / "old.png").write_bytes(b"x")
    with running_engine(tmp_path) as engine:
        with urllib.request.urlopen(f"{engine.url}/system_stats", timeout=30) as answer:
            stats = json.load(answer)
        assert stats["devices"][0]["type"] == "cpu" and stats["system"]["ram_total"] > 0
        assert not (tmp_path / "temp" / "old.png").exists()
        with urllib.request.urlopen(f"{engine.url}/object_info/SaveImage", timeout=60) as answer:
            assert "SaveImage" in json.load(answer)  # the engine is built
        assert engine.stop() == 0
    assert "stopped" in engine.lines[-1]


def test_it_ends_at_once_when_its_parent_is_gone(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    process = start(tmp_path, "--liveness-fd", str(read_end), pass_fds=(read_end,))
    os.close(read_end)
    os.close(write_end)
    _, _ = process.communicate(timeout=60)
    assert process.returncode == EXIT_PARENT_GONE


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with running_engine(tmp_path) as engine:
        port = engine.url.rpartition(":")[2]
        second = start(tmp_path, "--port", port)
        _, said = second.communicate(timeout=60)
    assert second.returncode == EXIT_PORT_TAKEN
    assert f"port {port}: Address already in use" in said and "Traceback" not in said


def test_with_a_key_and_a_certificate_it_speaks_https(tmp_path: Path) -> None:
    key, certificate = write_certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=certificate)
    with running_engine(tmp_path, "--tls-keyfile", str(key), "--tls-certfile", str(certificate)) as engine:
        assert engine.url.startswith("https://")
        with urllib.request.urlopen(f"{engine.url}/features", timeout=30, context=trusting) as answer:
            assert answer.status == 200


def test_a_certificate_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    key, certificate = write_certificate(tmp_path)
    certificate.write_text("nonsense")
    ended = start(tmp_path, "--tls-keyfile", str(key), "--tls-certfile", str(certificate))
    _, said = ended.communicate(timeout=60)
    assert ended.returncode == EXIT_FAILED
    assert "cannot use the TLS key and certificate" in said and "Traceback" not in said


@pytest.mark.parametrize(("flag", "visible"), [("--cuda-device", "3"), ("--default-device", "3,0,1,2,4")])
def test_the_gpus_it_may_see_are_passed_to_their_libraries(flag: str, visible: str) -> None:
    code = (
        "import os, sys; from darkroom.engine.__main__ import show_devices;"
        "from darkroom.engine.server.flags import read_flags;"
        "show_devices(read_flags(sys.argv[1:]).settings);"
        "sys.stdout.write(os.environ['CUDA_VISIBLE_DEVICES'] + ' ' + os.environ['HIP_VISIBLE_DEVICES'])"
    )
    told = subprocess.run([sys.executable, "-c", code, flag, "3"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert all(item.startswith(visible) for item in told.stdout.split())


def test_the_server_can_be_imported_without_torch() -> None:
    code = "import sys, darkroom.engine.server.serve, darkroom.engine.server.flags; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_random_checkpoint_of_no_known_scale_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "darkroom.engine", "random-checkpoint", str(tmp_path / "x"), "--scale", "huge"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and "huge" in ended.stderr


def test_it_ends_while_a_client_is_connected_and_a_prompt_waits_for_torch(tmp_path: Path) -> None:
    with running_engine(tmp_path) as engine, socket.create_connection(_address(engine.url)) as client:
        client.sendall(
            b"GET /ws?clientId=me HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert b"101" in client.recv(64)
        assert engine.stop() == 0


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)
