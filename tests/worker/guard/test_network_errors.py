"""Causes of failed connections in words, from real servers that fail in each way, for all that connects."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import SecretStr

from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.guard.safe_address import AddressGuard
from darkroom.worker.outputs.targets.put import PutTarget, PutUploader
from darkroom.worker.outputs.targets.target import UploadFailed
from darkroom.worker.outputs.webhook import WebhookSender
from darkroom.worker.s3.stores import S3Stores, StoreFailed
from darkroom.worker.s3.targets import S3Target

SECRET = "planted-secret"
Way = Callable[[str, Path], Awaitable[str]]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def close_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.close()


async def answer_garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"220 mail.example.org ESMTP\r\n\r\n")
    await writer.drain()
    writer.close()


async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(65536):
        pass
    writer.close()


async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    place = f"https://user:{SECRET}@elsewhere.example/hook?key={SECRET}"
    writer.write(f"HTTP/1.1 301 Moved\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode())
    await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            await handler(reader, writer)

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def certificate(folder: Path, *, address: str = "127.0.0.1", days: int = 1) -> ssl.SSLContext:
    """A self-signed certificate; with negative `days` it has expired."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=3))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(pem)
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


@dataclass(frozen=True)
class Row:
    url: str
    secret: str | None = SECRET
    timeout_seconds: float = 60.0
    is_trusted: bool = False
    attempts: int = 0
    traceparent: str = ""
    id: str = "msg_1"
    body: bytes = b"{}"


GUARD = AddressGuard(["127.0.0.1", "nowhere.invalid"])


async def by_webhook(url: str, _folder: Path, timeout_seconds: float = 60.0) -> str:
    sender = WebhookSender(GUARD)
    try:
        outcome = await sender.deliver(Row(f"{url}/hook?key={SECRET}", timeout_seconds=timeout_seconds))
        assert not outcome.is_delivered and outcome.retry_in_seconds is not None
        return outcome.error
    finally:
        await sender.close()


async def by_impatient_webhook(url: str, folder: Path) -> str:
    return await by_webhook(url, folder, timeout_seconds=0.5)


async def by_put(url: str, folder: Path) -> str:
    (folder / "a.png").write_bytes(b"a")
    uploader, until = PutUploader(GUARD), asyncio.get_running_loop().time() + 30
    try:
        target = PutTarget(f"{url}/{{key}}?sig={SECRET}", {"X-Key": SECRET})
        with pytest.raises(UploadFailed) as failed:
            await uploader.upload(target, folder / "a.png", "a.png", "image/png", until=until)
        return failed.value.message
    finally:
        await uploader.close()


async def by_s3(url: str, folder: Path) -> str:
    (folder / "a.png").write_bytes(b"a")
    stores = S3Stores(GUARD)
    target = S3Target("key", SecretStr(SECRET), "bucket", url, "auto", 20.0, 1, "path", False, False)
    try:
        with pytest.raises(StoreFailed) as failed:
            await stores.write(target, folder / "a.png", "a.png", "image/png")
        return failed.value.reason
    finally:
        await stores.close()


ALL = (by_webhook, by_put, by_s3)


async def assert_cause(
    url: str, words: str, folder: Path, ways: Iterable[Callable[[str, Path], Awaitable[str]]]
) -> None:
    for way in ways:
        found = await way(url, folder)
        assert words in found, (way.__name__, found)
        assert SECRET not in found and "Error" not in found, (way.__name__, found)


async def test_a_refused_connection_is_named(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        await assert_cause(url, "the connection was refused", tmp_path, ALL)


async def test_a_connection_that_is_closed_is_named(tmp_path: Path) -> None:
    async with serving(close_at_once) as url:
        await assert_cause(url, "the connection was closed without an answer", tmp_path, ALL)


async def test_an_answer_that_is_no_http_is_named(tmp_path: Path) -> None:
    async with serving(answer_garbage) as url:
        await assert_cause(url, "the answer is no HTTP", tmp_path, ALL)


async def test_a_redirect_is_named_with_its_target_and_without_its_secrets(tmp_path: Path) -> None:
    async with serving(redirect) as url:
        words = "status 301, a redirect to https://elsewhere.example/hook; redirects are not followed"
        await assert_cause(url, words, tmp_path, (by_webhook, by_put))
        words = "a redirect to https://elsewhere.example/hook; redirects are not followed"
        await assert_cause(url, words, tmp_path, (by_s3,))


async def test_an_answer_that_does_not_come_is_named(tmp_path: Path) -> None:
    async with serving(never_answer) as url:
        await assert_cause(url, "no answer", tmp_path, (by_impatient_webhook,))


@pytest.mark.parametrize(
    ("days", "words"), [(1, "the certificate is self-signed"), (-1, "certificate")], ids=["self-signed", "expired"]
)
async def test_a_certificate_that_is_not_trusted_is_named(tmp_path: Path, days: int, words: str) -> None:
    async with serving(close_at_once, certificate(tmp_path, days=days)) as url:
        await assert_cause(url, words, tmp_path, ALL)


async def test_a_server_without_tls_is_named(tmp_path: Path) -> None:
    async with serving(answer_garbage) as url:
        await assert_cause(url.replace("http:", "https:"), "TLS", tmp_path, ALL)


async def caught(url: str, verify: ssl.SSLContext | bool = True, timeout_seconds: float = 60) -> BaseException:
    async with httpx.AsyncClient(trust_env=False, timeout=timeout_seconds, verify=verify) as http:
        try:
            await http.get(url)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return error
    raise AssertionError("the request succeeded")


@pytest.mark.parametrize(
    ("address", "days", "words"),
    [("127.0.0.1", -1, "has expired"), ("127.0.0.2", 1, "is for another address")],
)
async def test_a_trusted_certificate_may_be_wrong_too(tmp_path: Path, address: str, days: int, words: str) -> None:
    context = certificate(tmp_path, address=address, days=days)
    async with serving(close_at_once, context) as url:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        assert words in cause_of(await caught(url, trusting))


async def test_other_causes_have_words() -> None:
    assert cause_of(await caught("http://nowhere.invalid/")) == "the host does not resolve"
    assert "http:// or https://" in cause_of(await caught("ftp://127.0.0.1/"))
    async with serving(never_answer) as url:
        assert cause_of(await caught(url, timeout_seconds=0.5)) == "no answer in time"
    assert cause_of(ExceptionGroup("several", [OSError(), ConnectionRefusedError(111, "x")])).startswith(
        "the connection was refused"
    )


def test_every_error_of_httpx_has_words_of_its_own() -> None:
    kinds = [kind for kind in vars(httpx).values() if isinstance(kind, type) and issubclass(kind, httpx.TransportError)]
    assert len(kinds) > 10
    for kind in kinds:
        cause = cause_of(kind("planted-words https://example.org"))
        assert "planted" not in cause and "example" not in cause
        if not kind.__subclasses__():
            assert not cause.startswith("it failed"), kind
