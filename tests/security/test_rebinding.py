"""DNS rebinding and proxies: which requests over loopback have the trust of the machine itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes import FakeEngine, draw, running_engine
from tests.worker.running_front import RunningFront, running_front

FORWARDED_BY = [
    "Forwarded",
    "Via",
    "X-Forwarded-For",
    "X-Forwarded",
    "X-Forwarded-Proto",
    "X_Forwarded_For",
    "x_real_ip",
    "X-Real-IP",
    "X-Original-Forwarded-For",
    "X-Original-URL",
    "X-Client-IP",
    "Client-IP",
    "True-Client-IP",
    "X-Cluster-Client-IP",
    "Fastly-Client-IP",
    "Fastly-FF",
    "CF-Connecting-IP",
    "CF-Ray",
    "CDN-Loop",
    "X-Envoy-External-Address",
    "X-Azure-ClientIP",
    "X-Amzn-Trace-Id",
    "X-Amz-Cf-Id",
    "CloudFront-Viewer-Address",
    "Fly-Client-IP",
    "X-ProxyUser-Ip",
    "WL-Proxy-Client-IP",
    "Proxy-Client-IP",
    "X-Vercel-Forwarded-For",
    "Akamai-Origin-Hop",
    "X-Akamai-Edgescape",
    "Incap-Client-IP",
    "X-Sucuri-ClientIP",
    "X-AppEngine-User-IP",
    "X-Cloud-Trace-Context",
    "X-Nginx-Proxy",
    "X-NF-Client-Connection-IP",
    "X-ARR-LOG-ID",
    "Tailscale-User-Login",
    "Ali-CDN-Real-IP",
    "X-Varnish",
    "X-Remote-Addr",
    "X-Request-Start",
]

READS = ("/result/secret", "/stream/secret", "/status/secret")
OPERATORS = ("/webhooks",)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    async with running_engine(tmp_path) as engine:
        yield engine


def named(front: RunningFront, host: str) -> dict[str, str]:
    return {"Host": f"{host}:{front.url.rpartition(':')[2]}"}


async def make_job(front: RunningFront, **headers: str) -> None:
    body = {"input": {"workflow_json": draw(), "request_id": "secret"}}
    assert (await front.http.post("/generate/sync", json=body, headers=headers)).status_code == 200


@pytest.mark.parametrize("keys", [(), ("ops:the-key:admin",)])
async def test_a_rebound_page_neither_reads_nor_acts(tmp_path: Path, engine: FakeEngine, keys: tuple[str, ...]) -> None:
    async with running_front(tmp_path, engine, api_keys=keys, trust_loopback=True) as front:
        await make_job(front)
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil", "2130706433"):
            page = named(front, host)
            claims = [{"Origin": f"http://{page['Host']}"}, {"X-Real-IP": "203.0.113.7"}, {"X-Forwarded-For": "::1"}]
            for headers in (page, *({**page, **claim} for claim in claims)):
                for route in (*READS, *OPERATORS):
                    assert (await front.http.get(route, headers=headers)).status_code in (401, 403), (host, route)
                for route in ("/generate", "/generate/sync", "/run", "/cancel/secret", "/benchmark"):
                    sent = await front.http.post(route, json={"input": {"workflow_json": draw()}}, headers=headers)
                    assert sent.status_code in (401, 403), (host, route)
                assert "jobs" not in (await front.http.get("/queue-info", headers=headers)).json()
        assert len(engine.runs) == 1


async def test_names_of_this_machine_and_of_public_url_are_its_own(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, public_url="https://Art.Example/below") as front:
        await make_job(front)
        for host in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]", "192.0.2.7", "art.example"):
            for route in ("/result/secret", "/webhooks"):
                assert (await front.http.get(route, headers=named(front, host))).status_code == 200, host
        assert (await front.http.get("/webhooks", headers={"Host": "localhost"})).status_code == 200


async def test_the_refusal_says_what_to_set(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine) as front:
        refused = await front.http.get("/result/any", headers=named(front, "art.example"))
        assert refused.status_code == 403
        assert "PUBLIC_URL" in refused.json()["message"] and "art.example" in refused.json()["message"]


async def test_a_key_is_worth_the_same_under_any_name(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, api_keys=("ops:the-key:admin",)) as front:
        headers = {**named(front, "art.example"), "Authorization": "Bearer the-key"}
        assert (await front.http.get("/webhooks", headers=headers)).status_code == 200


async def test_what_a_proxy_passed_on_has_no_trust(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, api_keys=("k",), trust_loopback=True, waits_until_ready=False) as front:
        assert (await front.http.get("/webhooks")).status_code == 200
        for header in FORWARDED_BY:
            for route in (*READS, *OPERATORS):
                assert (await front.http.get(route, headers={header: "127.0.0.1"})).status_code == 401, (header, route)


async def test_with_keys_a_plain_proxy_pass_opens_nothing(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, api_keys=("k",), waits_until_ready=False) as front:
        for route in (*READS, *OPERATORS):
            assert (await front.http.get(route)).status_code == 401, route
        body = {"input": {"workflow_json": draw()}}
        assert (await front.http.post("/generate", json=body)).status_code == 401
