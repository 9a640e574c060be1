"""The worker's process in an environment as Vast makes it: TLS, the variables, a kill in the middle, a failed start."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.conformance.certificates import Certificates, make_certificates
from tests.conformance.processes import front_process
from tests.fakes import running_engine, wait
from tests.s3_server import free_ports
from tests.worker.integrations.vast.stand_in import StandIn
from tests.worker.running_front import until

TOKEN = "master-token-of-this-test"
API_KEY = "api-key-that-no-log-may-show"


@pytest.fixture
async def autoscaler() -> AsyncIterator[StandIn]:
    async with StandIn() as running:
        yield running


def environment(autoscaler: StandIn, port: int, http_port: int, certificates: Certificates) -> dict[str, str]:
    return {
        "MASTER_TOKEN": TOKEN,
        "CONTAINER_ID": "77",
        "REPORT_ADDR": f"{autoscaler.url}/, http://127.0.0.1:9",
        "PUBLIC_IPADDR": "127.0.0.1",
        f"VAST_TCP_PORT_{port}": str(port),
        "WORKER_HTTP_PORT": str(http_port),
        "USE_SSL": "true",
        "SSL_CERTFILE": str(certificates.certificate),
        "SSL_KEYFILE": str(certificates.key),
    }


async def test_a_request_outlives_its_worker_over_https_and_no_key_is_in_the_log(
    tmp_path: Path, autoscaler: StandIn
) -> None:
    port, http_port = free_ports(2)
    certificates = make_certificates(tmp_path)
    trusts = ssl.create_default_context(cadata=certificates.root_pem.decode())
    url = f"https://127.0.0.1:{port}"
    async with running_engine(tmp_path) as engine, httpx.AsyncClient(verify=trusts, timeout=60) as http:
        settings = environment(autoscaler, port, http_port, certificates) | {"ENGINE_URL": engine.url}
        body = {"auth_data": autoscaler.auth(url, 5), "payload": {"input": {"workflow_json": wait()}}}

        async def ask() -> httpx.Response:
            return await http.post(f"{url}/generate/sync", params={"api_key": API_KEY}, json=body)

        async def has_begun() -> bool:
            return len(engine.runs) == 1

        async with front_process(tmp_path / "a", port, **settings) as front:
            loaded = await autoscaler.until_status(loadtime=lambda seconds: seconds > 0)
            assert (loaded["id"], loaded["url"]) == (77, url) and loaded["max_perf"] > 0
            asked = asyncio.create_task(ask())
            await until(has_begun)
            front.process.send_signal(signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                await asked
            await front.process.wait()
        autoscaler.statuses.clear()
        async with front_process(tmp_path / "a", port, **settings) as front:
            await autoscaler.until_status(loadtime=lambda seconds: seconds > 0)
            engine.release()
            reply = await ask()
            assert (reply.status_code, reply.json()["status"]) == (200, "completed")
            assert (await autoscaler.until_end(5))["status"] == "Success"
            async with httpx.AsyncClient() as plain:
                assert (await plain.post(f"http://127.0.0.1:{http_port}/session/end", content=b"{")).status_code == 422
            await http.aclose()  # over TLS the server would wait for its goodbye
        assert len(engine.runs) == 1
    log = front.log.read_text()
    assert "job ended" in log and "BACKENDS_READY" in log
    assert API_KEY not in log and TOKEN not in log and autoscaler.sign(url) not in log


async def test_a_worker_that_cannot_start_says_so_until_it_is_stopped(tmp_path: Path, autoscaler: StandIn) -> None:
    port, http_port = free_ports(2)
    absent = Certificates(b"", tmp_path / "absent.crt", tmp_path / "absent.key")
    settings = environment(autoscaler, port, http_port, absent) | {"ENGINE_URL": "http://127.0.0.1:9"}
    async with front_process(tmp_path / "a", port, **settings) as front:
        report = await autoscaler.until_status(error_msg=lambda text: "failed to launch" in text)
        assert (report["loadtime"], report["max_perf"]) == (0.0, 0.0)
        code_while_told = front.process.returncode
    assert (code_while_told, front.process.returncode) == (None, 1)
    assert "Application startup failed" in front.log.read_text()
