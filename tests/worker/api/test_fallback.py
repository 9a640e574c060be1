"""A second engine for workflows that the first one cannot run: chosen before the run, shown, and the same else."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fakes import FakeEngine, draw, fail, say, steps, wait
from tests.worker.api.test_previews import shown
from tests.worker.api.test_stream import read
from tests.worker.receiver import Receiver
from tests.worker.running_front import RunningFront, running_front, until

PARTNER = {
    "Partner": {
        "input": {
            "required": {"text": ["STRING", {}]},
            "hidden": {"auth_token_comfy_org": "AUTH_TOKEN_COMFY_ORG", "api_key_comfy_org": "API_KEY_COMFY_ORG"},
        },
        "output": [],
        "output_node": True,
        "name": "Partner",
    }
}
GIB = 2**30
KEY = "comfyui-secret-key"


def partner(text: str = "a film") -> dict[str, Any]:
    return {"1": {"class_type": "Partner", "inputs": {"text": text}}}


@dataclass
class Pair:
    """A front with an engine that lacks node classes, and the fallback that has them."""

    front: RunningFront
    own: FakeEngine
    other: FakeEngine

    async def submit(self, name: str, workflow: dict[str, Any], **fields: Any) -> None:
        body = {"input": {"request_id": name, "workflow_json": workflow, **fields}}
        assert (await self.front.http.post("/generate", json=body)).status_code == 202

    async def run(self, name: str, workflow: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return (await self.front.sync(workflow, request_id=name, **fields)).json()  # type: ignore[no-any-return]

    async def metric(self, name: str) -> str:
        text = (await self.front.http.get("/metrics")).text
        return "\n".join(line for line in text.splitlines() if line.startswith(name))


@asynccontextmanager
async def pair_of(tmp_path: Path, lacks: tuple[str, ...], **settings: Any) -> AsyncIterator[Pair]:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    async with FakeEngine(folders[0]) as own, FakeEngine(folders[1]) as other:
        own.lacks = frozenset(lacks)
        other.takes_uuids_alone = True
        other.lists = PARTNER
        async with running_front(tmp_path, own, fallback_engine=other.url, **settings) as front:
            yield Pair(front, own, other)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with pair_of(tmp_path, ("Steps", "Wait", "Say"), allowed_private_hosts="127.0.0.1") as pair:
        yield pair


async def test_only_a_workflow_that_our_engine_lacks_nodes_for_goes_to_the_fallback(pair: Pair) -> None:
    ours = await pair.run("ours", draw())
    assert ours["status"] == "completed" and ours.get("engine") is None and not pair.other.runs
    theirs = await pair.run("theirs", steps())
    assert theirs["status"] == "completed" and theirs["engine"]["name"] == "fallback"
    assert "Steps" in theirs["engine"]["reason"]
    assert pair.own.runs == ["ours-1"] and len(pair.other.runs) == 1
    assert 'class_type="Steps",reason="unknown_class"} 1.0' in await pair.metric("darkroom_fallback_jobs_total")
    again = (await pair.front.http.get("/result/theirs")).json()
    assert again["engine"] == theirs["engine"]


async def test_a_plan_names_the_engine_and_the_reason(pair: Pair) -> None:
    plan = (await pair.front.http.post("/plan", json={"workflow_json": steps()})).json()
    assert plan["can_run"] and plan["engine"]["name"] == "fallback" and "Steps" in plan["engine"]["reason"]
    assert not plan["missing_nodes"] and not pair.other.runs
    own = (await pair.front.http.post("/plan", json={"workflow_json": draw()})).json()
    assert own["can_run"] and own["engine"] is None


async def test_what_both_lack_is_refused_with_what_the_fallback_lacks(pair: Pair) -> None:
    workflow = {**steps(), "9": {"class_type": "Nowhere", "inputs": {}}}
    refused = await pair.front.sync(workflow)
    assert refused.status_code == 422
    assert {problem.get("class_type") for problem in refused.json()["error"]["problems"]} == {"Nowhere"}


async def test_a_request_that_is_wrong_by_itself_never_reaches_the_fallback(pair: Pair) -> None:
    assert (await pair.front.sync(draw(size=1000))).status_code == 422
    assert pair.other.num_described == 0


async def test_progress_previews_and_webhooks_come_from_the_fallback(pair: Pair, receiver: Receiver) -> None:
    webhook = {"url": receiver.url}
    asked = {"request_id": "shown", "workflow_json": steps(4, hold=2), "previews": True, "webhook": webhook}
    before = await read(pair.front, "/generate/stream", until_percent=58, json={"input": asked})
    assert shown(before)[-1] == "image 2"
    pair.other.go_on.set()
    assert (await pair.front.until("shown", "completed"))["output"]

    async def has_come() -> bool:
        return len(receiver.calls) == 1

    await until(has_come)


async def test_a_cancelled_job_ends_and_its_prompt_is_interrupted(pair: Pair) -> None:
    await pair.submit("long", wait(60))
    await pair.front.until_message("long", "Progress")
    await pair.front.http.post("/cancel/long")
    await pair.front.until("long", "cancelled")

    async def is_gone() -> bool:
        return pair.other.is_idle

    await until(is_gone)
    assert (await pair.run("next", draw()))["status"] == "completed"


async def test_the_time_limit_of_a_job_holds_at_the_fallback(pair: Pair) -> None:
    result = await pair.run("slow", wait(60), timeout=0.5)
    assert result["error"]["code"] == "job_timed_out"


async def test_one_device_runs_one_job_at_a_time_in_the_order_of_their_arrival(pair: Pair) -> None:
    await pair.submit("first", wait(60))
    await pair.front.until_message("first", "Progress")
    await pair.submit("second", draw())
    await pair.submit("third", steps())
    await asyncio.sleep(0.2)
    assert pair.own.runs == []
    await pair.front.http.post("/cancel/first")
    await pair.front.until("second", "completed")
    await pair.front.until("third", "completed")
    assert pair.own.runs == ["second-1"] and len(pair.other.runs) == 2


def on_card(held_bytes: int) -> list[dict[str, Any]]:
    return [{"name": "card", "type": "cuda", "vram_total": 80 * GIB, "torch_vram_total": held_bytes}]


async def test_an_engine_that_leaves_no_room_releases_its_memory_for_the_other_one(pair: Pair) -> None:
    pair.own.devices, pair.other.devices = on_card(60 * GIB), on_card(30 * GIB)
    await pair.run("theirs", say())
    assert len(pair.own.frees) == 1 and not pair.other.frees
    pair.own.devices = on_card(0)  # it has released them
    await pair.run("ours", draw())
    assert len(pair.other.frees) == 1


async def test_engines_whose_models_fit_together_keep_them(pair: Pair) -> None:
    pair.own.devices, pair.other.devices = on_card(20 * GIB), on_card(30 * GIB)
    for number in range(2):
        await pair.run(f"theirs-{number}", say())
        await pair.run(f"ours-{number}", draw())
    assert not pair.own.frees and not pair.other.frees


async def test_a_partner_node_gets_the_key_of_its_request_and_nothing_keeps_it(pair: Pair, tmp_path: Path) -> None:
    body = {"api_key_comfy_org": KEY, "auth_token_comfy_org": None}
    headers = {"X-Include-ComfyUI-Response": "true"}
    sent = {"input": {"request_id": "film", "workflow_json": partner(), "extra_data": body}}
    result = (await pair.front.http.post("/generate/sync", json=sent, headers=headers)).json()
    assert result["status"] == "completed" and result["comfyui_response"]["prompt"]
    (received,) = pair.other.received.values()
    assert received["api_key_comfy_org"] == KEY and "auth_token_comfy_org" not in received
    assert KEY not in json.dumps(result) + json.dumps((await pair.front.http.get("/jobs")).json())

    async def is_erased() -> bool:  # the write-ahead log is emptied a moment after the commit
        stored = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
        return bool(stored) and not [path for path in stored if KEY.encode() in path.read_bytes()]

    await until(is_erased)


async def test_a_key_waits_with_its_job_and_is_not_shown(pair: Pair, tmp_path: Path) -> None:
    await pair.submit("before", wait(60))
    await pair.submit("film", partner(), extra_data={"api_key_comfy_org": KEY})
    await pair.front.until_message("before", "Progress")
    with sqlite3.connect(tmp_path / "state" / "darkroom.db") as database:
        columns = "request, prompt, credentials"
        request, prompt, kept = database.execute(f"select {columns} from jobs where id = 'film'").fetchone()  # noqa: S608
    assert KEY in kept and KEY not in request + prompt
    await pair.front.http.post("/cancel/before")
    await pair.front.until("film", "completed")


async def test_a_key_for_a_workflow_of_our_engine_is_not_kept(pair: Pair) -> None:
    await pair.run("ours", draw(), extra_data={"api_key_comfy_org": KEY})
    assert "api_key_comfy_org" not in pair.own.received["ours-1"]


async def test_a_partner_node_without_a_key_is_refused_by_the_field(pair: Pair) -> None:
    refused = await pair.front.sync(partner())
    (problem,) = refused.json()["error"]["problems"]
    assert refused.status_code == 422 and problem["field"] == "input.extra_data.api_key_comfy_org"
    assert not pair.other.received


async def test_a_job_that_fails_on_our_engine_fails_there_unless_it_may_be_repeated(pair: Pair) -> None:
    result = await pair.run("broken", fail())
    assert result["error"]["code"] == "node_failed" and not pair.other.runs


async def test_a_job_that_failed_on_our_engine_is_repeated_once_on_the_fallback(tmp_path: Path) -> None:
    async with pair_of(tmp_path, (), fallback_on_error=True) as pair:
        pair.own.fails = frozenset({"Say"})
        result = await pair.run("again", say())
        assert result["status"] == "completed" and "failed on this engine" in result["engine"]["reason"]
        assert len(pair.own.runs) == len(pair.other.runs) == 1
        assert 'class_type="Say",reason="failed"} 1.0' in await pair.metric("darkroom_fallback_jobs_total")
        both = await pair.run("never", fail())
        assert both["error"]["code"] == "node_failed" and both["engine"]["name"] == "fallback"
        assert len(pair.other.runs) == 2


async def test_a_job_that_our_engine_refuses_at_its_beginning_goes_to_the_fallback(pair: Pair) -> None:
    async def refuse(_request: web.Request) -> web.Response:
        error = {"type": "missing_node_type", "message": "Node 'Draw' not found", "details": "Node ID '#1'"}
        return web.json_response({"error": error, "node_errors": {}}, status=400)

    pair.own.lie, pair.own.lies_at = refuse, "POST /prompt"  # it lost a pack since it was asked
    result = await pair.run("moved", draw())
    assert result["status"] == "completed" and result["engine"]["name"] == "fallback" and not pair.own.runs
    with sqlite3.connect(f"file:{pair.front.front.store.directory}/darkroom.db?mode=ro", uri=True) as database:
        (request,) = database.execute("select request from jobs where id = 'moved'").fetchone()
    assert json.loads(request)["engine"] == "fallback"  # so that the next worker goes on there


async def test_health_and_metrics_show_the_fallback(pair: Pair) -> None:
    before = (await pair.front.http.get("/health")).json()
    assert before["fallback"] == {"state": "idle", "starts": 0, "engine": None} and before["status"] == "healthy"
    await pair.run("theirs", say())
    after = (await pair.front.http.get("/health")).json()["fallback"]
    assert after["state"] == "up" and after["starts"] == 1 and after["engine"]["url"] == pair.other.url
    assert await pair.metric('darkroom_engine_up{engine="fallback"}') == 'darkroom_engine_up{engine="fallback"} 1.0'


async def test_a_fallback_that_does_not_answer_is_said_to_be_so(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("darkroom.worker.engines.fallback.checks.FOREIGN_WAIT_SECONDS", 0.2)
    pair.other.is_down = True
    refused = await pair.front.sync(say())
    assert refused.status_code == 502 and "fallback" in refused.json()["message"]
    assert (await pair.front.http.get("/ready")).status_code == 200
    assert (await pair.run("ours", draw()))["status"] == "completed"
