"""A whole front with a fake engine: from closed to ready and back, by the benchmark's verdict."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.supervisor import free_port
from darkroom.worker.qualification import readiness
from darkroom.worker.qualification.readiness import EXIT_UNQUALIFIED, Action, action_for, pause_after
from darkroom.worker.qualification.verdict import Verdict
from darkroom.worker.qualification.warm_up import WarmUp
from tests.fakes import FakeEngine, draw, wait
from tests.worker.running_front import RunningFront, running_front, until

GOOD = draw("image __RANDOM_INT__")
BROKEN = {"1": {"class_type": "Fail", "inputs": {"kind": "ValueError"}}}


RAISING_MODIFIER = """
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from darkroom.modifiers.modifier import Into, Modifier


class Mine(Modifier):
    workflow_file: ClassVar[str] = "mine_workflow.json"
    example: ClassVar[Mapping[str, Any]] = {"text": "first"}

    text: Annotated[str, Into("1", "text")] = "first"

    def fill(self, workflow: Mapping[str, Any]) -> dict[str, Any]:
        if self.text == "second":
            1 / 0
        return super().fill(workflow)
"""


def workflow(tmp_path: Path, body: Any = GOOD, name: str = "mine.json") -> str:
    (tmp_path / name).write_text(json.dumps(body))
    return str(tmp_path / name)


def measuring(tmp_path: Path, body: Any = GOOD, **changes: Any) -> dict[str, Any]:
    return {"benchmark": "auto", "BENCHMARK_WORKFLOW": workflow(tmp_path, body), **changes}


async def told(front: RunningFront) -> dict[str, Any]:
    report: dict[str, Any] = (await front.http.get("/benchmark")).json()
    return report


async def until_verdict(front: RunningFront, verdict: str) -> dict[str, Any]:
    async def is_there() -> bool:
        report = await told(front)
        return report["verdict"] == verdict and not report["is_running"]

    await until(is_there)
    return await told(front)


async def status_of(front: RunningFront) -> int:
    return (await front.http.get("/ready")).status_code


def test_what_each_verdict_leads_to() -> None:
    bad = [verdict for verdict in Verdict if not verdict.is_good and verdict is not Verdict.PENDING]
    for good in (Verdict.PASS, Verdict.SKIPPED):
        assert {action_for(good, on_fail, 0) for on_fail in ("error", "serve", "exit")} == {Action.OPEN}
    assert {action_for(verdict, "error", 9) for verdict in bad} == {Action.STAY_CLOSED}
    assert {verdict for verdict in bad if action_for(verdict, "serve", 1) is Action.OPEN} == {*bad} - {Verdict.FAILED}
    at_once = {verdict for verdict in bad if action_for(verdict, "exit", 1) is Action.EXIT}
    assert at_once == {Verdict.SLOW, Verdict.FAULTY}
    assert {action_for(verdict, "exit", 3) for verdict in bad} == {Action.EXIT}


def test_pauses_grow_to_a_bound() -> None:
    assert [pause_after(number) for number in (1, 2, 3, 6, 7, 1000)] == [1, 3, 9, 243, 300, 300]


async def test_a_good_machine_is_ready_with_a_report(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **measuring(tmp_path)) as front:
        report = await told(front)
        metrics = (await front.http.get("/metrics")).text
    assert report["verdict"] == "pass" and report["error"] is None and report["num_runs"] >= 3
    assert report["workload_per_second"] > 0 and report["its_per_second"] is None
    texts = [path.read_text() for path in (tmp_path / "engine").iterdir()]
    assert len(set(texts)) == len(texts) > 3  # every run had a text of its own
    assert report["missing"]["probe"] == "A foreign engine has no probe"
    assert list(report["phases"]) == ["import", "front", "engine", "models", "benchmark", "warm_up", "ready"]
    assert 'darkroom_startup_seconds{phase="ready"}' in metrics
    assert 'darkroom_benchmark_verdict{verdict="pass"} 1.0' in metrics


async def test_a_slow_machine_stays_closed_and_says_why(tmp_path: Path, engine: FakeEngine) -> None:
    changes = measuring(tmp_path, benchmark_max_seconds=0.00001)
    async with running_front(tmp_path, engine, waits_until_ready=False, **changes) as front:
        report = await until_verdict(front, "slow")
        reply = await front.sync(draw())
        assert await status_of(front) == 503
    assert "BENCHMARK_MAX_SECONDS" in report["error"] and report["next_try_in_seconds"] == 1.0
    assert reply.status_code == 503 and "BENCHMARK_MAX_SECONDS" in reply.json()["message"]


async def test_a_slow_machine_may_serve_all_the_same(tmp_path: Path, engine: FakeEngine) -> None:
    changes = measuring(tmp_path, benchmark_max_seconds=0.00001, benchmark_on_fail="serve")
    async with running_front(tmp_path, engine, **changes) as front:
        report = await told(front)
        assert (await front.sync(draw())).status_code == 200
    assert report["verdict"] == "slow" and report["error"] is None


@pytest.mark.parametrize("on_fail", ["error", "serve"])
async def test_a_failed_benchmark_is_tried_again_until_it_succeeds_which_clears_the_error(
    tmp_path: Path, engine: FakeEngine, on_fail: str
) -> None:
    changes = measuring(tmp_path, BROKEN, benchmark_on_fail=on_fail)
    async with running_front(tmp_path, engine, waits_until_ready=False, **changes) as front:
        report = await until_verdict(front, "failed")
        assert await status_of(front) == 503 and front.front.services.engines.qualification.workload_per_second is None
        workflow(tmp_path, GOOD)
        await until_verdict(front, "pass")
        assert await status_of(front) == 200
        cleared = await told(front)
    assert "it broke" in report["error"]
    assert cleared["error"] is None and cleared["num_tries"] >= 2


async def test_a_good_result_stands_for_the_next_start(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **measuring(tmp_path)) as front:
        first = await told(front)
    num_runs = len(engine.runs)
    async with running_front(tmp_path, engine, **measuring(tmp_path)) as front:
        second = await told(front)
    assert (first["is_reused"], second["is_reused"], len(engine.runs)) == (False, True, num_runs)
    assert second["measured_at"] == first["measured_at"]
    async with running_front(tmp_path, engine, **measuring(tmp_path, benchmark_ttl=0)) as front:
        assert not (await told(front))["is_reused"]
    changes = measuring(tmp_path, benchmark_max_seconds=0.00001)
    async with running_front(tmp_path, engine, waits_until_ready=False, **changes) as front:
        assert not (await until_verdict(front, "slow"))["is_reused"]


async def test_on_demand_it_really_runs_and_two_who_ask_share_it(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **measuring(tmp_path)) as front:
        first, num_runs = await told(front), len(engine.runs)
        replies = await asyncio.gather(*(front.http.post("/benchmark") for _ in range(2)))
        assert [reply.status_code for reply in replies] == [200, 200]
        assert replies[0].json()["measured_at"] == replies[1].json()["measured_at"] > first["measured_at"]
        assert len(engine.runs) > num_runs and await status_of(front) == 200


async def test_switched_off_it_runs_on_demand(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **measuring(tmp_path, benchmark="off")) as front:
        assert (await told(front))["verdict"] == "skipped" and engine.runs == []
        assert (await front.http.post("/benchmark")).json()["verdict"] == "pass"


async def test_jobs_wait_for_a_benchmark_on_demand_and_none_is_refused(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **measuring(tmp_path, wait(0.1))) as front:
        before = len(engine.runs)
        asked = asyncio.create_task(front.http.post("/benchmark"))

        async def has_begun() -> bool:
            return len(engine.runs) > before

        await until(has_begun)
        reply = await front.sync(draw(), request_id="job")
        assert reply.status_code == 200 and (await asked).status_code == 200
    assert engine.runs.index("job-1") == len(engine.runs) - 1


async def test_a_running_job_ends_before_a_benchmark_on_demand_begins(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **measuring(tmp_path)) as front:
        job = asyncio.create_task(front.sync(wait(), request_id="job"))
        await front.until("job", "generating")
        asked = asyncio.create_task(front.http.post("/benchmark"))
        await asyncio.sleep(0.1)
        assert engine.runs[-1] == "job-1" and not asked.done()
        engine.release()
        assert (await asked).json()["verdict"] == "pass"
        assert (await job).status_code == 200
    assert len(engine.runs) - 1 - engine.runs.index("job-1") > 3


async def test_after_a_lost_device_the_worker_proves_itself_again(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, **measuring(tmp_path)) as front:
        first = await told(front)
        engine.is_down = True

        async def is_seen() -> bool:
            return not front.front.services.engines.pool.clients_up

        await until(is_seen)
        kept = tmp_path / "state" / "benchmark.json"
        assert json.loads(kept.read_text())["results"]
        front.front.device_was_lost(front.front.services.engines.pool.clients[0])
        assert json.loads(kept.read_text())["results"] == {}  # this front may end before it has measured anew
        assert await status_of(front) == 503
        await asyncio.sleep(0.5)  # longer than a look at it: no try counts before the engine is there
        engine.is_down = False

        async def is_ready() -> bool:
            return await status_of(front) == 200

        await until(is_ready)
        assert (await told(front))["measured_at"] > first["measured_at"]


async def test_of_several_engines_the_one_whose_device_was_lost_is_measured_anew(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    async with FakeEngine(folders[0]) as one, FakeEngine(folders[1]) as two:
        changes = measuring(tmp_path, ENGINE_URL=f"{one.url},{two.url}")
        async with running_front(tmp_path, one, **changes) as front:
            pool, two.is_down = front.front.services.engines.pool, True

            async def is_down() -> bool:
                return len(pool.clients_up) == 1

            await until(is_down)
            num_runs, before = len(one.runs), len(two.runs)
            front.front.device_was_lost(pool.clients[1])
            assert await status_of(front) == 200  # the other goes on
            two.is_down = False

            async def serves_again() -> bool:
                return len(pool.clients_serving) == 2

            while not await serves_again():
                assert (await front.sync(draw())).status_code == 200
            assert len(two.runs) > before + 3
            assert all(run.startswith("benchmark") for run in two.runs[before : before + 4])
            assert len(one.runs) > num_runs and not [r for r in one.runs[num_runs:] if r.startswith("benchmark")]


class BrokenEngine(FakeEngine):
    """Answers everything, and no prompt succeeds until it is mended."""

    is_mended = False

    async def _run(self, prompt_id: str, prompt: dict[str, Any], client_id: str) -> dict[str, Any]:
        return await super()._run(prompt_id, prompt if self.is_mended else BROKEN, client_id)


async def test_of_several_engines_a_bad_one_is_left_out_until_it_is_good(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    async with FakeEngine(folders[0]) as one, BrokenEngine(folders[1]) as two:
        changes = measuring(tmp_path, ENGINE_URL=f"{one.url},{two.url}")
        async with running_front(tmp_path, one, **changes) as front:
            report, health = await told(front), (await front.http.get("/health")).json()
            assert report["verdict"] == "pass" and report["error"] is None
            assert [(e["url"], e["serves"], e["verdict"]) for e in report["engines"]] == [
                (one.url, True, "pass"),
                (two.url, False, "failed"),
            ]
            assert report["workload_per_second"] == report["engines"][0]["workload_per_second"]
            assert (health["status"], health["backends"][1]["state"]) == ("degraded", "unfit")
            for _ in range(4):
                assert (await front.sync(draw())).status_code == 200
            assert all(run.startswith("benchmark") for run in two.runs)
            two.is_mended = True

            async def serves_too() -> bool:
                return len(front.front.services.engines.pool.clients_serving) == 2

            await until(serves_too)
            report = await told(front)
            assert [engine["serves"] for engine in report["engines"]] == [True, True]
            assert report["workload_per_second"] > report["engines"][0]["workload_per_second"]
            front.front.services.engines.pool.set_up(front.front.services.engines.pool.clients[1], False)
            front.front._engine_failed(front.front.services.engines.pool.clients[1])
            assert await status_of(front) == 200
            front.front._engine_failed(front.front.services.engines.pool.clients[0])
            assert await status_of(front) == 503 and "do not come back" in (await told(front))["error"]


async def test_a_bad_engine_that_is_gone_keeps_neither_the_others_closed_nor_who_asks_waiting(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    async with FakeEngine(folders[0]) as one, BrokenEngine(folders[1]) as two:
        changes = measuring(tmp_path, ENGINE_URL=f"{one.url},{two.url}")
        async with running_front(tmp_path, one, **changes) as front:
            two.is_down = True

            async def is_gone() -> bool:
                return len(front.front.services.engines.pool.clients_up) == 1

            await until(is_gone)
            reply = await front.http.post("/benchmark")
            assert reply.status_code == 200 and reply.json()["verdict"] == "pass"
            assert await status_of(front) == 200


async def test_a_caller_learns_when_no_engine_comes_back(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "AWAY_SECONDS", 0.5)
    async with running_front(tmp_path, engine, **measuring(tmp_path, wait(0.2))) as front:
        job = asyncio.create_task(front.sync(wait(), request_id="job"))
        await front.until("job", "generating")
        asked = asyncio.create_task(front.http.post("/benchmark"))
        await asyncio.sleep(0.2)
        front.front.services.engines.pool.set_up(front.front.services.engines.pool.clients[0], False)
        engine.is_down = True
        await front.http.post("/cancel/job")
        assert (await asked).status_code == 503 and "No engine has come up" in (await asked).text
        engine.is_down = False
        await job


async def test_several_engines_are_measured_together_and_a_late_one_when_it_comes(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        folder.mkdir()
    async with FakeEngine(folders[0]) as one, FakeEngine(folders[1]) as two, FakeEngine(folders[2]) as late:
        late.is_down = True
        changes = measuring(tmp_path, ENGINE_URL=f"{one.url},{two.url},{late.url}")
        async with running_front(tmp_path, one, **changes) as front:
            first = await told(front)
            num_runs = len(one.runs)
            late.is_down = False

            async def are_three() -> bool:
                return len((await told(front)).get("engines", ())) == 3

            await until(are_three)
            second = await told(front)
        assert len(one.runs) == num_runs and len(late.runs) > 3
    speeds = [engine["workload_per_second"] for engine in second["engines"]]
    assert len(first["engines"]) == 2 and second["workload_per_second"] == pytest.approx(sum(speeds))
    assert second["verdict"] == "pass"


async def test_a_foreign_engine_with_nothing_to_run_is_skipped_and_serves(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, benchmark="auto") as front:
        report = await told(front)
    assert report["verdict"] == "skipped" and "DarkroomRandomCheckpoint" in report["reason"]


async def test_a_workflow_in_which_nothing_varies_is_named(tmp_path: Path, engine: FakeEngine) -> None:
    changes = measuring(tmp_path, {"1": {"class_type": "Nothing", "inputs": {}}})
    async with running_front(tmp_path, engine, waits_until_ready=False, **changes) as front:
        assert "Nothing" in (await until_verdict(front, "failed"))["reason"]


async def test_the_fleets_history_is_written(tmp_path: Path, engine: FakeEngine) -> None:
    history = tmp_path / "history.jsonl"
    async with running_front(tmp_path, engine, **measuring(tmp_path, benchmark_history=str(history))) as front:
        await front.http.post("/benchmark")
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert [line["verdict"] for line in lines] == ["pass", "pass"]


async def test_workflows_are_run_once_before_ready(tmp_path: Path, engine: FakeEngine) -> None:
    files = ",".join((workflow(tmp_path, draw("warm"), "warm.json"), str(tmp_path / "missing.json")))
    async with running_front(tmp_path, engine, warmup_workflows=files) as front:
        ran = (await told(front))["warm_up"]
        assert len(engine.runs) == 1
        await front.http.post("/benchmark")
        assert len(engine.runs) == 1
    assert "error" not in ran[0] and ran[0]["seconds"] >= 0
    assert "missing.json" in ran[1]["error"]


async def test_a_warm_up_that_fails_may_keep_the_worker_closed(tmp_path: Path, engine: FakeEngine) -> None:
    file = workflow(tmp_path, BROKEN, "warm.json")
    changes: dict[str, Any] = {"warmup_workflows": file, "warmup_on_fail": "error"}
    async with running_front(tmp_path, engine, waits_until_ready=False, **changes) as front:

        async def is_told() -> bool:
            return bool((await told(front))["error"])

        await until(is_told)
        assert "it broke" in (await told(front))["error"] and await status_of(front) == 503
        workflow(tmp_path, draw(), "warm.json")

        async def is_ready() -> bool:
            return await status_of(front) == 200

        await until(is_ready)
        assert (await told(front))["error"] is None


async def test_an_engine_that_comes_later_is_warm_before_its_first_job_or_left_out(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    async with FakeEngine(folders[0]) as one, BrokenEngine(folders[1]) as two:
        two.is_down = True
        file = workflow(tmp_path, draw("warm"), "warm.json")
        changes: dict[str, Any] = {"ENGINE_URL": f"{one.url},{two.url}"}
        changes |= {"warmup_workflows": file, "warmup_on_fail": "error"}
        async with running_front(tmp_path, one, **changes) as front:
            assert (len(one.runs), two.runs) == (1, [])
            two.is_down = False

            async def is_left_out() -> bool:
                report = await told(front)
                return [engine["serves"] for engine in report.get("engines", ())] == [True, False]

            await until(is_left_out)
            assert two.runs and (await front.sync(draw())).status_code == 200
            two.is_mended = True

            async def serves_too() -> bool:
                return len(front.front.services.engines.pool.clients_serving) == 2

            await until(serves_too)
            assert len(one.runs) == 2 and all("warm" in path.read_text() for path in folders[1].iterdir())


async def test_of_two_engines_that_come_together_only_the_one_that_lacks_a_model_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    async with FakeEngine(folders[0]) as one, FakeEngine(folders[1]) as two:

        async def preload(_warm_up: WarmUp, engine: EngineClient) -> list[dict[str, Any]]:
            return [{"name": "a.safetensors", **({"error": "is not there"} if engine.url == two.url else {})}]

        monkeypatch.setattr(WarmUp, "preload", preload)
        changes: dict[str, Any] = {"ENGINE_URL": f"{one.url},{two.url}", "warmup_on_fail": "error"}
        async with running_front(tmp_path, one, **changes) as front:
            report = await told(front)
    assert {engine["url"]: engine["serves"] for engine in report["engines"]} == {one.url: True, two.url: False}


async def test_a_modifier_that_raises_fails_the_warm_up_and_no_more(tmp_path: Path, engine: FakeEngine) -> None:
    folder = tmp_path / "modifiers"
    folder.mkdir()
    workflow(folder, draw(), "mine_workflow.json")
    (folder / "mine.py").write_text(RAISING_MODIFIER)
    file = workflow(tmp_path, {"input": {"modifier": "Mine", "modifications": {"text": "second"}}}, "warm.json")
    async with running_front(tmp_path, engine, warmup_workflows=file, base_directory=tmp_path) as front:
        (entry,) = (await told(front))["warm_up"]
    assert entry["error"] == "ZeroDivisionError: division by zero"


async def test_a_foreign_engine_cannot_be_asked_to_preload_models(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, preload_models="vae/x.safetensors") as front:
        (entry,) = (await told(front))["preloaded"]
    assert (entry["kind"], entry["name"]) == ("vae", "x.safetensors") and "foreign" in entry["error"]


async def test_only_the_operator_may_ask(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_front(tmp_path, engine, api_keys="customer", admin_api_keys="right") as front:
        for secret, status in (("wrong", 401), ("customer", 403)):
            refused = await front.http.post("/benchmark", headers={"Authorization": f"Bearer {secret}"})
            assert refused.status_code == status
        assert (await front.http.post("/benchmark")).status_code == 401
        asked = await front.http.post("/benchmark", headers={"Authorization": "Bearer right"})
        assert asked.status_code not in (401, 403)


async def test_the_worker_ends_with_a_code_of_its_own(tmp_path: Path, engine: FakeEngine) -> None:
    settings = {"ENGINE_URL": engine.url, "STATE_DIRECTORY": str(tmp_path / "state"), "WORKER_PORT": str(free_port())}
    settings |= {"BENCHMARK_WORKFLOW": workflow(tmp_path), "BENCHMARK_MAX_SECONDS": "0.00001"}
    settings |= {"BENCHMARK_ON_FAIL": "exit", "MIN_FREE_DISK_BYTES": "0", "DRAIN_TIMEOUT": "1"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "darkroom.worker"),
        env={**os.environ, **settings},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == EXIT_UNQUALIFIED, output.decode()
    assert b"BENCHMARK_MAX_SECONDS" in output
