"""Cost of the front: latency and throughput of `/generate/sync` on a workflow that costs nothing.

Starts the real front with the real engine on the CPU in a folder of its own, sends EmptyImage -> SaveImage with a new
colour each time (so that nothing comes from the cache), and writes `results/generate_sync.json`.

    python -m benchmark.generate_sync [--requests 400]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmark.engine_start import free_port
from benchmark.machine import describe_cpu, installed_environment

CLIENTS = (1, 8)
RESULTS = Path(__file__).parent / "results" / "generate_sync.json"


class Connection:
    """One kept-alive HTTP connection; as little client as possible, for it shares the machine with what it measures."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        lines = (f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json")
        head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.split("content-length:")[1].split("\r\n")[0])
        return int(answer.split()[1]), await reader.readexactly(length)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


def workflow(colour: int) -> dict[str, Any]:
    return {
        "1": {
            "class_type": "EmptyImage",
            "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": colour % 2**24},
        },
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "trivial"}},
    }


async def start_front(folder: Path, port: int, **more: str) -> asyncio.subprocess.Process:
    """A front that is ready. `more` are settings of its environment."""
    settings = {"BASE_DIRECTORY": str(folder), "WORKER_PORT": str(port), "CPU": "1", "BENCHMARK": "off", **more}
    with (folder / "front.log").open("w") as log:  # noqa: ASYNC230 - before anything is measured
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "darkroom.worker",
            env=installed_environment() | settings,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    while line := await process.stdout.readline():
        if line.strip() == b"BACKENDS_READY":
            return process
    raise RuntimeError((folder / "front.log").read_text()[-2000:])


def processor_ms(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def engine_of(front: int) -> int:
    """The front's child: its engine."""
    return int(Path(f"/proc/{front}/task/{front}/children").read_text().split()[0])


async def measure(front: int, port: int, num_clients: int, num_requests: int, first_colour: int) -> dict[str, float]:
    latencies_ms: list[float] = []
    colours = iter(range(first_colour, first_colour + num_requests))

    async def client() -> None:
        connection = Connection(port)
        for colour in colours:
            began = time.perf_counter()
            body = json.dumps({"input": {"workflow_json": workflow(colour)}}).encode()
            status, answer = await connection.post("/generate/sync", body)
            latencies_ms.append((time.perf_counter() - began) * 1000)
            if status != 200:
                raise RuntimeError(answer.decode())
        connection.close()

    processes = (front, engine_of(front))
    used_ms = [-processor_ms(pid) for pid in processes]
    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(num_clients)))
    seconds = time.perf_counter() - began
    front_ms, engine_ms = (used + processor_ms(pid) for used, pid in zip(used_ms, processes, strict=True))
    return {
        "clients": num_clients,
        "requests": num_requests,
        "p50_ms": round(median(latencies_ms), 2),
        "p95_ms": round(quantiles(latencies_ms, n=20)[-1], 2),
        "jobs_per_second": round(num_requests / seconds, 1),
        "front_processor_ms_per_job": round(front_ms / num_requests, 2),
        "engine_processor_ms_per_job": round(engine_ms / num_requests, 2),
    }


def memory_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return round(int(text.split("VmRSS:")[1].split()[0]) / 1024, 1)


async def run(num_requests: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        front = await start_front(folder, port)
        try:
            await measure(front.pid, port, 1, 100, first_colour=0)
            front_mb = memory_mb(front.pid)
            rows = [
                await measure(front.pid, port, num_clients, num_requests, first_colour=1_000 + 100_000 * num_clients)
                for num_clients in CLIENTS
            ]
            end_mb = memory_mb(front.pid)
        finally:
            front.terminate()
            await front.wait()
    return {
        "what": "EmptyImage 64x64 -> SaveImage through POST /generate/sync, front and engine on one machine",
        "machine": describe_cpu(),
        "when": time.strftime("%Y-%m-%d"),
        "front_mb_after_100_jobs": front_mb,
        "front_mb_at_the_end": end_mb,
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400, help="for each number of clients")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    report = asyncio.run(run(arguments.requests))
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    columns = [name for name in report["rows"][0] if name != "requests"]
    table = Table(*(name.replace("_", " ") for name in columns), title="/generate/sync on a trivial workflow")
    for row in report["rows"]:
        table.add_row(*(str(row[key]) for key in columns))
    console = Console()
    console.print(table)
    console.print(
        f"front: {report['front_mb_after_100_jobs']} MB after 100 jobs, {report['front_mb_at_the_end']} MB at the end"
    )


if __name__ == "__main__":
    main()
