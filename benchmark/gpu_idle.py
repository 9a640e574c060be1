"""Idle time of the engine while jobs wait, when every upload takes 2 s (and every download 1 s).

Starts the real front with the real engine and slow stand-ins for an S3 store and a host of images, sends all jobs at
once and notes when the work of each began and ended. That work is a node that takes 1 to 2 s and leaves the processor
alone, as a GPU does, so that the numbers hold on a machine without one; what comes between two such nodes (files of the
one, inputs of the other, all talk of front and engine) is the idle time. Writes `results/gpu_idle.json`.

    python -m benchmark.gpu_idle [--jobs 20]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from aiohttp import ClientSession, web
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmark.engine_start import free_port
from benchmark.generate_sync import start_front
from benchmark.machine import describe_cpu

RESULTS = Path(__file__).parent / "results" / "gpu_idle.json"
UPLOAD_SECONDS = 2.0
DOWNLOAD_SECONDS = 1.0
BAR = 0.02
SIZE_PX = 512

WORK_LOG = "work.log"
PACK = f"""
import os
import time

import folder_paths


class GpuWork:
    INPUT_TYPES = classmethod(lambda cls: {{"required": {{"image": ("IMAGE",), "seconds": ("FLOAT", {{}})}}}})
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "work"

    def work(self, image, seconds):
        began = time.time()
        time.sleep(seconds)
        with open(os.path.join(folder_paths.get_output_directory(), "{WORK_LOG}"), "a") as log:
            log.write(f"{{began}} {{time.time()}}\\n")
        return (image,)


NODE_CLASS_MAPPINGS = {{"GpuWork": GpuWork}}
"""


class SlowWorld:
    """A store that takes its time over every object, and a host that does over every image."""

    def __init__(self) -> None:
        self.url = ""
        self.num_stored = 0
        with io.BytesIO() as file:
            Image.new("RGB", (SIZE_PX, SIZE_PX), "navy").save(file, "PNG")
            self._image = file.getvalue()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        app = web.Application(client_max_size=2**28)
        app.add_routes([web.put("/bucket/{key:.+}", self._store), web.get("/picture/{name}", self._give)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()

    async def _store(self, request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(UPLOAD_SECONDS)
        self.num_stored += 1
        return web.Response(headers={"ETag": '"0"'})

    async def _give(self, _request: web.Request) -> web.Response:
        await asyncio.sleep(DOWNLOAD_SECONDS)
        return web.Response(body=self._image, content_type="image/png")


def write_pack(base: Path) -> None:
    (base / "custom_nodes").mkdir()
    (base / "custom_nodes" / "gpu_work.py").write_text(PACK)


def workflow(number: int, image_url: str = "") -> dict[str, Any]:
    """An image, from nothing or downloaded, 1 to 2 s of work on it, and a file."""
    empty = {"width": SIZE_PX, "height": SIZE_PX, "batch_size": 1, "color": number}
    load = {"class_type": "LoadImage", "inputs": {"image": image_url}}
    return {
        "1": load if image_url else {"class_type": "EmptyImage", "inputs": empty},
        "2": {"class_type": "GpuWork", "inputs": {"image": ["1", 0], "seconds": 1 + number % 11 / 10}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": f"idle-{number}"}},
    }


def read_spans(base: Path) -> list[tuple[float, float]]:
    """Times at which the device began and ended each piece of work, in seconds, in the order of their beginnings."""
    lines = (base / "output" / WORK_LOG).read_text().splitlines()
    return sorted((float(began), float(ended)) for began, ended in (line.split() for line in lines))


def idle_seconds(spans: Sequence[tuple[float, float]]) -> float:
    """The time between the first beginning and the last end in which nothing ran."""
    idle, end = 0.0, spans[0][0]
    for began, ended in spans:
        idle += max(0.0, began - end)
        end = max(end, ended)
    return idle


async def measure(what: str, num_jobs: int, has_downloads: bool) -> dict[str, Any]:
    world, port = SlowWorld(), free_port()
    with tempfile.TemporaryDirectory() as name:
        write_pack(Path(name))
        async with world.running(), ClientSession() as http:
            front = await start_front(Path(name), port, **settings(world.url))
            try:
                began = time.perf_counter()
                urls = [f"{world.url}/picture/{n}.png" if has_downloads else "" for n in range(num_jobs)]
                flows = [workflow(number, url) for number, url in enumerate(urls)]
                results = await draw_all(http, f"http://127.0.0.1:{port}", flows)
                seconds = time.perf_counter() - began
            finally:
                front.terminate()
                await front.wait()
        spans = read_spans(Path(name))
    if world.num_stored != num_jobs or len(spans) != num_jobs:
        raise RuntimeError(f"{world.num_stored} of {num_jobs} stored, {len(spans)} drawn: {results[-1]}")
    idle, whole = idle_seconds(spans), spans[-1][1] - spans[0][0]
    return {
        "what": what,
        "jobs": num_jobs,
        "upload_seconds": UPLOAD_SECONDS,
        "download_seconds": DOWNLOAD_SECONDS if has_downloads else 0.0,
        "seconds_of_work": round(mean(ended - began for began, ended in spans), 3),
        "seconds_for_all": round(seconds, 2),
        "engine_idle_seconds": round(idle, 3),
        "engine_idle_share": round(idle / whole, 4),
    }


def settings(world_url: str) -> dict[str, str]:
    return {
        "ALLOWED_PRIVATE_HOSTS": "127.0.0.1",
        "S3_ENDPOINT_URL": world_url,
        "S3_BUCKET_NAME": "bucket",
        "S3_ACCESS_KEY_ID": "id",
        "S3_SECRET_ACCESS_KEY": "secret",
        "S3_REGION": "us-east-1",
    }


async def draw_all(http: ClientSession, url: str, flows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sends all and gives the results once all have ended well. Raises RuntimeError for one that has not."""

    async def one(flow: dict[str, Any]) -> dict[str, Any]:
        async with http.post(f"{url}/generate/sync", json={"input": {"workflow_json": flow}}) as reply:
            result: dict[str, Any] = await reply.json()
        if reply.status != 200 or "upload_error" in result["output"][0]:
            raise RuntimeError(json.dumps(result))
        return result

    return await asyncio.gather(*(one(flow) for flow in flows))


async def run(num_jobs: int) -> dict[str, Any]:
    rows = [
        await measure("uploads of 2 s", num_jobs, has_downloads=False),
        await measure("downloads of 1 s and uploads of 2 s", num_jobs, has_downloads=True),
    ]
    return {
        "what": "share of time in which the engine stood idle while jobs waited",
        "machine": describe_cpu(),
        "when": time.strftime("%Y-%m-%d"),
        "bar": BAR,
        "rows": rows,
        "is_met": all(row["engine_idle_share"] <= BAR for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    report = asyncio.run(run(arguments.jobs))
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    columns = ("what", "jobs", "seconds_of_work", "seconds_for_all", "engine_idle_share")
    table = Table(*columns, title="the engine's idle time")
    for row in report["rows"]:
        table.add_row(*(str(row[column]) for column in columns))
    Console().print(table)


if __name__ == "__main__":
    main()
