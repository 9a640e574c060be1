"""Addresses that a request may name; a connection goes where the check said."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from darkroom.worker.guard.safe_address import AddressGuard, AddressRefused, HostUnknown, shown_url
from darkroom.worker.guard.special_addresses import is_public


def resolving_to(*addresses: str) -> AddressGuard:
    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    return AddressGuard(resolve=resolve)


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "10.1.2.3",
        "169.254.169.254",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "fec0::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "2002:7f00:0001::",
        "64:ff9b::7f00:1",
        "64:ff9b:1::7f00:1",
        "::127.0.0.1",
        "::ffff:0:10.0.0.1",
        "192.0.0.192",
        "168.63.129.16",
    ],
)
def test_addresses_behind_the_worker_are_not_public(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "::ffff:1.1.1.1"])
def test_addresses_of_the_internet_are_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize(
    "url",
    ["ftp://example.com/x", "file:///etc/passwd", "gopher://example.com", "http://", "http://[::1", "//example.com/a"],
)
def test_only_http_addresses_with_a_host_are_taken(url: str) -> None:
    with pytest.raises(AddressRefused):
        AddressGuard().check_form(url)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/", "https://[::1]:8000/a", "http://169.254.169.254/latest/meta-data"]
)
def test_a_private_address_is_refused_without_asking_a_name_server(url: str) -> None:
    with pytest.raises(AddressRefused):
        AddressGuard().check_form(url)


@pytest.mark.parametrize("host", ["localhost", "2130706433", "0x7f.1", "127.1"])
async def test_other_spellings_of_this_machine_are_refused(host: str) -> None:
    with pytest.raises((AddressRefused, HostUnknown)):
        await AddressGuard().pin(f"http://{host}/")


async def test_a_name_with_one_private_address_among_public_ones_is_refused() -> None:
    with pytest.raises(AddressRefused) as caught:
        await resolving_to("93.184.216.34", "10.0.0.5").pin("https://u:secret@example.com/a?token=secret")
    assert "secret" not in str(caught.value.as_json()) and "10.0.0.5" not in str(caught.value.as_json())


async def test_a_name_that_does_not_resolve_is_distinguished() -> None:
    with pytest.raises(HostUnknown):
        await resolving_to().pin("https://nowhere.example/")


async def test_public_names_are_pinned_to_their_addresses() -> None:
    pinned = await resolving_to("93.184.216.34", "1.1.1.1").pin("https://example.com/a")
    assert (pinned.host, pinned.port, pinned.addresses) == ("example.com", 443, ("93.184.216.34", "1.1.1.1"))


@pytest.mark.parametrize("entry", ["127.0.0.1", "127.0.0.0/8", "LOCALHOST", "::1"])
async def test_exceptions_are_names_addresses_or_networks(entry: str) -> None:
    url = {"LOCALHOST": "http://localhost/", "::1": "http://[::1]/"}.get(entry, "http://127.0.0.1/")
    assert (await AddressGuard([entry]).pin(url)).addresses


def test_shown_urls_hold_no_secrets() -> None:
    assert shown_url("https://user:pw@example.com:8/a/b.png?sig=1#x") == "https://example.com:8/a/b.png"
    assert shown_url("http://[") == "(not a URL)"


class Site(BaseHTTPRequestHandler):
    """`/to?URL` redirects there; anything else says which host it was asked for."""

    def do_GET(self) -> None:
        self.server.seen.append(self.headers["Host"])  # type: ignore[attr-defined]
        path, _, target = self.path.partition("?")
        self.send_response(302 if path == "/to" else 200)
        if path == "/to":
            self.send_header("Location", target)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def site() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.seen = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


async def test_the_connection_goes_to_the_checked_address_under_the_hosts_name(site: ThreadingHTTPServer) -> None:
    answers = iter([["127.0.0.1"], ["10.9.9.9"]])

    async def changing(host: str, port: int) -> list[str]:
        return next(answers)

    guard = AddressGuard(["pictures.example"], resolve=changing)
    async with httpx.AsyncClient(transport=guard.transport(), trust_env=False) as http:
        response = await http.get(f"http://pictures.example:{site.server_port}/a")
    assert response.status_code == 200
    assert site.seen == [f"pictures.example:{site.server_port}"]  # type: ignore[attr-defined]


async def test_a_redirect_to_a_private_address_is_refused(site: ThreadingHTTPServer) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    guard = AddressGuard(["pictures.example"], resolve=resolve)
    start = f"http://pictures.example:{site.server_port}/to?"
    async with httpx.AsyncClient(transport=guard.transport(), trust_env=False, follow_redirects=True) as http:
        for target in (f"http://127.0.0.1:{site.server_port}/", "http://other.example/", "http://169.254.169.254/x"):
            with pytest.raises(AddressRefused):
                await http.get(start + target)
    assert len(site.seen) == 3  # type: ignore[attr-defined]


async def test_an_engine_of_the_worker_is_refused_whatever_is_allowed() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["10.0.0.5"]

    guard = AddressGuard(["10.0.0.0/8"], resolve, own_urls=["http://10.0.0.5:8188", "https://engine.example"])
    for url in ("http://10.0.0.5:8188/view", "https://engine.example/view", "https://Engine.Example.:443/view"):
        with pytest.raises(AddressRefused, match="is an engine of this worker"):
            guard.check_form(url)
    with pytest.raises(AddressRefused, match="is an engine of this worker"):
        await guard.pin("http://another.example:8188/view")
    assert (await guard.pin("http://another.example/")).addresses == ("10.0.0.5",)
