"""Requests as the server hands them to the application: from this machine, and from a proxy on it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from darkroom.worker.app.application import create_app
from darkroom.worker.app.serve import server_config
from tests.fakes import draw, running_engine
from tests.worker.running_front import running_front, settings_for


@pytest.mark.parametrize("own", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
async def test_behind_a_proxy_of_this_machine_everybody_needs_a_key(tmp_path: Path, own: str) -> None:
    async with (
        running_engine(tmp_path) as engine,
        running_front(tmp_path, engine, api_keys=("ops:key:admin",), trust_loopback=True) as front,
    ):
        services = front.front.services
        settings = settings_for(tmp_path / "state", engine.url)
        config = server_config(settings, create_app(services), services.observation.connections)
        config.load()
        transport = httpx.ASGITransport(app=config.loaded_app, client=(own, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            assert (await http.get("/result/any")).status_code == 404
            assert (await http.get("/webhooks")).status_code == 200
            for claimed in ({"X-Forwarded-For": "203.0.113.7"}, {"X-Forwarded-For": own}, {"X-Real-IP": own}):
                assert (await http.get("/result/any", headers=claimed)).status_code == 401
                assert (await http.get("/webhooks", headers=claimed)).status_code == 401
                with_key = {**claimed, "Authorization": "Bearer key"}
                assert (await http.get("/result/any", headers=with_key)).status_code == 404
            secure = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https", "Authorization": "Bearer key"}
            done = await http.post("/generate/sync", json={"input": {"workflow_json": draw()}}, headers=secure)
            assert done.json()["output"][0]["url"].startswith("https://127.0.0.1/")


async def test_runpods_form_needs_no_trust_in_this_machine(tmp_path: Path) -> None:
    async with (
        running_engine(tmp_path) as engine,
        running_front(tmp_path, engine, api_keys=("key",), trust_loopback=False) as front,
    ):
        body = {"input": {"workflow": draw()}}
        assert (await front.http.post("/runsync", json=body)).status_code == 401
        done = await front.http.post("/runsync", json=body, headers={"Authorization": "Bearer key"})
        assert done.json()["status"] == "COMPLETED"
