"""Web pages against the port of a stand-alone engine: foreign frames, unspecified addresses, DNS rebinding."""

from __future__ import annotations

import base64
import hashlib
import http.client
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.engine.server.running_engine import RunningEngine, running_engine

TOKEN = "a-token-of-this-test"
PROMPT = b'{"prompt": {}}'
FOREIGN = [
    {"Origin": "null"},
    {"Origin": "http://evil.example"},
    {"Host": "0.0.0.0:{port}", "Origin": "http://evil.example"},
    {"Host": "[::]:{port}", "Origin": "http://evil.example"},
    {"Host": "[::ffff:127.0.0.1]:{port}", "Origin": "http://evil.example"},
    {"Host": "evil.example:{port}", "Origin": "http://evil.example:{port}"},
    {"Host": "evil.example:{port}"},
    {"Host": "192.168.1.9:{port}"},
    {"Host": "localhost.evil.example"},
    {"Host": "user@127.0.0.1@evil.example"},
    {"Host": "[bad"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
]
OWN = [
    {},
    {"Host": "localhost"},
    {"Host": "127.0.0.1"},
    {"Host": "127.8.8.8:80"},
    {"Host": "[::1]:{port}"},
    {"Host": "0.0.0.0:{port}"},
    {"Host": "localhost:{port}", "Origin": "http://localhost:{port}"},
    {"Host": "0.0.0.0:{port}", "Origin": "http://0.0.0.0:{port}"},
    {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    with running_engine(tmp_path_factory.mktemp("pages"), "--allow-host", "comfy.example") as running:
        yield running


def ask(engine: RunningEngine, headers: dict[str, str], method: str = "GET", path: str = "/history") -> int:
    """The status. `{port}` in a header stands for the engine's port."""
    port = urlsplit(engine.url).port
    assert port is not None
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    sent = {name: value.replace("{port}", str(port)) for name, value in headers.items()}
    try:
        connection.request(method, path, PROMPT if method == "POST" else None, {"Content-Type": "text/plain", **sent})
        return connection.getresponse().status
    finally:
        connection.close()


def upgrade(headers: dict[str, str]) -> dict[str, str]:
    key = base64.b64encode(b"0123456789abcdef").decode()
    return {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Version": "13",
        **headers,
    }


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_foreign_page_is_refused_everywhere(engine: RunningEngine, headers: dict[str, str]) -> None:
    assert ask(engine, headers) == 403
    assert ask(engine, headers, "POST", "/prompt") == 403
    assert ask(engine, headers, "POST", "/api/interrupt") == 403
    assert ask(engine, upgrade(headers), path="/ws") == 403


@pytest.mark.parametrize("headers", OWN, ids=str)
def test_programs_and_own_pages_are_served(engine: RunningEngine, headers: dict[str, str]) -> None:
    assert ask(engine, headers) == 200
    assert ask(engine, headers, "POST", "/prompt") == 400  # the prompt is empty
    assert ask(engine, upgrade(headers), path="/ws") == 101


def test_a_host_that_the_operator_named_is_served_but_no_foreign_page(engine: RunningEngine) -> None:
    assert ask(engine, {"Host": "comfy.example", "Origin": "https://comfy.example"}) == 200
    assert ask(engine, {"Host": "COMFY.example:443"}) == 200
    assert ask(engine, {"Host": "127.0.0.1", "Origin": "https://comfy.example"}) == 403


def test_a_program_of_http_1_0_without_a_host_is_served(engine: RunningEngine) -> None:
    address = urlsplit(engine.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(b"GET /history HTTP/1.0\r\n\r\n")
        assert b" 200 " in connection.recv(4096).splitlines()[0]


def test_the_page_that_the_operator_allowed_is_the_only_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("cors")
    with running_engine(folder, "--enable-cors-header", "https://page.example") as running:
        assert ask(running, {"Origin": "https://page.example", "Sec-Fetch-Site": "cross-site"}) == 200
        assert ask(running, upgrade({"Origin": "https://page.example"}), path="/ws") == 101
        assert ask(running, {"Origin": "https://evil.example"}, "POST", "/prompt") == 403
        assert ask(running, upgrade({"Origin": "https://evil.example"}), path="/ws") == 403
        assert ask(running, {"Host": "evil.example"}) == 403


def test_an_engine_with_a_token_serves_nobody_without_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("token")
    with running_engine(folder, "--token-sha256", hashlib.sha256(TOKEN.encode()).hexdigest()) as running:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": f"token={TOKEN}"}, {"Host": "evil.example"}):
            assert ask(running, headers) == 401
            assert ask(running, upgrade(headers), path="/ws") == 401
        assert ask(running, {"Authorization": f"Bearer {TOKEN}"}) == 200
        assert ask(running, {"Authorization": f"bearer {TOKEN}"}, "POST", "/prompt") == 400
        assert ask(running, {}, path=f"/history?token={TOKEN}") == 200
        assert ask(running, upgrade({}), path=f"/ws?token={TOKEN}") == 101
        assert ask(running, {"Origin": "null"}, path=f"/history?token={TOKEN}") == 403
