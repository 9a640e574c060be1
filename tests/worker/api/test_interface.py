"""ComfyUI's web interface through the worker: keys, session cookie, and what is passed on by HTTP and WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from darkroom.worker.guard.identity.browser_sessions import LIFETIME_SECONDS, MAX_SESSIONS, BrowserSessions
from tests.fakes import FakeEngine
from tests.worker.running_front import RunningFront, running_front, until

KEYS: dict[str, Any] = {"api_keys": "guest:guest-secret", "admin_api_keys": "boss:boss-secret"}
BOSS = {"Authorization": "Bearer boss-secret"}
PAGE = {"Accept": "text/html", "Sec-Fetch-Mode": "navigate"}
COOKIE = "darkroom_interface"


@asynccontextmanager
async def interface(tmp_path: Path, **changes: Any) -> AsyncIterator[RunningFront]:
    async with (
        FakeEngine(tmp_path) as engine,
        running_front(tmp_path, engine, **{"front_end": True, **changes}) as front,
    ):
        yield front


async def signed_in(front: RunningFront) -> str:
    """Send the operator's key; return the session's token. The client has the cookie from then on."""
    reply = await front.http.post("/comfy-key", json={"key": "boss-secret"})
    assert reply.status_code == 204
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "boss-secret" not in cookie
    return front.http.cookies[COOKIE]


async def test_a_browser_without_a_key_gets_the_page_that_asks_for_one(tmp_path: Path) -> None:
    async with interface(tmp_path, **KEYS) as front:
        page = await front.http.get("/comfy/", headers=PAGE)
        assert page.status_code == 401 and "comfy_key.js" in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        for path in ("/comfy/queue", "/comfy/view?filename=x.png"):
            assert (await front.http.get(path)).status_code == 401
        assert (await front.http.post("/comfy/prompt", json={})).status_code == 401
        guest = {"Authorization": "Bearer guest-secret"}
        assert (await front.http.get("/comfy/queue", headers=guest)).status_code == 403
        assert front.engine.runs == []
        assert (await front.http.get("/comfy")).headers["location"] == "comfy/"


async def test_an_operators_key_opens_it_and_a_cookie_keeps_it_open(tmp_path: Path) -> None:
    async with interface(tmp_path, **KEYS) as front:
        assert (await front.http.get("/comfy/queue", headers=BOSS)).json()["queue_running"] == []
        await signed_in(front)
        assert (await front.http.get("/comfy/queue")).json()["queue_running"] == []
        cleared = await front.http.post("/comfy/queue", json={"clear": True})
        assert cleared.status_code == 200
        assert (await front.http.get("/jobs")).status_code == 401  # the cookie is for nothing else
        assert (await front.http.delete("/comfy-key")).status_code == 204
        assert (await front.http.get("/comfy/queue", headers={"Cookie": "darkroom_interface=x"})).status_code == 401


@pytest.mark.parametrize(("key", "status"), [("wrong", 401), ("guest-secret", 403), ("boss\nsecret", 401)])
async def test_other_keys_open_no_session(tmp_path: Path, key: str, status: int) -> None:
    async with interface(tmp_path, **KEYS) as front:
        reply = await front.http.post("/comfy-key", json={"key": key})
        assert reply.status_code == status and "set-cookie" not in reply.headers


async def test_pages_of_other_sites_use_no_session(tmp_path: Path) -> None:
    async with interface(tmp_path, **KEYS) as front:
        token = await signed_in(front)
        for headers in ({"Origin": "http://127.0.0.1:1"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "null"}):
            assert (await front.http.post("/comfy/queue", json={}, headers=headers)).status_code == 403
        assert (await front.http.get("/comfy/queue", headers={"Sec-Fetch-Site": "cross-site"})).status_code == 403
        url = f"{front.url.replace('http', 'ws')}/comfy/ws?clientId=a"
        headers = {"Cookie": f"{COOKIE}={token}", "Origin": "http://127.0.0.1:1"}
        async with connect(url, additional_headers=headers, proxy=None) as socket:
            with pytest.raises(ConnectionClosed):
                await socket.recv()
        assert socket.close_code == 4403


async def test_messages_of_the_engine_reach_the_browser(tmp_path: Path) -> None:
    async with interface(tmp_path, **KEYS) as front:
        token = await signed_in(front)
        url = f"{front.url.replace('http', 'ws')}/comfy/ws?clientId=browser"
        async with connect(url, additional_headers={"Cookie": f"{COOKIE}={token}"}, proxy=None) as socket:

            async def is_there() -> bool:
                return front.engine.has_client("browser")

            await until(is_there)
            await front.engine.say("status", queue=1)
            async with asyncio.timeout(60):
                assert json.loads(await socket.recv()) == {"type": "status", "data": {"queue": 1}}
        async with connect(url, proxy=None) as socket:
            with pytest.raises(ConnectionClosed):
                await socket.recv()
        assert socket.close_code == 4401


async def test_the_engine_gets_neither_keys_nor_cookies(tmp_path: Path) -> None:
    async with interface(tmp_path, **KEYS) as front:
        await signed_in(front)
        reply = await front.http.post("/comfy/echo%2Fname?a=b%20c", content=b"body", headers=BOSS)
        seen = reply.json()
        assert (seen["path"], seen["body"]) == ("/echo%2Fname?a=b%20c", "body")
        assert not {"cookie", "authorization", "origin"} & {name.lower() for name in seen["headers"]}


async def test_it_is_off_by_default_and_waits_for_the_engine(tmp_path: Path) -> None:
    async with interface(tmp_path, front_end=False) as front:
        assert (await front.http.get("/comfy/queue")).status_code == 404
    async with interface(tmp_path) as front:
        assert (await front.http.get("/comfy/queue")).status_code == 200  # without keys this machine is the operator
        front.engine.is_down = True
        away = await front.http.get("/comfy/queue")
        assert away.status_code == 503 and "retry-after" in away.headers
        front.engine.is_down = False


def test_sessions_end_by_time_and_the_oldest_of_too_many() -> None:
    now = [0.0]
    sessions = BrowserSessions(lambda: now[0])
    first = sessions.open(SecretStr("key"))
    assert (found := sessions.find(first)) is not None and found.get_secret_value() == "key"
    now[0] = LIFETIME_SECONDS
    assert sessions.find(first) is None and sessions.find("\udc80") is None
    tokens = [sessions.open(SecretStr("key")) for _ in range(MAX_SESSIONS + 1)]
    assert sessions.find(tokens[0]) is None and sessions.find(tokens[-1]) is not None
