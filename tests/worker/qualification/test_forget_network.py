"""The benchmark's random network leaves the device when all is measured."""

from __future__ import annotations

from typing import Any

from benchmark.qualify.workload import GPU_SCALE, TextToImage
from worker.engines.client import EngineClient
from worker.errors import EngineUnreachable
from worker.qualification.qualifier import forget_network

RAN = TextToImage(width_px=512, height_px=512, num_steps=20, checkpoint="random", scale=GPU_SCALE)


class OwnEngine(EngineClient):
    def __init__(self, fault: EngineUnreachable | None = None) -> None:
        super().__init__("http://127.0.0.1:1", has_check=True)
        self.fault = fault
        self.asked: list[str] = []

    async def ask(
        self, method: str, path: str, body: Any = None, *, timeout_seconds: float = 1
    ) -> tuple[int, dict[str, Any]]:
        self.asked.append(path)
        if self.fault is not None:
            raise self.fault
        return 200, {}


async def test_it_is_taken_out_and_a_checkpoint_stays() -> None:
    engine = OwnEngine()
    assert await forget_network(engine, RAN) and engine.asked == ["/free"]
    assert not await forget_network(engine, RAN.model_copy(update={"scale": None})) and engine.asked == ["/free"]


async def test_an_engine_that_cannot_be_notified_does_not_undo_what_was_measured() -> None:
    engine = OwnEngine(EngineUnreachable("Cannot connect to the engine"))
    assert not await forget_network(engine, RAN) and engine.asked == ["/free"]
