"""The engine that the front starts is reached through a private Unix socket, or through a port with a token."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import tempfile
import time
from pathlib import Path

import httpx
import pytest

from darkroom.worker.engines.address import EngineAddress
from darkroom.worker.engines.command import engine_command
from darkroom.worker.engines.http import MAX_ANSWER_BYTES, EngineHttp
from darkroom.worker.engines.unix_socket import MAX_PATH_BYTES, UnixSocket
from darkroom.worker.errors import EngineUnreachable, SettingsInvalid
from darkroom.worker.settings.engines import EngineLaunch
from tests.flow.running_worker import RunningWorker
from tests.s3_server import free_ports
from tests.security.worker_process import IMAGE, inodes_of, job, processes_below, tcp_listeners, worker_process


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def engine_urls(worker: RunningWorker) -> list[str]:
    return [engine["url"] for engine in worker.get("/health").json()["backends"]]


def test_no_engine_listens_on_a_port_and_a_killed_one_comes_back_on_its_socket(tmp_path: Path) -> None:
    """Also after the front was killed, which leaves the sockets behind."""
    folder = tmp_path / "state" / "engine"
    sockets = [folder / f"engine-{number}.sock" for number in (0, 1)]
    with worker_process(tmp_path, ENGINES="2") as worker:
        assert worker.generate(job(IMAGE)).status_code == 200
        assert engine_urls(worker) == ["unix:engine-0.sock", "unix:engine-1.sock"]
        below = processes_below(worker.process.pid)
        assert len(below) >= 2
        assert not [pid for pid in below if inodes_of(pid) & tcp_listeners()]
        assert mode_of(folder) == 0o700
        assert [mode_of(path) for path in sockets] == [0o600, 0o600]
        assert len(list((tmp_path / "temp").iterdir())) == 2
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait()
        assert all(path.exists() for path in sockets)
    with worker_process(tmp_path) as worker:
        assert worker.generate(job(IMAGE)).status_code == 200
        (engine,) = processes_below(worker.process.pid)
        os.kill(engine, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while worker.get("/ready").status_code != 200 or processes_below(worker.process.pid) in ([], [engine]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert worker.generate(job(IMAGE)).status_code == 200
        assert engine_urls(worker) == ["unix:engine-0.sock"]
    assert not sockets[0].exists()


@pytest.mark.slow
def test_a_port_that_the_operator_asks_for_needs_the_token_of_this_start(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    token_file = tmp_path / "state" / "engine" / "token"
    token_file.parent.mkdir(parents=True, mode=0o700)
    token_file.write_text("that of the start before")
    with worker_process(tmp_path, ENGINE_ARGS=f"--port {port}") as worker:
        assert worker.generate(job(IMAGE)).status_code == 200
        token = token_file.read_text()
        assert len(token) > 30 and " " not in token and mode_of(token_file) == 0o600
        assert httpx.get(f"{url}/history").status_code == 401
        assert httpx.post(f"{url}/prompt", json={"prompt": {}}).status_code == 401
        assert httpx.get(f"{url}/history", headers={"Authorization": f"Bearer {token}"}).status_code == 200
        assert httpx.get(f"{url}/queue", params={"token": token}).status_code == 200
        for pid in (worker.process.pid, *processes_below(worker.process.pid)):
            for name in ("cmdline", "environ"):
                assert token.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
        assert token not in worker.log.read_text()


async def test_a_directory_with_a_long_path_gives_way_to_a_short_private_one(tmp_path: Path) -> None:
    unix = UnixSocket("engine-0", tmp_path / ("long" * 40))
    listening = unix.listen()
    try:
        assert unix.path.is_relative_to(tempfile.gettempdir())
        assert len(os.fsencode(unix.path)) <= MAX_PATH_BYTES
        assert mode_of(unix.path.parent) == 0o700 and mode_of(unix.path) == 0o600
    finally:
        listening.close()
        folder = unix.path.parent
        unix.remove()
    assert not folder.exists()


async def test_more_clients_than_the_backlog_holds_are_all_answered(tmp_path: Path) -> None:
    unix = UnixSocket("engine-0", tmp_path)
    listening = unix.listen()
    listening.listen(1)
    http = EngineHttp(EngineAddress.of_socket(unix))
    asking = [asyncio.ensure_future(http.request("GET", "/")) for _ in range(50)]
    await asyncio.sleep(0.1)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, sock=listening)
    try:
        assert [reply.status for reply in await asyncio.gather(*asking)] == [200] * 50
    finally:
        server.close()
        await http.close()
        unix.remove()


@pytest.mark.parametrize("head", [f"Content-Length: {MAX_ANSWER_BYTES * 4}", "Connection: close"])
async def test_a_reply_without_end_is_cut_off(tmp_path: Path, head: str) -> None:
    unix = UnixSocket("engine-0", tmp_path)
    num_sent = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode())
        try:
            while num_sent < 50_000_000:
                writer.write(b"x" * 65536)
                num_sent += 65536
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    server = await asyncio.start_unix_server(answer, sock=unix.listen())
    http = EngineHttp(EngineAddress.of_socket(unix), max_answer_bytes=1_000_000)
    try:
        with pytest.raises(EngineUnreachable):
            await http.request("GET", "/")
        assert num_sent < 20_000_000
    finally:
        server.close()
        await http.close()
        unix.remove()


def test_a_child_finds_no_socket_of_a_strangers(tmp_path: Path) -> None:
    """A stranger's socket under the name is never connected to: the front binds anew before it starts an engine."""
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stranger.bind(str(tmp_path / "engine-0.sock"))
    stranger.listen(1)
    unix = UnixSocket("engine-0", tmp_path)
    listening = unix.listen()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(unix.path))
            listening.settimeout(5)
            listening.accept()[0].close()
    finally:
        listening.close()
        stranger.close()


@pytest.mark.parametrize(
    ("flags", "index", "listen", "port", "host"),
    [
        ((), None, "", 0, "127.0.0.1"),
        (("--port", "9000"), 2, "127.0.0.1", 9002, "127.0.0.1"),
        (("--port=0",), 2, "127.0.0.1", 0, "127.0.0.1"),
        (("--listen",), None, "0.0.0.0,::", 8188, "127.0.0.1"),
        (("--listen", "--cpu"), 1, "0.0.0.0,::", 8189, "127.0.0.1"),
        (("--listen", "::", "--port", "9000"), None, "::", 9000, "::1"),
        (("--listen=192.0.2.1",), None, "192.0.2.1", 8188, "192.0.2.1"),
    ],
)
def test_the_operators_flags_decide_about_the_port(
    tmp_path: Path, flags: tuple[str, ...], index: int | None, listen: str, port: int, host: str
) -> None:
    launch = EngineLaunch(arguments=flags, base_directory=tmp_path, metadata="full")
    made = engine_command(launch, {}, frozenset(), index=index)
    assert (made.listen, made.port, made.connect_host) == (listen, port, host)
    assert "--listen" not in made.arguments and "--port" not in made.arguments


def test_a_port_that_is_none_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match="ENGINE_ARGS.*'x'.*65535"):
        launch = EngineLaunch(arguments=("--port", "x"), base_directory=tmp_path, metadata="full")
        engine_command(launch, {}, frozenset())
