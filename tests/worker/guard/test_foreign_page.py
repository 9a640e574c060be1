"""Requests of pages: which are foreign, and that nothing comes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.worker.guard.foreign_page import is_of_foreign_page
from tests.fakes import FakeEngine, draw
from tests.worker.running_front import running_front


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (None, "127.0.0.1:8000"),
        ("http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("http://LOCALHOST", "localhost"),
        ("https://worker.example", "worker.example:443"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("tauri://localhost", "127.0.0.1:8000"),
        ("file://", "127.0.0.1:8000"),
    ],
)
def test_the_worker_s_own_page_and_programs_are_none(origin: str | None, host: str) -> None:
    assert not is_of_foreign_page({"host": host} | ({"origin": origin} if origin else {}))


@pytest.mark.parametrize(
    "origin", ["https://elsewhere.example", "http://127.0.0.1:3000", "http://localhost:8000", "null", "http://a:b"]
)
def test_a_page_of_another_place_or_of_none_is(origin: str) -> None:
    assert is_of_foreign_page({"origin": origin, "host": "127.0.0.1:8000"})


async def test_a_page_of_another_site_has_nothing_done_on_its_visitors_machine(
    tmp_path: Path, engine: FakeEngine
) -> None:
    async with running_front(tmp_path, engine) as front:
        body = {"input": {"workflow_json": draw()}}
        for route in ("/generate", "/generate/sync", "/run", "/cancel/x", "/benchmark", "/webhooks/redeliver"):
            response = await front.http.post(route, json=body, headers={"Origin": "https://elsewhere.example"})
            assert (response.status_code, response.json()["error"]["code"]) == (403, "forbidden"), route
        assert engine.runs == []
        own = await front.http.post("/generate/sync", json=body, headers={"Origin": front.url})
        behind_a_proxy = {"Origin": "https://app.example", "X-Forwarded-For": "198.51.100.7"}
        proxied = await front.http.post("/generate/sync", json=body, headers=behind_a_proxy)
        assert (own.status_code, proxied.status_code) == (200, 200)
