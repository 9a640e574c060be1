"""Bodies of every route: none but those declared small refuses what jobs need, and packed ones are unpacked."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request

from darkroom.worker.api.body_sizes import (
    MAX_SMALL_BYTES,
    BodySize,
    UndeclaredBody,
    body_size_of,
    checked_routes,
    takes_jobs,
)
from darkroom.worker.app.application import PARTS
from darkroom.worker.app.integrations import dialect_routers
from darkroom.worker.app.serve_gateway import build_services
from darkroom.worker.gateway.app import create_gateway_app
from darkroom.worker.settings.environment import load_settings
from tests.fakes import FakeEngine, draw
from tests.worker.running_front import RunningFront, running_front

MIB = 1 << 20
SMALL = {
    *("/cancel/{job_id}", "/jobs/{job_id}/deliver", "/benchmark", "/comfy-key"),
    *("/webhooks/test", "/webhooks/redeliver", "/webhooks/{webhook_id}/redeliver"),
    *("/api/jobs/{job_id}/cancel", "/api/v2/jobs/{job_id}/cancel"),
    "/models/fetch",
}
SMALL_OF_GATEWAYS = {
    *(f"/api/v1/worker/{name}" for name in ("connect", "jobs", "progress", "given-back")),
    "/api/v1/worker-tokens",
}
"""The routes whose body is a few fields. Whoever adds one here says that it takes no workflow and no file."""


def bodies_of(num_bytes: int) -> Iterator[tuple[bytes, str]]:
    """A workflow, and an image that is no JSON, each of about so many bytes."""
    title = {"_meta": {"title": "a" * num_bytes}}
    prompt = {node_id: {**node, **title} for node_id, node in draw().items()}
    yield json.dumps({"prompt": prompt, "input": {"workflow_json": prompt}}).encode(), "application/json"
    image = b"\x89PNG\r\n\x1a\n" + b"[" * num_bytes
    part = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    yield part + image + b"\r\n--x--\r\n", "multipart/form-data; boundary=x"
    yield image, "application/octet-stream"


async def routes_of(http: httpx.AsyncClient) -> list[tuple[str, str]]:
    document = (await http.get("/openapi.json")).json()
    found = [(method, path) for path, methods in document["paths"].items() for method in methods]
    return [(method, path) for method, path in found if method in ("post", "put", "patch")]


async def assert_sizes(http: httpx.AsyncClient, small: set[str] = SMALL) -> None:
    routes = await routes_of(http)
    assert ("post", "/generate") in routes
    for method, path in routes:
        url = re.sub(r"\{\w+\}", "any", path)
        for num_bytes in (70_000, MIB):
            for content, kind in bodies_of(num_bytes):
                reply = await http.request(method, url, content=content, headers={"content-type": kind})
                assert (reply.status_code == 413) == (path in small), (path, num_bytes, kind, reply.text[:200])
                assert "nested too deeply" not in reply.text or "json" in kind, (path, reply.text[:200])
        reply = await http.request(method, url, content=b'{"a": "' + b"a" * (MAX_SMALL_BYTES - 100) + b'"}')
        assert reply.status_code != 413, path


async def test_no_route_of_the_worker_but_the_small_ones_refuses_a_large_body(front: RunningFront) -> None:
    await assert_sizes(front.http)


async def test_no_route_of_a_gateway_but_the_small_ones_refuses_a_large_body() -> None:
    settings = load_settings(env_file=None, broker_url="redis://127.0.0.1:1", database_url="postgresql://127.0.0.1:1/a")
    app = create_gateway_app(build_services(settings.settings))  # neither database nor broker: bodies come before them
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        await assert_sizes(http, SMALL | SMALL_OF_GATEWAYS)


def test_every_route_with_a_body_declares_its_size() -> None:
    routers = [*(part.router for part in PARTS), *dialect_routers()]
    routes = checked_routes(route for router in routers for route in router.routes)
    small = {route.path for route in routes if body_size_of(route) is BodySize.SMALL}
    assert small == SMALL


def test_a_route_that_declares_no_size_stops_the_start() -> None:
    router = APIRouter()

    @router.post("/forgotten")
    async def forgotten(request: Request) -> None: ...

    with pytest.raises(UndeclaredBody, match="/forgotten: declares no size"):
        checked_routes(router.routes)


def test_a_large_body_that_fastapi_would_read_without_a_limit_stops_the_start() -> None:
    app = FastAPI()

    @app.post("/read")
    @takes_jobs
    async def read(body: dict[str, str]) -> None: ...

    with pytest.raises(UndeclaredBody, match="FastAPI would read"):
        checked_routes(app.router.routes)


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("X-GZIP", gzip.compress),
        ("gzip", lambda data: gzip.compress(data[:99]) + gzip.compress(data[99:])),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
        ("identity", bytes),
    ],
)
async def test_a_packed_body_is_read(front: RunningFront, encoding: str, pack: type[bytes]) -> None:
    body = json.dumps({"input": {"workflow_json": draw(), "metadata": {"note": "a" * 1000}}}).encode()
    reply = await front.http.post("/generate/sync", content=pack(body), headers={"content-encoding": encoding})
    assert (reply.status_code, reply.json()["status"]) == (200, "completed"), reply.text


async def test_an_unknown_encoding_is_415_on_every_route(front: RunningFront) -> None:
    for method, path in await routes_of(front.http):
        url = re.sub(r"\{\w+\}", "any", path)
        for encoding in ("br", "zstd", "gzip, gzip", "nonsense"):
            reply = await front.http.request(method, url, content=b"{}", headers={"content-encoding": encoding})
            assert (reply.status_code, reply.json()["error"]["code"]) == (415, "encoding_unsupported"), path
            assert reply.headers["accept-encoding"] == "gzip, deflate"
            assert "Content-Encoding" in reply.json()["message"] and "gzip" in reply.json()["message"]


@pytest.mark.parametrize("packed", [b"{}", gzip.compress(b"{}" * 99)[:-9], gzip.compress(b"{}") + b"more"])
async def test_what_does_not_unpack_is_named_on_every_route(front: RunningFront, packed: bytes) -> None:
    for method, path in await routes_of(front.http):
        url = re.sub(r"\{\w+\}", "any", path)
        if (
            path in ("/benchmark", "/v1/images/edits")
            or "cancel" in path
            or "redeliver" in path
            or path.startswith("/api")
        ):
            continue  # each has its own form of refusals; their bodies are read by the same piece
        reply = await front.http.request(method, url, content=packed, headers={"content-encoding": "gzip"})
        assert reply.status_code in (400, 422) and "Content-Encoding" in reply.text, (path, reply.text)


@pytest.mark.parametrize(
    "packed",
    [gzip.compress(b"") * 5000 + gzip.compress(b"{}"), gzip.compress(b" " * 100) * 12_000],
    ids=["of nothing", "of too many members"],
)
async def test_a_body_that_unpacks_to_little_for_its_length_is_refused(front: RunningFront, packed: bytes) -> None:
    reply = await front.http.post("/generate/sync", content=packed, headers={"content-encoding": "gzip"})
    assert reply.status_code == 422 and "Content-Encoding" in reply.text, reply.text


@pytest.fixture
async def small_front(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[RunningFront]:
    async with running_front(tmp_path, engine, max_request_bytes=4 * MIB) as front:
        yield front


async def test_a_bomb_meets_the_limit_of_what_it_unpacks_to(small_front: RunningFront) -> None:
    bomb = gzip.compress(b'{"a": "' + b"a" * 64 * MIB + b'"}')
    assert len(bomb) < MAX_SMALL_BYTES * 2
    for method, path in await routes_of(small_front.http):
        url = re.sub(r"\{\w+\}", "any", path)
        reply = await small_front.http.request(method, url, content=bomb, headers={"content-encoding": "gzip"})
        refused = reply.status_code == 413 and "expected at most" in reply.text
        assert refused or "multipart" in reply.text, (path, reply.text)
