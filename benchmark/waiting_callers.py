"""A thousand callers that wait at one gateway: what probes and other callers notice, and its memory.

Half of the callers wait with `/generate/sync`, half follow `/generate/stream`; no worker is there. While they wait,
`/ready`, `/queue-info` and `/cancel` are timed against the same with ten callers in the same run. Then the script ends
all jobs in the place of workers, and sends callers for large results. Writes `results/waiting_callers.json`.

    python -m benchmark.waiting_callers [--callers 1000] [--results 24] [--result-mb 8]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from rich.console import Console

from benchmark.gateway_process import GatewayProcess, gateway_process
from benchmark.machine import describe_cpu

RESULTS = Path(__file__).parent / "results" / "waiting_callers.json"
FEW = 10
LOOKS = 20
MEMORY_BAR_MB = 300
BAR_MS = 100
WORKFLOW = {"1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 0}}}


async def run(num_callers: int, num_results: int, result_mb: float) -> dict[str, Any]:
    async with gateway_process() as gateway:
        few = await measure(gateway, FEW, "few")
        many = await measure(gateway, num_callers, "many")
        large = await large_results(gateway, num_results, result_mb)
    worst = max(many["probes_ms"].values())
    slowness = max(1.0, max(few["probes_ms"].values()) / (BAR_MS / 4))
    return {
        "what": f"{num_callers} callers wait at one gateway, half of them by server-sent events",
        "machine": describe_cpu(),
        "when": time.strftime("%Y-%m-%d"),
        "few": few,
        "many": many,
        "large": large,
        "slowest_probe_many_to_few": round(worst / max(few["probes_ms"].values()), 2),
        "is_met": worst <= BAR_MS * slowness
        and set(many["ends"]) == {"completed"}
        and set(large["ends"]) == {"completed"}
        and large["memory_mb"]["peak"] <= MEMORY_BAR_MB,
    }


async def measure(gateway: GatewayProcess, num_callers: int, word: str) -> dict[str, Any]:
    """Let callers wait, time the probes, end all jobs and return what the callers got."""
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=gateway.url, timeout=600, trust_env=False, limits=limits) as callers,
        httpx.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False) as others,
    ):
        began = time.perf_counter()
        waiting = [
            asyncio.create_task(wait_for(callers, f"{word}-{number}", "stream" if number % 2 else "sync"))
            for number in range(num_callers)
        ]
        await until_queued(others, num_callers)
        accepted_seconds = time.perf_counter() - began
        probes = await probe_times(others, word)
        names = await names_at_broker(gateway, num_callers)
        for name in names:
            await end(gateway, name, [])
        ends = Counter(await asyncio.gather(*waiting))
    return {
        "callers": num_callers,
        "accepted_seconds": round(accepted_seconds, 2),
        "probes_ms": probes,
        "ends": dict(ends),
        "memory_mb": gateway.memory_mb(),
    }


async def probe_times(http: httpx.AsyncClient, word: str) -> dict[str, float]:
    """Return medians in milliseconds; each reply must be a success."""
    times: dict[str, list[float]] = {"/ready": [], "/queue-info": [], "/cancel": []}
    for number in range(LOOKS):
        job_id = f"{word}-cancelled-{number}"
        (await http.post("/generate", json=request(job_id))).raise_for_status()
        for route, seconds in times.items():
            began = time.perf_counter()
            reply = await (http.post(f"/cancel/{job_id}") if route == "/cancel" else http.get(route))
            seconds.append(time.perf_counter() - began)
            reply.raise_for_status()
    return {route: round(1000 * median(seconds), 1) for route, seconds in times.items()}


async def large_results(gateway: GatewayProcess, num_results: int, result_mb: float) -> dict[str, Any]:
    """Let a caller wait for each of some large results, which all come at once."""
    data = "A" * round(result_mb * 1e6)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=600, trust_env=False) as http:
        waiting = [asyncio.create_task(wait_for(http, f"large-{number}", "sync")) for number in range(num_results)]
        await until_queued(http, num_results)
        began = time.perf_counter()
        for name in await names_at_broker(gateway, num_results):
            await end(gateway, name, [{"filename": "large.png", "data": data}])
        ends = Counter(await asyncio.gather(*waiting))
        seconds = time.perf_counter() - began
    return {
        "results": num_results, "mb": result_mb, "seconds": round(seconds, 1), "ends": dict(ends),
        "memory_mb": gateway.memory_mb(),
    }  # fmt: skip


def request(job_id: str) -> dict[str, Any]:
    return {"input": {"workflow_json": WORKFLOW, "request_id": job_id}}


async def wait_for(http: httpx.AsyncClient, job_id: str, way: str) -> str:
    """Return how a job ended, as its caller sees it."""
    async with http.stream("POST", f"/generate/{way}", json=request(job_id)) as reply:
        if reply.status_code != 200:
            return str(reply.status_code)
        if way == "sync":
            return str(json.loads(await reply.aread())["status"])
        last = ""
        async for line in reply.aiter_lines():
            last = line or last
    return str(json.loads(last.removeprefix("data: "))["result"]["status"])


async def until_queued(http: httpx.AsyncClient, num_jobs: int) -> None:
    while True:
        reply = await http.get("/queue-info")
        if reply.status_code == 200 and reply.json()["queued"] >= num_jobs:
            return
        await asyncio.sleep(0.2)


async def names_at_broker(gateway: GatewayProcess, num_jobs: int) -> list[str]:
    """Take jobs from the broker as a worker does, and leave none there."""
    await gateway.producer.connect("benchmark")
    deliveries = await gateway.producer.receive(num_jobs + LOOKS, [])
    for delivery in deliveries:
        await gateway.producer.finish("unused", delivery.receipt, b"{}")
    return [delivery.job_id for delivery in deliveries]


async def end(gateway: GatewayProcess, name: str, output: list[dict[str, str]]) -> None:
    """End a job as its worker does: the result first, then the news of it."""
    result = {"status": "completed", "message": "done", "output": output, "timings": {}}
    await gateway.producer.settle(name, json.dumps(result).encode())
    await gateway.producer.publish(name, json.dumps({"status": "completed", "message": "done"}).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", type=int, default=1000)
    parser.add_argument("--results", type=int, default=24)
    parser.add_argument("--result-mb", type=float, default=8.0)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    report = asyncio.run(run(given.callers, given.results, given.result_mb))
    given.output.write_text(json.dumps(report, indent=1) + "\n")
    Console().print_json(data=report)


if __name__ == "__main__":
    main()
