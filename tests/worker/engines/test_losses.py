"""Jobs whose engine is lost, whose memory is short, or whose socket is cut; several engines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.fakes import FakeEngine, draw, fail, wait
from tests.worker.running_front import running_front, until

NUM_CUTS = 12  # as many as fall into four runs of 0.3 s; not for ever, or a busy machine would never get an answer


@asynccontextmanager
async def engine_in(folder: Path) -> AsyncIterator[FakeEngine]:
    await asyncio.to_thread(folder.mkdir)
    async with FakeEngine(folder) as engine:
        yield engine


class CuttingProxy:
    """A TCP relay before an engine. `cut()` breaks every connection; `is_deaf` swallows what the engine says."""

    def __init__(self, target_url: str) -> None:
        self._target = target_url.rpartition(":")[2]
        self._writers: set[asyncio.StreamWriter] = set()
        self.is_deaf = False

    async def __aenter__(self) -> CuttingProxy:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", int(self._target))
        self._writers |= {writer, back}
        head = await reader.readuntil(b"\r\n\r\n")
        back.write(head)
        is_socket = b"upgrade: websocket" in head.lower()
        await asyncio.gather(self._pass(reader, back), self._pass(there, writer, may_be_lost=is_socket))

    async def _pass(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, may_be_lost: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(65536):
                if not (may_be_lost and self.is_deaf):
                    target.write(piece)
                    await target.drain()
        target.close()


async def test_a_socket_that_is_cut_again_and_again_loses_nothing(tmp_path: Path) -> None:
    async with (
        engine_in(tmp_path / "engine") as engine,
        CuttingProxy(engine.url) as proxy,
        running_front(tmp_path, engine, ENGINE_URL=proxy.url) as front,
    ):
        names = [f"job-{number}" for number in range(4)]
        for name in names:
            body = {"input": {"workflow_json": wait(0.3), "request_id": name}}
            assert (await front.http.post("/generate", json=body)).status_code == 202
        ends = [asyncio.create_task(front.until(name, "completed", "failed")) for name in names]
        for _ in range(NUM_CUTS):
            await asyncio.sleep(0.15)
            proxy.cut()
        await asyncio.wait(ends)
        assert [end.result()["message"] for end in ends] == ["Processing complete."] * 4
        assert sorted(set(engine.runs)) == [f"{name}-1" for name in names]


async def test_a_socket_on_which_nothing_comes_any_more_delays_a_job_and_does_not_lose_it(tmp_path: Path) -> None:
    async with (
        engine_in(tmp_path / "engine") as engine,
        CuttingProxy(engine.url) as proxy,
        running_front(tmp_path, engine, ENGINE_URL=proxy.url) as front,
    ):
        proxy.is_deaf = True
        assert (await front.sync(draw())).status_code == 200


async def test_short_memory_is_met_once_with_caches_freed_and_tiles(tmp_path: Path) -> None:
    workflow = {"1": {"class_type": "VAEDecode", "inputs": {"text": "a"}}}
    async with engine_in(tmp_path / "engine") as engine, running_front(tmp_path, engine) as front:
        reply = await front.sync(workflow, request_id="large")
        assert reply.status_code == 200, reply.text
        assert engine.runs == ["large-1", "large-2"]
        assert engine.frees == [{"unload_models": True, "free_memory": True}]


async def test_memory_that_is_short_twice_fails_the_job_with_the_node(tmp_path: Path) -> None:
    workflow = {"9": {"class_type": "OutOfMemory", "inputs": {}}}
    async with engine_in(tmp_path / "engine") as engine, running_front(tmp_path, engine) as front:
        reply = await front.sync(workflow, request_id="huge")
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["node_id"], error["attempts"]) == (500, "out_of_memory", "9", 2)
        assert engine.runs == ["huge-1", "huge-2"]


async def test_a_device_that_fails_twice_fails_the_job_with_that_reason(tmp_path: Path) -> None:
    async with engine_in(tmp_path / "engine") as engine, running_front(tmp_path, engine) as front:
        reply = await front.sync(fail("DeviceLost"), request_id="bad")
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["reason"]) == (502, "device_lost", "device_lost")
        assert (error["node_id"], error["class_type"], error["attempts"]) == ("1", "Fail", 2)
        assert engine.runs == ["bad-1", "bad-2"]


async def test_two_engines_share_the_queue_and_the_loss_of_one_loses_nothing(tmp_path: Path) -> None:
    async with (
        engine_in(tmp_path / "a") as first,
        engine_in(tmp_path / "b") as second,
        running_front(tmp_path, first, ENGINE_URL=f"{first.url},{second.url}") as front,
    ):

        async def both_work() -> bool:
            return bool(first.runs and second.runs)

        async def both_are_up() -> bool:
            healthy: str = (await front.http.get("/health")).json()["backends_healthy"]
            return healthy == "2/2"

        await until(both_are_up)
        jobs = [asyncio.create_task(front.sync(wait(), request_id=f"job-{number}")) for number in range(6)]
        await until(both_work)
        first.forget_everything()

        async def second_has_taken_its_share() -> bool:
            second.release()
            return len(second.runs) >= 3

        await until(second_has_taken_its_share)
        for engine in (first, second):
            engine.release_all()
        assert [(await job).status_code for job in jobs] == [200] * 6


async def test_an_engine_whose_queue_is_paused_by_its_end_is_no_reason_to_refuse(tmp_path: Path) -> None:
    """A request that comes while the only engine is away waits for it a while, instead of a 502."""
    async with engine_in(tmp_path / "engine") as engine, running_front(tmp_path, engine) as front:
        engine.is_down = True

        async def is_noticed() -> bool:
            return (await front.http.get("/ready")).status_code == 503

        await until(is_noticed)
        asked = asyncio.create_task(front.sync(draw()))
        await asyncio.sleep(0.1)
        engine.is_down = False
        assert (await asked).status_code == 200
