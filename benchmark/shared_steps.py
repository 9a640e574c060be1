"""Images a minute of eight clients, with one request at a time and with several in one batch.

Starts two workers on this machine, with MAX_CONCURRENT_RUNS 1 and 8, and asks them in turns for images of the demo
model, 128x128, from eight clients at once. The ratio is that of the medians. Writes `results/shared_steps.json`.

    python -m benchmark.shared_steps [--rounds 3] [--images 16] [--runs 8]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmark.engine_start import free_port
from benchmark.generate_sync import Connection, start_front
from benchmark.machine import describe_cpu

NUM_CLIENTS = 8
STEPS = 12
RESULTS = Path(__file__).parent / "results" / "shared_steps.json"


def request(seed: int) -> bytes:
    """Return the body of a request for an image of its own."""
    modifications = {"prompt": "a red apple on a blue background", "width": 128, "height": 128, "steps": STEPS,
                     "seed": seed}  # fmt: skip
    return json.dumps({"input": {"modifier": "Text2Image", "modifications": modifications}}).encode()


async def pictures_per_minute(port: int, num_images: int, seeds: Iterator[int]) -> float:
    """Return the images a minute that a worker draws for eight clients. Raises RuntimeError for a failed one."""
    wanted = iter(range(num_images))

    async def client() -> None:
        connection = Connection(port)
        for _ in wanted:
            status, answer = await connection.post("/generate/sync", request(next(seeds)))
            if status != 200:
                raise RuntimeError(answer.decode()[:500])
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))
    return round(num_images / (time.perf_counter() - began) * 60, 2)


async def run(num_rounds: int, num_images: int, num_runs: int) -> dict[str, Any]:
    """Return the report."""
    seeds = iter(range(1, 1_000_000))
    ways = {"one_at_a_time": 1, "in_one_batch": num_runs}
    figures: dict[str, list[float]] = {way: [] for way in ways}
    alone: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as name:
        fronts: dict[str, tuple[asyncio.subprocess.Process, int]] = {}
        try:
            for way, at_once in ways.items():
                folder, port = Path(name) / way, free_port()
                folder.mkdir()
                fronts[way] = (await start_front(folder, port, MAX_CONCURRENT_RUNS=str(at_once)), port)
                await pictures_per_minute(port, NUM_CLIENTS, seeds)  # models are read, widths measured
            for _ in range(num_rounds):
                for way, (_process, port) in fronts.items():
                    figures[way].append(await pictures_per_minute(port, num_images, seeds))
                    began = time.perf_counter()
                    connection = Connection(port)
                    await connection.post("/generate/sync", request(next(seeds)))
                    connection.close()
                    alone[way].append(round(time.perf_counter() - began, 3))
        finally:
            for process, _port in fronts.values():
                process.terminate()
                await process.wait()
    return {
        "what": f"Text2Image of the demo model, 128x128, {STEPS} steps, {NUM_CLIENTS} clients",
        "max_concurrent_runs": num_runs,
        "machine": describe_cpu() | {"load_average": round(os.getloadavg()[0], 1)},
        "when": time.strftime("%Y-%m-%d"),
        "pictures_per_minute": figures,
        "seconds_of_one_picture_without_company": alone,
        "ratio": round(median(figures["in_one_batch"]) / median(figures["one_at_a_time"]), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=16, help="for each round and worker")
    parser.add_argument("--runs", type=int, default=8, help="MAX_CONCURRENT_RUNS of the second worker")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    report = asyncio.run(run(arguments.rounds, arguments.images, arguments.runs))
    Console().print_json(data=report)
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
