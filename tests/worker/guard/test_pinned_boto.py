"""boto reaches only checked addresses, whatever a name says later; host name and certificate stay those of the name."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from botocore.exceptions import ClientError, HTTPClientError, SSLError
from pydantic import SecretStr

from worker.guard.safe_address import AddressGuard, AddressRefused
from worker.s3_clients import AddressingStyle, S3Clients, S3Target, store_reason

PUBLIC = "93.184.216.34"


class Store(BaseHTTPRequestHandler):
    """Takes every object; `/moved` points to another region's host."""

    protocol_version = "HTTP/1.1"  # answers `Expect: 100-continue` at once

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.headers["Host"], self.path))  # type: ignore[attr-defined]
        self.send_response(307 if "moved" in self.path else 200)
        self.send_header("Location", "http://10.0.0.1/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def store() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    server.seen = []
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class Names:
    """A name server whose answers change; the last one stays."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def client_of(guard: AddressGuard, endpoint: str, style: AddressingStyle = "path") -> Any:
    target = S3Target("key", SecretStr("secret"), "pictures", endpoint, "us-east-1", 0.5, 1, style, False)
    return S3Clients(guard).client(target)


def put(client: Any, key: str = "a.png") -> None:
    client.put_object(Bucket="pictures", Key=key, Body=b"x")


def test_a_name_that_turns_private_after_the_check_is_not_connected_to(store: Any) -> None:
    names = Names([PUBLIC], ["127.0.0.1"])
    client = client_of(AddressGuard(resolve=names.resolve), f"http://store.example:{store.server_port}")
    with pytest.raises(HTTPClientError) as caught:
        put(client)
    assert store.seen == [] and len(names.asked) == 2
    assert isinstance(caught.value.kwargs["error"], AddressRefused)
    assert "not on the public internet" in store_reason(caught.value)


def test_every_address_of_a_name_has_to_be_public(store: Any) -> None:
    names = Names([PUBLIC], [PUBLIC, "127.0.0.1"])
    with pytest.raises(HTTPClientError):
        put(client_of(AddressGuard(resolve=names.resolve), f"http://store.example:{store.server_port}"))
    assert store.seen == []


def test_the_connection_goes_to_the_checked_address_under_the_hosts_name(store: Any) -> None:
    names = Names(["127.0.0.1"])
    guard = AddressGuard(["store.example"], resolve=names.resolve)
    put(client_of(guard, f"http://store.example:{store.server_port}"))
    assert store.seen == [(f"store.example:{store.server_port}", "/pictures/a.png")]


def test_another_address_is_tried_when_the_first_does_not_answer(store: Any) -> None:
    guard = AddressGuard(["store.example"], resolve=Names(["127.0.0.2", "127.0.0.1"]).resolve)
    put(client_of(guard, f"http://store.example:{store.server_port}"))
    assert len(store.seen) == 1


def test_a_bucket_in_the_host_name_is_pinned_too(store: Any) -> None:
    names = Names(["127.0.0.1"])
    guard = AddressGuard(["store.example", "pictures.store.example"], resolve=names.resolve)
    put(client_of(guard, f"http://store.example:{store.server_port}", "virtual"))
    assert store.seen == [(f"pictures.store.example:{store.server_port}", "/a.png")]
    with pytest.raises(HTTPClientError):
        guard = AddressGuard(["store.example"], resolve=names.resolve)
        put(client_of(guard, f"http://store.example:{store.server_port}", "virtual"))


def test_a_redirect_is_not_followed_to_a_private_address(store: Any) -> None:
    guard = AddressGuard(["store.example"], resolve=Names(["127.0.0.1"]).resolve)
    with pytest.raises((ClientError, HTTPClientError)):
        put(client_of(guard, f"http://store.example:{store.server_port}"), "moved")
    assert {host for host, _ in store.seen} == {f"store.example:{store.server_port}"}


def test_a_private_endpoint_is_refused_before_any_connection(store: Any) -> None:
    with pytest.raises(AddressRefused):
        client_of(AddressGuard(), f"http://127.0.0.1:{store.server_port}")


def test_the_certificate_has_to_be_the_names_not_the_addresses(tmp_path: Any) -> None:
    """The TLS handshake asks for the name (SNI), and the connection went to the address."""
    import socket
    import ssl

    asked: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with pytest.raises(ssl.SSLError):
                context.wrap_socket(connection, server_side=True)

        serving = threading.Thread(target=serve)
        serving.start()
        guard = AddressGuard(["store.example"], resolve=Names(["127.0.0.1"]).resolve)
        with pytest.raises(SSLError):
            put(client_of(guard, f"https://store.example:{listener.getsockname()[1]}"))
        serving.join(5)
    assert asked == ["store.example"]
