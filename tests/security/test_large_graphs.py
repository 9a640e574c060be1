"""Large and broken workflows cost what their size does: refused in words, while the worker answers everybody else."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.server.running_engine import running_engine
from tests.fakes import FakeEngine
from tests.worker.running_front import RunningFront, running_front

LONGEST_SILENCE_SECONDS = 8.0  # of the processor, whatever else runs on the machine; before the limits it was 20
LONGEST_ANSWER_SECONDS = 60.0


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[RunningFront]:
    (tmp_path / "engine").mkdir()
    async with FakeEngine(tmp_path / "engine") as engine, running_front(tmp_path, engine) as front:
        yield front


async def longest_silence(
    look: Callable[[], Awaitable[object]], during: Awaitable[Any], process_id: int | None = None
) -> tuple[float, Any]:
    """Return the longest wait of many small requests while something else was answered, and that answer.

    In seconds of the processor that the serving process (this one by default) used meanwhile.
    """
    served_by = os.getpid() if process_id is None else process_id
    work, longest = asyncio.ensure_future(during), 0.0
    while not work.done():
        began = processor_seconds(served_by)
        await look()
        longest = max(longest, processor_seconds(served_by) - began)
        await asyncio.sleep(0.02)
    return longest, work.result()


def processor_seconds(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def refusal(front: RunningFront, workflow: dict[str, Any]) -> dict[str, Any]:
    """The error of a workflow that is refused, within the time and with `/live` answering meanwhile."""
    content = json.dumps({"input": {"workflow_json": workflow}}).encode()
    async with httpx.AsyncClient(base_url=front.url, timeout=LONGEST_ANSWER_SECONDS, trust_env=False) as client:
        sending = client.post("/generate/sync", content=content, headers={"content-type": "application/json"})
        silence, answer = await longest_silence(lambda: front.http.get("/live"), sending)
    assert answer.status_code == 422
    assert silence < LONGEST_SILENCE_SECONDS
    assert len(answer.content) < 2_000_000
    error: dict[str, Any] = answer.json()["error"]
    return error


def unknown(num_nodes: int) -> dict[str, Any]:
    return {str(index): {"class_type": f"Nowhere{index}", "inputs": {}} for index in range(num_nodes)}


async def test_sixty_thousand_nodes_are_refused_by_their_number(front: RunningFront) -> None:
    error = await refusal(front, unknown(60_000))
    assert error["problems"] == [
        {
            "field": "input.workflow_json",
            "type": "max_nodes",
            "message": "has too many nodes; got 60000, expected at most 50000",
            "allowed": {"maximum": 50000},
            "extra": {"received": 60000},
        }
    ]


async def test_three_hundred_thousand_nodes_are_refused_before_they_are_parsed(front: RunningFront) -> None:
    (problem,) = (await refusal(front, unknown(300_000)))["problems"]
    assert (problem["field"], problem["type"], problem["allowed"]) == ("body", "json_too_large", {"maximum": 250_000})


async def test_three_hundred_thousand_nodes_are_refused_by_their_number_where_the_json_may_be_so_large(
    tmp_path: Path,
) -> None:
    (tmp_path / "engine").mkdir()
    async with (
        FakeEngine(tmp_path / "engine") as engine,
        running_front(tmp_path, engine, constants={"json_structure": {"max_elements": 2_000_000}}) as front,
    ):
        (problem,) = (await refusal(front, unknown(300_000)))["problems"]
        assert (problem["type"], problem["extra"]) == ("max_nodes", {"received": 300_000})


async def test_links_and_bytes_have_limits_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    links = {f"l{index}": ["1", 0] for index in range(20)}
    async with (
        FakeEngine(tmp_path / "engine") as engine,
        running_front(tmp_path, engine, prompt_max_links=10, prompt_max_bytes=5000) as front,
    ):
        error = await refusal(front, {"1": {"class_type": "Draw", "inputs": links}})
        assert [problem["type"] for problem in error["problems"]] == ["max_links"]
        text = {"text": "a cat, " * 1000}
        error = await refusal(front, {"1": {"class_type": "Draw", "inputs": text}})
        assert [problem["type"] for problem in error["problems"]] == ["max_bytes"]
        assert engine.runs == []


async def test_of_thousands_of_problems_a_hundred_are_listed_and_the_others_counted(front: RunningFront) -> None:
    error = await refusal(front, unknown(20_000))
    assert len(error["problems"]) == 100 and error["unlisted_problems"] == 19_900
    assert error["message"].endswith("(and 19999 more)")


async def test_ten_thousand_broken_nodes_are_refused_while_others_are_answered(front: RunningFront) -> None:
    broken = {str(index): {"class_type": "Draw", "inputs": {"text": ["gone", 0]}} for index in range(10_000)}
    error = await refusal(front, broken)
    assert len(error["problems"]) == 100 and error["unlisted_problems"] == 19_900  # a dead link and a missing input


async def test_the_engine_refuses_large_broken_prompts_in_time_and_goes_on_answering(tmp_path: Path) -> None:
    broken = {str(index): {"class_type": "SaveImage", "inputs": {"images": ["gone", 0]}} for index in range(20_000)}
    unknown_nodes = {str(index): {"class_type": "Nowhere", "inputs": {}} for index in range(20_000)}
    with running_engine(tmp_path) as engine:
        async with httpx.AsyncClient(base_url=engine.url, timeout=LONGEST_ANSWER_SECONDS, trust_env=False) as http:
            await http.get("/object_info")  # it is built

            async def post(path: str, prompt: dict[str, Any]) -> httpx.Response:
                silence, answer = await longest_silence(
                    lambda: http.get("/api/v1/heartbeat"), http.post(path, json={"prompt": prompt}), engine.process.pid
                )
                assert silence < LONGEST_SILENCE_SECONDS
                assert len(answer.content) < 2_000_000
                response: httpx.Response = answer
                return response

            refused = await post("/prompt", broken)
            assert refused.status_code == 400 and refused.json().keys() == {"error", "node_errors"}
            assert len(refused.json()["node_errors"]) <= 100
            assert refused.json()["error"]["extra_info"]["unlisted_problems"] >= 19_900
            checked = (await post("/api/v1/workflow", broken)).json()
            assert checked["valid"] is False and checked["unlisted_problems"] >= 19_900
            checked = (await post("/api/v1/workflow", unknown_nodes)).json()
            assert len(checked["errors"]) == 100 and checked["unlisted_problems"] == 19_900
            refused = await post("/prompt", {str(index): {} for index in range(60_000)})
            assert refused.status_code == 400 and refused.json()["error"]["type"] == "prompt_too_large"
            many = b'{"prompt": {}, "x": [' + b"[]," * 2_500_000 + b"[]]}"
            refused = await http.post("/prompt", content=many)
            assert refused.status_code == 400 and refused.json()["error"]["type"] == "json_too_large"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"modifier": "Text2Image", "modifications": {f"a{index}": 1 for index in range(200_000)}}, "modifications"),
        ({"modifier": "LoraText2Image", "modifications": {"loras": [{"x": 1}] * 100_000}}, "modifications"),
        (
            {"workflow_json": {"1": {"class_type": "Draw"}}, "output": {f"a{index}": 1 for index in range(100_000)}},
            "output",
        ),
        ({"workflow_json": {"1": {"class_type": "Draw"}}, "webhook": {"events": ["x"] * 100_000}}, "webhook"),
    ],
)
async def test_fields_of_very_many_elements_are_refused_by_their_number(
    front: RunningFront, body: dict[str, Any], field: str
) -> None:
    silence, answer = await longest_silence(
        lambda: front.http.get("/live"), front.http.post("/generate", json={"input": body})
    )
    assert answer.status_code == 422 and silence < LONGEST_SILENCE_SECONDS
    (problem,) = answer.json()["error"]["problems"]
    assert (problem["field"], problem["type"]) == (f"input.{field}", "too_long")


async def test_many_wrong_modifications_are_counted_as_the_problems_of_a_workflow_are(front: RunningFront) -> None:
    body = {"modifier": "Text2Image", "modifications": {f"a{index}": 1 for index in range(15_000)}}
    silence, answer = await longest_silence(
        lambda: front.http.get("/live"), front.http.post("/generate", json={"input": body})
    )
    error = answer.json()["error"]
    assert answer.status_code == 422 and silence < LONGEST_SILENCE_SECONDS
    assert len(error["problems"]) == 100 and error["unlisted_problems"] == 15_001 - 100


async def test_a_name_of_a_megabyte_is_compared_with_nothing(front: RunningFront) -> None:
    silence, answer = await longest_silence(
        lambda: front.http.get("/live"), front.http.post("/generate", json={"input": {"modifier": "text" * 250_000}})
    )
    assert answer.status_code == 422 and silence < LONGEST_SILENCE_SECONDS
    assert len(answer.content) < 20_000
