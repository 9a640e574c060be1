"""The field `split` of a request, and what its result has of it."""

from __future__ import annotations

from pathlib import Path

from tests.fakes import FakeEngine, draw
from tests.worker.running_front import running_front

ALONE = {"engines": 1, "reason": "no other engine of this worker is idle"}


async def test_a_result_says_why_its_request_ran_whole(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine) as front:
        assert (await front.sync(draw(), request_id="one", split=True)).json()["split"] == ALONE
        assert "split" not in (await front.sync(draw())).json()
        assert (await front.http.get("/result/one")).json()["split"] == ALONE
        refused = await front.sync(draw(), split="perhaps")
        assert refused.status_code == 422 and refused.json()["error"]["problems"][0]["field"] == "input.split"
