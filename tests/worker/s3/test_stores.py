"""S3 requests reach only checked addresses, whatever a name says later; host name and certificate stay the name's."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from darkroom.worker.guard.safe_address import AddressGuard, AddressRefused
from darkroom.worker.s3.signer import NotSignable, make_signer
from darkroom.worker.s3.stores import S3Stores, StoreFailed
from darkroom.worker.s3.targets import AddressingStyle, S3Target

PUBLIC = "93.184.216.34"


class Store(BaseHTTPRequestHandler):
    """Takes every object; `moved` points to another region's host, `busy` works the second time."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.headers["Host"], self.path.partition("?")[0]))  # type: ignore[attr-defined]
        is_busy = "busy" in self.path and len(self.server.seen) == 1  # type: ignore[attr-defined]
        self.send_response(503 if is_busy else 307 if "moved" in self.path else 200)
        self.send_header("Location", "http://10.0.0.1/elsewhere")
        self.send_header("x-amz-bucket-region", "eu-west-1")
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


def target_at(endpoint: str, style: AddressingStyle = "path", attempts: int = 1, bucket: str = "pictures") -> S3Target:
    secret = SecretStr("secret")
    return S3Target("key", secret, bucket, endpoint, "us-east-1", 0.5, attempts, style, False, False)


async def put(guard: AddressGuard, target: S3Target, folder: Path, key: str = "a.png") -> None:
    path = folder / "a.png"
    path.write_bytes(b"x")
    stores = S3Stores(guard)
    try:
        await stores.write(target, path, key, "image/png")
    finally:
        await stores.close()


def named(store: Any) -> str:
    return f"http://store.example:{store.server_port}"


@pytest.mark.parametrize("answer", [["127.0.0.1"], [PUBLIC, "127.0.0.1"]])
async def test_a_name_with_a_private_address_is_not_connected_to(
    store: Any, tmp_path: Path, answer: Sequence[str]
) -> None:
    names = Names(answer)
    with pytest.raises(AddressRefused, match="not on the public internet"):
        await put(AddressGuard(resolve=names.resolve), target_at(named(store), attempts=3), tmp_path)
    assert store.seen == [] and len(names.asked) == 1


async def test_the_connection_goes_to_the_checked_address_under_the_hosts_name(store: Any, tmp_path: Path) -> None:
    guard = AddressGuard(["store.example"], resolve=Names(["127.0.0.1"]).resolve)
    await put(guard, target_at(named(store)), tmp_path)
    assert store.seen == [(f"store.example:{store.server_port}", "/pictures/a.png")]


async def test_each_try_is_checked_anew(store: Any, tmp_path: Path) -> None:
    class Turning(AddressGuard):
        """Allows the private address for its first look alone, as a name that turns private would."""

        async def pin(self, url: str) -> Any:
            return await (allowing if not names.asked else AddressGuard(resolve=names.resolve)).pin(url)

    names = Names(["127.0.0.1"])
    allowing = AddressGuard(["store.example"], resolve=names.resolve)
    with pytest.raises(AddressRefused):
        await put(Turning(), target_at(named(store), attempts=2), tmp_path, "busy.png")
    assert len(store.seen) == 1


async def test_another_address_is_tried_when_the_first_does_not_answer(store: Any, tmp_path: Path) -> None:
    guard = AddressGuard(["store.example"], resolve=Names(["127.0.0.2", "127.0.0.1"]).resolve)
    await put(guard, target_at(named(store)), tmp_path)
    assert len(store.seen) == 1


async def test_a_bucket_in_the_host_name_is_pinned_too(store: Any, tmp_path: Path) -> None:
    names = Names(["127.0.0.1"])
    guard = AddressGuard(["store.example", "pictures.store.example"], resolve=names.resolve)
    await put(guard, target_at(named(store), "virtual"), tmp_path)
    assert store.seen == [(f"pictures.store.example:{store.server_port}", "/a.png")]
    with pytest.raises(AddressRefused):
        guard = AddressGuard(["store.example"], resolve=names.resolve)
        await put(guard, target_at(named(store), "virtual"), tmp_path)


async def test_a_redirect_is_not_followed(store: Any, tmp_path: Path) -> None:
    guard = AddressGuard(["store.example"], resolve=Names(["127.0.0.1"]).resolve)
    with pytest.raises(StoreFailed, match="307"):
        await put(guard, target_at(named(store), attempts=3), tmp_path, "moved")
    assert len(store.seen) == 1


async def test_a_busy_store_is_asked_again(store: Any, tmp_path: Path) -> None:
    guard = AddressGuard(["127.0.0.1"])
    await put(guard, target_at(f"http://127.0.0.1:{store.server_port}", attempts=2), tmp_path, "busy.png")
    assert len(store.seen) == 2


async def test_the_certificate_has_to_be_the_names_not_the_addresses(tmp_path: Path) -> None:
    """The TLS handshake asks for the name (SNI), and the connection went to the address."""
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
        with pytest.raises(StoreFailed, match="certificate"):
            await put(guard, target_at(f"https://store.example:{listener.getsockname()[1]}"), tmp_path)
        serving.join(5)
    assert asked == ["store.example"]


@pytest.mark.parametrize(
    ("bucket", "region", "expected"),
    [
        ("pictures", "us-east-1", "https://pictures.s3.amazonaws.com/a"),
        ("pictures", "eu-central-1", "https://pictures.s3.eu-central-1.amazonaws.com/a"),
        ("my.pictures", "eu-central-1", "https://s3.eu-central-1.amazonaws.com/my.pictures/a"),
    ],
)
def test_requests_to_aws_go_to_the_regions_own_host(bucket: str, region: str, expected: str) -> None:
    from botocore.session import Session

    signer = make_signer(Session(), target_at("", "auto", bucket=bucket), region)
    assert signer.url("get_object", Key="a").partition("?")[0] == expected


@pytest.mark.parametrize("endpoint", ["not a url", "https://[", "ftp//x"])
def test_an_endpoint_that_is_none_cannot_be_signed_for(endpoint: str) -> None:
    from botocore.session import Session

    with pytest.raises(NotSignable):
        make_signer(Session(), target_at(endpoint))
