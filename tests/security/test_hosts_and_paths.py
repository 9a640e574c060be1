"""The head of a request, the facts of the machine in results, and the number of guesses of a key from one address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeEngine, draw
from tests.security.raw_http import RawClient
from tests.worker.receiver import Receiver
from tests.worker.running_front import running_front, until

CUSTOMER = {"Authorization": "Bearer customers-key"}


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /live HTTP/1.1\r\nHost: a\r\n", 200),
        (b"GET /live HTTP/1.1\r\nhost: 127.0.0.1:80\r\n", 200),
        (b"GET /live HTTP/1.1\r\nHost: [::1]:80\r\n", 200),
        (b"GET /live HTTP/1.0\r\n", 200),
        (b"GET /live HTTP/1.1\r\n", 400),
        (b"GET /live HTTP/1.1\r\nX-Host: a\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost: a\r\nHost: b\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost: a\r\nhOST: a\r\n", 400),
        (b"GET /live HTTP/1.0\r\nHost: a\r\nHost: a\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost: a, b\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost: a/b\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost: a@b\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost: a b\r\n", 400),
        (b"GET http://a/live HTTP/1.1\r\n", 400),
    ],
)
async def test_a_request_has_one_host(tmp_path: Path, engine: FakeEngine, head: bytes, status: int) -> None:
    async with running_front(tmp_path, engine) as front:
        client = await RawClient.connect(front.url)
        await client.send(head + b"\r\n")
        assert await client.status() == status


async def test_results_name_no_folder_of_the_machine_to_customers(
    tmp_path: Path, engine: FakeEngine, receiver: Receiver
) -> None:
    settings: dict[str, Any] = {"api_keys": "customers-key", "allowed_private_hosts": "127.0.0.1"}
    async with running_front(tmp_path, engine, **settings) as front:
        body = {"input": {"workflow_json": draw(), "webhook": {"url": receiver.url}, "output": {"thumbnail_size": 64}}}
        answer = await front.http.post("/generate/sync", json=body, headers=CUSTOMER)
        assert answer.status_code == 200, answer.text
        (output,) = answer.json()["output"]
        assert output["local_path"] and not Path(output["local_path"]).is_absolute()
        again = await front.http.get(f"/result/{answer.json()['id']}", headers=CUSTOMER)

        async def has_come() -> bool:
            return bool(receiver.calls)

        await until(has_come)
        for shown in (answer.content, again.content, receiver.calls[0][1]):
            assert str(tmp_path).encode() not in shown


async def test_results_name_the_file_where_there_are_no_keys(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine) as front:
        (output,) = (await front.sync(draw())).json()["output"]
        assert output["local_path"].startswith(str(tmp_path))


async def test_guesses_of_keys_from_this_machine_are_limited(tmp_path: Path, engine: FakeEngine) -> None:
    limit: dict[str, Any] = {"api_keys": "customers-key", "caller_max_requests_per_second": 0.02}
    async with running_front(tmp_path, engine, **limit) as front:
        guesses = [
            (await front.http.get("/result/x", headers={"Authorization": f"Bearer {number}"})).status_code
            for number in range(4)
        ]
        assert guesses == [401, 429, 429, 429]
        assert (await front.http.get("/result/x", headers=CUSTOMER)).status_code == 404


async def test_a_trusted_machine_has_no_limit(tmp_path: Path, engine: FakeEngine) -> None:
    limit: dict[str, Any] = {
        "api_keys": "customers-key",
        "trust_loopback": True,
        "caller_max_requests_per_second": 0.02,
    }
    async with running_front(tmp_path, engine, **limit) as front:
        for number in range(4):
            headers = {"Authorization": f"Bearer {number}"}
            assert (await front.http.get("/result/x", headers=headers)).status_code == 404
