"""The benchmark's random network leaves the device when all is measured."""

from __future__ import annotations

from pathlib import Path

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.qualification.qualifier import forget_network
from darkroom.worker.qualification.workload import GPU_SCALE, TextToImage
from tests.fakes import FakeEngine

RAN = TextToImage(width_px=512, height_px=512, num_steps=20, checkpoint="random", scale=GPU_SCALE)


class OwnEngine(EngineClient):
    def __init__(self, fault: EngineUnreachable | None = None) -> None:
        super().__init__("http://127.0.0.1:1", has_check=True)
        self.fault = fault
        self.asked: list[str] = []
        self.calls.forget_unused = self.forget_unused  # type: ignore[method-assign]

    async def forget_unused(self) -> None:
        self.asked.append("/free")
        if self.fault is not None:
            raise self.fault


async def test_it_is_taken_out_and_a_checkpoint_stays() -> None:
    engine = OwnEngine()
    assert await forget_network(engine, RAN) and engine.asked == ["/free"]
    assert not await forget_network(engine, RAN.model_copy(update={"scale": None})) and engine.asked == ["/free"]


async def test_an_engine_that_cannot_be_notified_does_not_undo_what_was_measured() -> None:
    engine = OwnEngine(EngineUnreachable("Cannot connect to the engine"))
    assert not await forget_network(engine, RAN) and engine.asked == ["/free"]


async def test_the_empty_answer_of_an_engine_says_that_it_is_done(tmp_path: Path) -> None:
    async with FakeEngine(tmp_path) as engine:
        client = EngineClient(engine.url, has_check=True)
        try:
            assert await forget_network(client, RAN) and engine.frees == [{"free_memory": True}]
        finally:
            await client.close()
