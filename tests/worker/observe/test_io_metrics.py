"""Bytes that came in and went out are in `/metrics`."""

from __future__ import annotations

from pathlib import Path

from darkroom.modifiers.example_image import EXAMPLE_IMAGE
from tests.fakes import FakeEngine, draw, paint
from tests.worker.receiver import Receiver
from tests.worker.running_front import running_front, until


async def test_inputs_and_webhooks_are_counted_by_what_became_of_them(
    tmp_path: Path, engine: FakeEngine, receiver: Receiver
) -> None:
    receiver.statuses = [500, 200, 410]
    hook = {"url": receiver.url}
    async with running_front(tmp_path, engine, allowed_private_hosts=("127.0.0.1",)) as front:

        async def says(line: str) -> bool:
            return line in (await front.http.get("/metrics")).text

        assert (await front.sync(paint(image=EXAMPLE_IMAGE), webhook=hook)).status_code == 200
        await until(lambda: says('darkroom_webhook_tries_total{outcome="delivered"} 1.0'))
        assert (await front.sync(draw(), webhook=hook)).status_code == 200
        await until(lambda: says('darkroom_webhook_tries_total{outcome="dead"} 1.0'))
        assert await says('darkroom_webhook_tries_total{outcome="failed"} 1.0')
        assert (await front.sync(paint(image="http://127.0.0.1:9/a.png"))).status_code == 422
        assert await says('darkroom_inputs_total{outcome="fetched",source="data"} 1.0')
        assert await says('darkroom_inputs_total{outcome="failed",source="url"} 1.0')
        assert await says('darkroom_input_bytes_total{source="data"}')
