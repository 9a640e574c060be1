"""The JavaScript module in Node, against a whole front and against connections that break."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.darkroom.client.test_broken_connections import DONE, FINAL, RUNNING, ScriptedFront, answer, stream_of
from tests.fakes import draw, fail
from tests.worker.running_front import RunningFront

MODULE = Path(__file__).parents[3] / "clients" / "js" / "darkroom.mjs"

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")


async def ran(program: str, **names: Any) -> Any:
    """Return the JSON that a program prints; `names` are constants in it."""
    constants = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in names.items())
    imported = f"import {{ Darkroom, JobFailed, RequestRefused, WorkerUnreachable }} from {json.dumps(str(MODULE))};\n"
    process = await asyncio.create_subprocess_exec(
        "node",
        "--input-type=module",
        "-e",
        imported + constants + program,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    return json.loads(stdout)


async def test_images_events_and_failures_reach_the_program(front: RunningFront) -> None:
    program = """
    const worker = new Darkroom(url);
    const statuses = [];
    const request = { workflow_json: drawing, overrides: { "1.text": "xy" } };
    const result = await worker.generate(request, { onEvent: (event) => statuses.push(event.status) });
    const blob = await worker.fetchOutput(result.output[0]);
    const failed = await worker.generate({ workflow_json: failing }).catch((error) => error);
    const wrong = await worker.generate({ workflow_json: {}, overrides: {} }).catch((error) => error);
    const submitted = await worker.submit({ workflow_json: drawing });
    const ended = await worker.wait(submitted.id);
    const shown = await worker.result(failed.result.id);
    const names = (await worker.modifiers()).map((entry) => entry.name);
    console.log(JSON.stringify([statuses[0], await blob.text(), failed instanceof JobFailed, failed.result.status,
      wrong instanceof RequestRefused, wrong.status, wrong.problems.length, ended.status, shown.status,
      names.includes("Text2Image"), (await worker.workflows()).length]));
    """
    found = await ran(program, url=front.url, drawing=draw(size=1), failing=fail())
    assert found == ["queued", "xy", True, "failed", True, 422, 1, "completed", "failed", True, 0]


async def test_a_stream_that_breaks_off_is_taken_up_and_patience_is_shown() -> None:
    busy = answer(503, {}).replace(b"Connection:", b"Retry-After: 7\r\nConnection:")
    unknown = answer(404, {})
    front = ScriptedFront(
        busy, stream_of((3, RUNNING), is_cut=True), unknown, stream_of((4, RUNNING)), stream_of((5, FINAL))
    )
    program = """
    const pauses = [];
    const worker = new Darkroom(url, { key: "planted", pause: async (seconds) => pauses.push(seconds) });
    console.log(JSON.stringify([await worker.generate({ modifier: "X" }), pauses.length, pauses[0]]));
    """
    assert await ran(program, url=front.url) == [DONE, 4, 7]
    front.close()
    sent, again, taken_up, repeated, last = front.requests
    assert sent.split(b"\r\n\r\n")[1] == again.split(b"\r\n\r\n")[1] == repeated.split(b"\r\n\r\n")[1]
    assert b"last-event-id: 3" in taken_up.lower() and b"last-event-id: 4" in last.lower()
    assert all(b"authorization: bearer planted" in request.lower() for request in front.requests)


async def test_a_worker_that_does_not_answer_is_named() -> None:
    program = """
    const error = await new Darkroom("http://127.0.0.1:9").generate({ modifier: "X" }).catch((error) => error);
    console.log(JSON.stringify(error instanceof WorkerUnreachable));
    """
    assert await ran(program) is True


async def test_a_worker_that_restarts_is_waited_for_once_it_has_taken_the_job() -> None:
    front = ScriptedFront(stream_of((3, RUNNING)))
    program = """
    const pauses = [];
    const worker = new Darkroom(url, { pause: async (seconds) => pauses.push(seconds) });
    const error = await worker.generate({ modifier: "X" }).catch((error) => error);
    const waited = pauses.reduce((sum, seconds) => sum + seconds, 0);
    console.log(JSON.stringify([error instanceof WorkerUnreachable, waited > 280 && waited < 300]));
    """
    assert await ran(program, url=front.url) == [True, True]
    front.close()
