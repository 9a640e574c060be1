"""Under Vast the signature within a body is the key: until it has been checked its sender gets little."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from darkroom.worker.guard.bodies import UNKNOWN_ELEMENTS
from tests.fakes import FakeEngine, draw
from tests.security.raw_http import STRANGER, RawClient
from tests.worker.integrations.vast.stand_in import StandIn
from tests.worker.integrations.vast.test_worker import QUICK, VastFront, vast_settings
from tests.worker.running_front import running_front, until

MIB = 1024 * 1024
BOUNDARY = {"Content-Type": "multipart/form-data; boundary=x"}


@pytest.fixture
async def vast(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[VastFront]:
    async with (
        StandIn() as autoscaler,
        running_front(tmp_path, engine, vast_timing=QUICK, **vast_settings(autoscaler)) as front,
    ):
        await autoscaler.until_status(loadtime=lambda seconds: seconds > 0)
        yield VastFront(front, autoscaler, engine)


async def post(vast: VastFront, route: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await vast.front.http.post(route, content=content, headers=STRANGER)


def large(vast: VastFront, **auth: Any) -> dict[str, Any]:
    envelope = vast.envelope(draw(), **auth)
    envelope["payload"]["input"]["filling"] = "a" * 4 * MIB
    return envelope


async def test_a_large_envelope_is_taken_once_its_signature_has_been_checked(vast: VastFront) -> None:
    assert (await post(vast, "/generate/sync", large(vast))).status_code == 200
    body = vast.envelope(draw("many"))
    body["payload"]["input"]["extra_data"] = {"extra_pnginfo": {"filling": [0] * 2 * UNKNOWN_ELEMENTS}}
    assert (await post(vast, "/generate/sync", body)).status_code == 200


async def test_a_large_envelope_with_a_forged_signature_is_refused_before_its_end(vast: VastFront) -> None:
    for route in ("/generate/sync", "/session/create"):
        client = await RawClient.connect(vast.front.url)
        body = json.dumps(large(vast, signature="AAAA")).encode()[: 2 * MIB]
        await client.ask("POST", route, {**STRANGER, "Content-Length": str(10 * MIB)})
        await client.send(body)
        assert await client.status() == 401, route
        client.close()


async def test_an_envelope_that_does_not_begin_with_its_signature_is_small(vast: VastFront) -> None:
    envelope = large(vast)
    turned = {name: envelope[name] for name in ("payload", "auth_data")}
    refused = await post(vast, "/generate/sync", turned)
    assert (refused.status_code, refused.json()["error"]["limit_bytes"]) == (413, MIB)
    envelope = vast.envelope(draw())
    turned = {name: envelope[name] for name in ("payload", "auth_data")}
    assert (await post(vast, "/generate/sync", turned)).status_code == 200


async def test_strangers_lists_are_counted_before_they_are_parsed(vast: VastFront) -> None:
    lists = b"[" + b"[]," * UNKNOWN_ELEMENTS + b"[]]"
    for route in ("/generate", "/generate/sync", "/generate/stream", "/session/create"):
        reply = await post(vast, route, b'{"input": ' + lists + b"}")
        assert reply.status_code == 422 and str(UNKNOWN_ELEMENTS) in reply.text, route
    for route in ("/session/get", "/session/health", "/session/end"):
        reply = await post(vast, route, b'{"session_id": ' + lists + b"}")
        assert reply.status_code == 422 and str(UNKNOWN_ELEMENTS) in reply.text, route
        reply = await post(vast, route, b'{"session_id": "' + b"a" * 2 * MIB + b'"}')
        assert reply.status_code == 413, route


async def test_no_file_is_written_for_an_envelope_that_nobody_signed(vast: VastFront, tmp_path: Path) -> None:
    async def is_written() -> bool:
        return bool(list((tmp_path / "state").rglob(".partial-*")))

    for signature, written in (("AAAA", False), (None, True)):
        envelope = vast.envelope(draw(), **({} if signature is None else {"signature": signature}))
        part = b'--x\r\nContent-Disposition: form-data; name="input"\r\n\r\n' + json.dumps(envelope).encode()
        file = b'\r\n--x\r\nContent-Disposition: form-data; name="photo"; filename="p.png"\r\n\r\n' + b"a" * 2 * MIB
        client = await RawClient.connect(vast.front.url)
        await client.ask("POST", "/generate/sync", {**STRANGER, **BOUNDARY, "Content-Length": str(10 * MIB)})
        await client.send(part + file)
        if written:
            await until(is_written)
        else:
            assert await client.status() == 401
            assert not list((tmp_path / "state").rglob(".partial-*"))
        client.close()


async def test_the_memory_for_strangers_bodies_keeps_nobody_else_out(vast: VastFront) -> None:
    held = []
    share = vast.front.front.services.requests.bodies.memory.num_unknown_bytes_left
    for _ in range(share // MIB + 8):
        client = await RawClient.connect(vast.front.url)
        await client.ask("POST", "/generate/sync", {**STRANGER, "Content-Length": str(MIB)})
        await client.send(b'{"payload": "' + b"a" * (MIB - 100))
        held.append(client)
    statuses = await asyncio.gather(*(client.status(5) for client in held), return_exceptions=True)
    assert 503 in statuses
    assert (await vast.generate(draw("known"))).status_code == 200
    for client in held:
        client.close()
