"""Two replicas of Ray Serve: one is killed, and every request gets its image from the other or its successor."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("ray", reason="Ray Serve is an extra")

from tests.worker.integrations.ray.application import ray_application
from tests.worker.running_front import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def asked(name: str, **modifications: Any) -> dict[str, Any]:
    given = {"prompt": "a red apple", "width": 64, "height": 64, "steps": 4, "seed": 1, **modifications}
    return {"input": {"request_id": name, "modifier": "Text2Image", "modifications": given}}


def replica_pids(folder: Path) -> list[int]:
    """The processes of replicas: the parents of the workers whose state is below the folder."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"STATE_DIRECTORY={folder}/ray-state/".encode() in path.read_bytes():
                parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
                if b"ServeReplica" in Path(f"/proc/{parent}/cmdline").read_bytes():
                    found.add(parent)
        except (OSError, ValueError):
            continue
    return sorted(found)


async def test_requests_outlive_a_replica_and_refusals_are_those_of_a_worker(tmp_path: Path) -> None:
    async with ray_application(tmp_path, min_replicas=2, max_replicas=2) as http:

        async def are_two() -> bool:
            return len(await asyncio.to_thread(replica_pids, tmp_path)) == 2

        await until(are_two, 300)
        first = (await http.post("/generate/sync", json=asked("first"))).json()
        assert first["status"] == "completed"
        assert base64.b64decode(first["output"][0]["data"]).startswith(b"\x89PNG")

        refused = await http.post("/generate/sync", json=asked("bad", steps=-1))
        assert (
            refused.status_code == 422
            and refused.json()["error"]["problems"][0]["field"] == "input.modifications.steps"
        )
        unknown = await http.post("/generate", json=asked("elsewhere"))
        assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "route_not_found"
        assert (await http.get("/generate/sync")).status_code == 405

        async def draw(number: int) -> httpx.Response:
            return await http.post("/generate/sync", json=asked(f"job-{number}", seed=number, steps=40))

        drawing = [asyncio.create_task(draw(number)) for number in range(5)]
        await asyncio.sleep(0.5)
        os.kill(replica_pids(tmp_path)[0], signal.SIGKILL)
        replies = await asyncio.gather(*drawing)
        assert [reply.status_code for reply in replies] == [200] * 5, [reply.text[:500] for reply in replies]
        assert len({reply.json()["output"][0]["data"] for reply in replies}) == 5
        await until(are_two, 300)  # Ray Serve has replaced it
