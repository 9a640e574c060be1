"""No server makes the front decode anything, or read more of an answer than it needs."""

from __future__ import annotations

import ast
import asyncio
import functools
import gzip
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from darkroom.worker.engines.http import EngineHttp
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.guard.plain_responses import plain_client
from darkroom.worker.guard.safe_address import AddressGuard
from darkroom.worker.inputs.refusals import DownloadFailed
from darkroom.worker.integrations.vast.ledger import Ledger
from darkroom.worker.integrations.vast.public_key import PublicKeySource
from darkroom.worker.integrations.vast.reports import Reporter
from darkroom.worker.models.download.open_source import SourceAccess
from darkroom.worker.models.errors import DownloadBroke
from darkroom.worker.outputs.webhook import WebhookSender
from darkroom.worker.settings.environment import HubAccess
from darkroom.worker.settings.platforms import VastConfig, VastTiming
from darkroom.worker.storage.webhook_rows import WebhookRow
from tests.security.lying_server import BUFFERED_BYTES, MIB, LyingServer, answer, endless
from tests.worker.inputs.test_fetch import asking, fetcher, image
from tests.worker.models.downloading import downloader_at, entry_of

ROOT = Path(__file__).parents[2]
IMAGE = image()
EXPANDED_BYTES = 64 * MIB
PEAK_BYTES = 24 * MIB


# 64 MiB of zeros, in Brotli
BROTLI = (
    "cbffff3ff82700e2b14020f7fe8fffff7ff04f00c4611180eefd1fffffffe09f0088c30200ddfb3ffeffffc13f0110870500baf77ffcffff837f02"
    "200e0b0074effff8ffff07ff04401c1600e8defff1ffff0ffe0980382c00d0bdffe3ffff1ffc1300715800a07bff37"
)


@functools.cache
def bomb(encoding: str) -> bytes:
    """64 MiB of zeros in a few kilobytes."""
    match encoding.split(",")[0].strip().lower():
        case "br":
            return bytes.fromhex(BROTLI)
        case "deflate":
            return zlib.compress(bytes(EXPANDED_BYTES), 9)
        case _:
            return gzip.compress(gzip.compress(bytes(EXPANDED_BYTES))) if "," in encoding else gzip.compress(bytes(MIB))


class PeakMemory:
    """Peak memory of the block's own Python objects."""

    def __enter__(self) -> PeakMemory:
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.num_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


@pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "deflate", "GZIP", "identity, gzip", "planned-tomorrow"])
async def test_an_encoded_input_is_refused_before_it_is_read(liar: LyingServer, tmp_path: Path, encoding: str) -> None:
    liar.scripts["GET /bomb"] = answer(200, bomb(encoding), Content_Encoding=encoding)
    source = fetcher(tmp_path, max_bytes=MIB)
    with PeakMemory() as peak, pytest.raises(DownloadFailed, match="Content-Encoding"):
        await source.fetch(asking(f"{liar.url}/bomb"), "job")
    await source.close()
    assert peak.num_bytes < PEAK_BYTES
    assert b"accept-encoding: identity" in liar.heads[0].lower()


@pytest.mark.parametrize("encoding", ["identity", "", "Identity"])
async def test_an_input_that_is_not_encoded_is_taken(liar: LyingServer, tmp_path: Path, encoding: str) -> None:
    liar.scripts["GET /a.png"] = answer(200, IMAGE, Content_Encoding=encoding)
    source = fetcher(tmp_path)
    assert (await source.fetch(asking(f"{liar.url}/a.png"), "job")).path.read_bytes() == IMAGE
    await source.close()


@pytest.mark.parametrize("headers", [{}, {"Content_Encoding": "gzip, gzip"}])
async def test_the_body_of_a_redirect_is_never_read(liar: LyingServer, tmp_path: Path, headers: dict[str, str]) -> None:
    liar.scripts["GET /from"] = endless(302, Location="/to", **headers)
    liar.scripts["GET /to"] = answer(200, IMAGE)
    source = fetcher(tmp_path)
    fetched = await source.fetch(asking(f"{liar.url}/from"), "job")
    await source.close()
    assert fetched.path.read_bytes() == IMAGE and liar.sent_bytes < BUFFERED_BYTES


async def test_an_endless_error_page_is_not_read(liar: LyingServer, tmp_path: Path) -> None:
    liar.scripts["GET /"] = endless(500)
    source = fetcher(tmp_path)
    with pytest.raises(DownloadFailed, match="answered 500"):
        await source.fetch(asking(f"{liar.url}/x"), "job")
    await source.close()
    assert await asyncio.to_thread(liar.wait_until_closed) and liar.sent_bytes < BUFFERED_BYTES


async def test_a_server_sets_no_cookie_for_the_next_job(liar: LyingServer, tmp_path: Path) -> None:
    liar.scripts["GET /"] = answer(200, IMAGE, Set_Cookie="planted=1; Path=/")
    source = fetcher(tmp_path)
    for name in ("a", "b"):
        await source.fetch(asking(f"{liar.url}/{name}"), "job")
    await source.close()
    assert len(liar.heads) == 2 and b"planted" not in liar.heads[1]


@pytest.mark.parametrize("is_trusted", [True, False])
@pytest.mark.parametrize("script", [endless(), answer(200, bomb("br"), Content_Encoding="br")])
async def test_a_webhooks_answer_is_its_status_alone(liar: LyingServer, script: Any, is_trusted: bool) -> None:
    liar.scripts["POST /hook"] = script
    sender = WebhookSender(AddressGuard(["127.0.0.1"]))
    row = WebhookRow("msg_1", "job", f"{liar.url}/hook", b"{}", None, 10.0, is_trusted, "pending", 0, 0, 0)
    with PeakMemory() as peak:
        outcome = await sender.deliver(row)
    await sender.close()
    assert outcome.is_delivered and peak.num_bytes < PEAK_BYTES
    assert await asyncio.to_thread(liar.wait_until_closed) and liar.sent_bytes < BUFFERED_BYTES
    assert b"accept-encoding: identity" in liar.heads[0].lower()


@pytest.mark.parametrize("script", [endless(), answer(200, bomb("br"), Content_Encoding="br")])
async def test_the_platforms_key_is_read_up_to_a_bound(liar: LyingServer, script: Any) -> None:
    liar.scripts["GET /pubkey/"] = script
    async with plain_client() as http:
        with PeakMemory() as peak:
            assert not await PublicKeySource([liar.url], http, VastTiming(key_waits=())).fetch()
    assert peak.num_bytes < PEAK_BYTES
    assert await asyncio.to_thread(liar.wait_until_closed) and liar.sent_bytes < BUFFERED_BYTES


def vast_config(url: str) -> VastConfig:
    return VastConfig(
        container_id=1,
        master_token=SecretStr("token"),
        report_addresses=(url,),
        uses_ssl=False,
        is_unsecured=False,
        host="h",
        worker_port=1,
        worker_http_port=2,
    )


@pytest.mark.parametrize("script", [endless(), answer(200, bomb("br"), Content_Encoding="br")])
async def test_the_answer_to_a_report_is_its_status_alone(liar: LyingServer, script: Any) -> None:
    liar.scripts["POST /worker_status/"] = script
    async with plain_client() as http:
        reporter = Reporter(vast_config(liar.url), Ledger(), http, VastTiming())
        with PeakMemory() as peak:
            assert await reporter._send("worker_status/", {}, [liar.url], 1)
    assert peak.num_bytes < PEAK_BYTES
    assert await asyncio.to_thread(liar.wait_until_closed) and liar.sent_bytes < BUFFERED_BYTES


async def test_an_engine_that_encodes_is_refused(liar: LyingServer) -> None:
    liar.scripts["GET /"] = answer(200, gzip.compress(b"{}"), Content_Encoding="gzip")
    with pytest.raises(EngineUnreachable):
        await EngineHttp(liar.url).request("GET", "/object_info")
    assert b"accept-encoding: identity" in liar.heads[0].lower()


@pytest.mark.parametrize("path", ["/endless", "/one-chunk", "/declared"])
async def test_an_engines_answer_has_a_bound(liar: LyingServer, path: str) -> None:
    def one_chunk(wire: Any) -> None:
        wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n")
        while wire.server.sent_bytes < 4 * BUFFERED_BYTES:
            wire.send(bytes(65536))

    def declared(wire: Any) -> None:
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4294967295\r\n\r\n")
        while wire.server.sent_bytes < 4 * BUFFERED_BYTES:
            wire.send(bytes(65536))

    liar.scripts |= {"GET /endless": endless(), "GET /one-chunk": one_chunk, "GET /declared": declared}
    with pytest.raises(EngineUnreachable, match="answer"):
        await EngineHttp(liar.url, max_answer_bytes=MIB).request("GET", path)
    assert await asyncio.to_thread(liar.wait_until_closed) and liar.sent_bytes < BUFFERED_BYTES


ASKS_THE_FRONT_ITSELF = {
    "worker/integrations/vast/routes.py",
    "worker/integrations/runpod/routes.py",
    "worker/integrations/runpod/loop.py",
}
MAKES_PLAIN_CLIENTS = {"worker/guard/plain_responses.py"}
PASSES_BYTES_ON_AS_THEY_CAME = {"worker/engines/interface.py", "worker/integrations/ray/replica.py"}


def test_every_client_of_the_front_comes_from_one_place() -> None:
    found = set()
    for path in (ROOT / "worker").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("httpx.AsyncClient", "httpx.Client"):
                found.add(str(path.relative_to(ROOT)))
    assert found <= ASKS_THE_FRONT_ITSELF | MAKES_PLAIN_CLIENTS | PASSES_BYTES_ON_AS_THEY_CAME, found


def test_a_compressing_server_is_refused_by_the_command_line(liar: LyingServer) -> None:
    from darkroom.worker.cli.worker_client import worker_client

    liar.scripts["GET /health"] = answer(200, bomb("br"), Content_Encoding="br")
    with PeakMemory() as peak, worker_client() as http, pytest.raises(httpx.TransportError, match="Content-Encoding"):
        http.get(f"{liar.url}/health")
    assert peak.num_bytes < PEAK_BYTES


def test_a_hub_that_compresses_is_refused(liar: LyingServer, tmp_path: Path) -> None:
    told: dict[str, Any] = {"ETag": '"' + "a" * 64 + '"', "X_Repo_Commit": "b" * 40, "X_Linked_Size": str(MIB)}
    liar.scripts |= {"HEAD /": answer(200, **told), "GET /": answer(200, bomb("br"), Content_Encoding="br", **told)}
    entry = entry_of("hf://someone/small/small.safetensors")

    async def fetch() -> None:
        async with downloader_at(tmp_path / "models", SourceAccess(hub=HubAccess(liar.url))) as downloader:
            await downloader.fetch(entry)

    with PeakMemory() as peak, pytest.raises(DownloadBroke, match="Content-Encoding"):
        asyncio.run(fetch())
    assert peak.num_bytes < PEAK_BYTES
    assert all(b"accept-encoding: identity" in head.lower() for head in liar.heads)
