"""A job that waits for an engine: its status, its share of the timings, and the counts of waiting jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.worker.storage.job import JobTimes
from tests.fakes import FakeEngine, draw, steps
from tests.worker.running_front import RunningFront, running_front, until


async def start(front: RunningFront, name: str, hold: int = 0) -> None:
    workflow = steps(4, hold) if hold else draw()
    body = {"input": {"request_id": name, "workflow_json": workflow}}
    assert (await front.http.post("/generate", json=body)).status_code == 202


async def test_a_job_behind_another_is_not_called_generating_and_its_wait_is_no_generation(tmp_path: Path) -> None:
    async with FakeEngine(tmp_path) as engine, running_front(tmp_path, engine) as front:
        await start(front, "first", hold=1)
        await front.until("first", "generating")
        await start(front, "second")
        await front.until_message("second", "Preprocessing complete. Queued for generation.")
        waiting = (await front.http.get("/result/second")).json()
        assert waiting["status"] == "processing"
        assert (await front.http.get("/queue-info")).json()["generation_queue_size"] == 2
        shown = (await front.http.get("/metrics")).text
        assert 'darkroom_jobs{state="waiting"} 1.0' in shown and 'darkroom_jobs{state="generating"} 1.0' in shown
        queued_ms = waiting["timings"]["queued_at_ms"]
        engine.go_on.set()
        times = (await front.until("second", "completed"))["timings"]
        began_at_most_ms = times["completed_at_ms"] - queued_ms
        assert times["preprocess_ms"] + times["wait_ms"] + times["generation_ms"] <= began_at_most_ms + 2
        assert times["wait_ms"] > 0

        async def are_both_counted() -> bool:  # after its end is shown
            return 'darkroom_stage_seconds_count{stage="wait"} 2.0' in (await front.http.get("/metrics")).text

        await until(are_both_counted)


async def test_a_start_that_only_the_queue_shows_counts_as_one(tmp_path: Path) -> None:
    async with FakeEngine(tmp_path) as engine, running_front(tmp_path, engine) as front:
        engine.is_silent = True
        await engine.drop_sockets()
        await start(front, "one", hold=1)
        await front.until("one", "generating")
        engine.go_on.set()
        assert (await front.until("one", "completed"))["timings"]["generation_ms"] is not None


@pytest.mark.parametrize("phase", ["preprocess", "wait", "generation", "postprocess"])
def test_the_attempts_of_a_job_add_up(phase: str) -> None:
    times = JobTimes(queued_at_ms=0)
    for _ in range(2):
        times.add(phase, 5)  # type: ignore[arg-type]
    assert times.as_json()[f"{phase}_ms"] == 10
