"""Bodies of strangers are not read before they are identified, and no body's JSON is parsed without bounds."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes import FakeEngine, draw
from tests.security.raw_http import STRANGER, RawClient
from tests.worker.running_front import RunningFront, running_front, until

MIB = 1024 * 1024
GENERATE_ROUTES = ("/generate", "/generate/sync", "/generate/stream")
ROUTES = (*GENERATE_ROUTES, "/run", "/runsync")
LISTS = b"[" + b"[]," * 9_300_000 + b"[]]"  # 28 MiB


@pytest.fixture
async def closed(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[RunningFront]:
    """A front that asks for keys."""
    async with running_front(tmp_path, engine, api_keys="hush") as front:
        yield front


def filled(filling: str) -> bytes:
    """Return a request that is in order but for what else stands in it."""
    return f'{{"input": {{"workflow_json": {json.dumps(draw())}, "filling": {filling}}}}}'.encode()


@pytest.mark.parametrize("route", ROUTES)
async def test_a_stranger_is_refused_before_a_byte_of_his_body(closed: RunningFront, route: str) -> None:
    client = await RawClient.connect(closed.url)
    await client.ask("POST", route, {**STRANGER, "Content-Length": str(28 * MIB)})
    assert await client.status() == 401
    client.close()


async def test_a_stranger_who_sends_first_and_reads_then_gets_his_answer(closed: RunningFront) -> None:
    reply = await closed.http.post("/generate/sync", content=b'{"input": "' + b"a" * 8 * MIB, headers=STRANGER)
    assert reply.status_code == 401


async def test_the_loop_is_not_silent_for_28_mib_of_lists(closed: RunningFront) -> None:
    longest = 0.0

    async def look() -> None:
        nonlocal longest
        while True:
            began = time.process_time()  # not the clock, which goes on while other programs have the processor
            await asyncio.sleep(0.01)
            longest = max(longest, time.process_time() - began)

    looking = asyncio.create_task(look())
    for headers, status in ((STRANGER, 401), ({"Authorization": "Bearer hush"}, 422)):
        reply = await closed.http.post("/generate/sync", content=LISTS, headers=headers, timeout=100)
        assert reply.status_code == status
    looking.cancel()
    assert longest < 2


@pytest.mark.parametrize(
    ("filling", "kind", "most"),
    [
        ("[" * 150 + "]" * 150, "json_too_deep", 100),
        ('{"a":' * 150 + "1" + "}" * 150, "json_too_deep", 100),
        ("[" + "1," * 300_000 + "1]", "json_too_large", 250_000),
        ("[" + "[]," * 300_000 + "[]]", "json_too_large", 250_000),
    ],
)
async def test_structure_is_bounded_on_every_route(front: RunningFront, filling: str, kind: str, most: int) -> None:
    body = filled(filling)
    for route in ROUTES:
        reply = await front.http.post(route, content=body)
        assert reply.status_code == 422, (route, reply.text[:300])
        text = json.dumps(reply.json())
        assert str(most) in text, (route, text)
        if route in GENERATE_ROUTES:
            (problem,) = reply.json()["error"]["problems"]
            assert (problem["type"], problem["allowed"]) == (kind, {"maximum": most})
            assert problem["extra"]["received"] > most
    assert front.engine.runs == []


async def test_structure_is_bounded_in_the_json_of_a_multipart_body(front: RunningFront) -> None:
    files = [("input", ("body.json", filled("[" + "[]," * 300_000 + "[]]")))]
    reply = await front.http.post("/generate/sync", files=files)
    assert reply.status_code == 422 and reply.json()["error"]["problems"][0]["type"] == "json_too_large"


async def test_the_headers_of_a_part_are_bounded(front: RunningFront) -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="input"\r\nX-Long: ' + b"a" * MIB + b"\r\n\r\n{}\r\n--x--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    reply = await front.http.post("/generate/sync", content=body, headers=headers)
    assert reply.status_code == 422 and "header" in reply.json()["message"]


async def test_length_of_strings_is_bounded(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine) as front:
        bodies = front.front.services.requests.bodies
        bodies.structure = bodies.structure.model_copy(update={"max_string_bytes": 1000})
        for filling in ('"' + "a" * 2000 + '"', '"' + "a" * 500_000 + '"', '{"' + "k" * 2000 + '": 1}'):
            reply = await front.http.post("/generate/sync", content=filled(filling))
            assert reply.status_code == 422
            assert reply.json()["error"]["problems"][0]["type"] == "json_string_too_long"
        assert (await front.http.post("/generate/sync", content=filled('"' + "a" * 900 + '"'))).status_code == 200


async def test_a_large_image_in_a_body_is_no_structure(front: RunningFront) -> None:
    reply = await front.http.post("/generate/sync", content=filled('"' + "A" * 20 * MIB + '"'))
    assert reply.status_code == 200


@pytest.mark.parametrize("number", ["1e400", "-1e400", "Infinity", "-Infinity", "NaN", "1" * 400 + ".0"])
async def test_a_number_that_is_not_finite_is_422_wherever_it_stands(front: RunningFront, number: str) -> None:
    webhook = f'{{"url": "https://example.com", "extra_params": {{"a": {number}}}}}'
    bodies = (
        f'{{"input": {{"workflow_json": {json.dumps(draw())}, "webhook": {webhook}}}}}',
        f'{{"input": {{"workflow_json": {{"1": {{"class_type": "Wait", "inputs": {{"seconds": {number}}}}}}}}}}}',
        f'{{"input": {{"workflow": {json.dumps(draw())}, "webhook": {webhook}}}}}',
    )
    for body in bodies:
        for route in ROUTES:
            reply = await front.http.post(route, content=body)
            assert reply.status_code == 422, (route, body, reply.text)
    assert front.engine.runs == []


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1" * 5000])
async def test_a_whole_number_of_any_length_is_no_fault_of_ours(front: RunningFront, number: str) -> None:
    for name, node in (("seconds", "Wait"), ("size", "Draw")):
        workflow = f'{{"1": {{"class_type": "{node}", "inputs": {{"text": "a", "{name}": {number}}}}}}}'
        reply = await front.http.post("/generate", content=f'{{"input": {{"workflow_json": {workflow}}}}}')
        assert reply.status_code == 422, reply.text[:300]
    priority = f'{{"input": {{"workflow_json": {json.dumps(draw())}, "priority": {number}}}}}'
    assert (await front.http.post("/generate", content=priority)).status_code == 422


async def test_routes_with_small_bodies_refuse_large_ones(front: RunningFront) -> None:
    large = b'{"url": "' + b"a" * 100_000 + b'"}'
    headers = {"Content-Type": "application/json"}
    for path in ("/webhooks/test", "/webhooks/redeliver", "/webhooks/any/redeliver", "/cancel/any", "/nothing"):
        reply = await front.http.post(path, content=large, headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large"), path
    deep = b'{"url": ' + b"[" * 5000 + b"]" * 5000 + b"}"
    assert (await front.http.post("/webhooks/test", content=deep, headers=headers)).status_code == 422
    assert (await front.http.post("/webhooks/test", json={"timeout": 2})).status_code == 422


async def test_bodies_together_are_bounded(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, constants={"bodies": {"max_pending_bytes": 3 * MIB}}) as front:

        async def hold() -> RawClient:
            """Send half of a body. It is refused itself where it comes while another one is read."""
            half = await RawClient.connect(front.url)
            await half.ask("POST", "/generate/sync", {"Content-Length": str(4 * MIB)})
            await half.send(b'{"input": "' + b"a" * 2 * MIB)
            return half

        body = filled('"' + "a" * 2 * MIB + '"')

        async def is_refused() -> bool:
            return (await front.http.post("/generate/sync", content=body)).status_code == 503

        async def is_taken() -> bool:
            return not await is_refused()

        half = await hold()
        async with asyncio.timeout(60):
            while not await is_refused():
                half.close()
                half = await hold()
        half.close()
        await until(is_taken)
