"""Parts of the front against libraries that could replace them: the engine's HTTP client, the reader of long JSON.

    python -m benchmark.front_libraries [--output FILE]

The server is a process of its own that answers every request with the same small object. Of JSON the longest time is
measured, too, in which another thread got no turn: an event loop answers nobody meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import httpx

from darkroom.worker.engines.http import EngineHttp
from darkroom.worker.json.long import loads

NUM_REQUESTS = 2000
NUM_ROUNDS = 5
IMAGE_BYTES = 56 * 1024 * 1024  # 75 MiB in base64
ANSWER = b'{"queue_running": [], "queue_pending": []}'


async def serve() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(ANSWER)}\r\n\r\n".encode()
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(head + ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def by_hand(url: str) -> float:
    http = EngineHttp(url_address(url))
    try:
        return await microseconds_each(lambda: http.request("GET", "/queue"))
    finally:
        await http.close()


async def by_aiohttp(url: str) -> float:
    async with aiohttp.ClientSession() as session:

        async def ask() -> None:
            async with session.get(f"{url}/queue") as response:
                await response.read()

        return await microseconds_each(ask)


async def by_httpx(url: str) -> float:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await microseconds_each(lambda: client.get(f"{url}/queue"))


def url_address(url: str) -> Any:
    from darkroom.worker.engines.address import EngineAddress

    return EngineAddress.of(url)


async def microseconds_each(ask: Callable[[], Awaitable[object]]) -> float:
    """Processor time of this process for one request, in microseconds."""
    for _ in range(50):
        await ask()
    begin = time.process_time()
    for _ in range(NUM_REQUESTS):
        await ask()
    return (time.process_time() - begin) / NUM_REQUESTS * 1e6


def measured_json(read: Callable[[bytes], Any], body: bytes) -> tuple[float, float]:
    """Seconds to read a body, and the longest in which another thread got no turn meanwhile."""
    gaps: list[float] = []
    is_done = threading.Event()

    def watch() -> None:
        last = time.perf_counter()
        while not is_done.is_set():
            time.sleep(0.0005)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    thread = threading.Thread(target=watch)
    thread.start()
    time.sleep(0.05)
    gaps.clear()
    begin = time.perf_counter()
    read(body)
    seconds = time.perf_counter() - begin
    is_done.set()
    thread.join()
    return seconds, max(gaps, default=0.0)


def compare_json() -> dict[str, Any]:
    import orjson

    image = base64.b64encode(os.urandom(IMAGE_BYTES)).decode()
    body = json.dumps({"input": {"workflow_json": {"1": {"inputs": {"image": image}}}}}).encode()
    found: dict[str, Any] = {}
    readers: dict[str, Callable[[bytes], Any]] = {"long_json": loads, "orjson": orjson.loads, "json": json.loads}
    for name, read in readers.items():
        rounds = [measured_json(read, body) for _ in range(NUM_ROUNDS)]
        found[name] = {
            "seconds": round(statistics.median(seconds for seconds, _ in rounds), 4),
            "longest_stop_seconds": round(statistics.median(stop for _, stop in rounds), 4),
        }
    return {"body_bytes": len(body), **found}


def compare_http() -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmark.front_libraries", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        try:
            clients = {"EngineHttp": by_hand, "aiohttp": by_aiohttp, "httpx": by_httpx}
            rounds = [{name: asyncio.run(ask(url)) for name, ask in clients.items()} for _ in range(NUM_ROUNDS)]
        finally:
            server.terminate()
    return {name: round(statistics.median(item[name] for item in rounds), 1) for name in clients}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve())
        return
    found = {"processor_microseconds_per_request": compare_http(), "json_of_one_long_string": compare_json()}
    text = json.dumps({"python": sys.version.split()[0], "cores": os.cpu_count(), **found}, indent=2)
    print(text)
    if given.output is not None:
        given.output.write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    main()
