"""Pages of a browser that count as the server's own."""

from __future__ import annotations

import pytest

from darkroom.engine.server.origin import differs, is_loopback


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8188", "http://evil.example"),
        ("127.0.0.1:8188", "http://127.0.0.1:3000"),
        ("localhost:8188", "http://127.0.0.1:8188"),
        ("127.0.0.1:8188", "http://127.0.0.1:99999"),
        ("127.0.0.1:8188", "null"),
        ("127.0.0.1:8188", "http://[bad"),
    ],
)
def test_pages_of_other_places_differ(host: str, origin: str) -> None:
    assert differs(host, origin)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8188", "http://127.0.0.1:8188"),
        ("LOCALHOST:8188", "http://localhost"),
        ("localhost", "http://localhost:8188"),
        ("[::1]:8188", "http://[::1]:8188"),
    ],
)
def test_pages_of_the_same_place_do_not(host: str, origin: str) -> None:
    assert not differs(host, origin)


async def test_loopback_addresses_are_known_by_name_too() -> None:
    assert await is_loopback("127.0.0.1") and await is_loopback("::1") and await is_loopback("localhost")
    assert await is_loopback("0.0.0.0") and await is_loopback("::") and await is_loopback("::ffff:127.0.0.1")
    assert not await is_loopback("192.0.2.7") and not await is_loopback(None)
