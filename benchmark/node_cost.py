"""Cost of a node that does nothing: validation, keys, scheduling, execution and events of graphs of trivial nodes.

    python -m benchmark.node_cost [--sizes 100 800 900 10000] [--repeats 5]

Three ways: the engine as a library, the engine over HTTP without a WebSocket client (the end is read from `/history`),
and over HTTP with the prompt's client listening on `/ws`. Server and client share one process there, so the client's
work and the body's JSON count as well.
A fan is one source with sums that all take it and an output for each; a chain is N nodes one after the other. Cold runs
change a value that every node depends on; cached runs send the same prompt again. Times are the best of the repeats, in
microseconds a node. The result is printed and written to benchmark/results/node_cost.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import aiohttp
from aiohttp import web
from rich.console import Console
from rich.table import Table

from benchmark.machine import describe_cpu
from darkroom.engine.engine import Engine, RunRequest
from darkroom.engine.nodes.base import NodeClass, NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Socket
from darkroom.engine.nodes.widgets import Int
from darkroom.engine.server.app import create_app
from darkroom.engine.server.engine_start import EngineStart
from darkroom.engine.settings import EngineSettings

RESULTS = Path(__file__).parent / "results" / "node_cost.json"
COLD_BAR_US = 150.0
CACHED_BAR_US = 30.0
CLIENT_ID = "benchmark"
POLL_SECONDS = 0.001

NUMBER = Annotated[int, Socket("NUMBER")]


@node("TrivialSource", category="benchmark")
def trivial_source(context: NodeContext, *, value: Annotated[int, Int(min=0, max=2**31)] = 0) -> NUMBER:
    return value


@node("TrivialAdd", category="benchmark")
def trivial_add(context: NodeContext, *, number: NUMBER, value: Annotated[int, Int(min=0, max=2**31)] = 0) -> NUMBER:
    return number + value


@node("TrivialShow", category="benchmark", is_output=True)
def trivial_show(context: NodeContext, *, number: NUMBER) -> NodeOutput:
    return NodeOutput({"number": [number]})


TRIVIAL_NODES: tuple[NodeClass, ...] = (trivial_source, trivial_add, trivial_show)


def chain(num_nodes: int, seed: int) -> dict[str, Any]:
    """A source, `num_nodes` - 2 sums one after the other, and an output."""
    prompt: dict[str, Any] = {"0": {"class_type": "TrivialSource", "inputs": {"value": seed}}}
    for index in range(1, num_nodes - 1):
        inputs = {"number": [str(index - 1), 0], "value": index}
        prompt[str(index)] = {"class_type": "TrivialAdd", "inputs": inputs}
    prompt["show"] = {"class_type": "TrivialShow", "inputs": {"number": [str(num_nodes - 2), 0]}}
    return prompt


def fan(num_nodes: int, seed: int) -> dict[str, Any]:
    """One source, sums that all take it, and an output for each of them: about `num_nodes` in all."""
    prompt: dict[str, Any] = {"0": {"class_type": "TrivialSource", "inputs": {"value": seed}}}
    for index in range(1, num_nodes // 2):
        prompt[f"{index}"] = {"class_type": "TrivialAdd", "inputs": {"number": ["0", 0], "value": index}}
        prompt[f"{index}s"] = {"class_type": "TrivialShow", "inputs": {"number": [f"{index}", 0]}}
    return prompt


def run_once(engine: Engine, prompt: dict[str, Any]) -> float:
    """Seconds from the parsed body to the result, events included."""
    num_events = 0

    def count(event: object) -> None:
        nonlocal num_events
        num_events += 1

    began = time.perf_counter()
    checked = engine.check(prompt)
    result = engine.submit(RunRequest("benchmark", checked.prompt, checked.outputs), count).result()
    seconds = time.perf_counter() - began
    assert result.status == "success" and num_events > 0
    return seconds


class HttpClient:
    """Sends prompts to a server and waits for their end, as a script (`/history`) or as a listening client (`/ws`)."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, socket: aiohttp.ClientWebSocketResponse | None
    ) -> None:
        self._session = session
        self._url = url
        self._socket = socket

    async def run_once(self, prompt: dict[str, Any]) -> float:
        """Seconds from sending the body to knowing that the prompt is done."""
        body: dict[str, Any] = {"prompt": prompt}
        if self._socket is not None:
            body["client_id"] = CLIENT_ID
        began = time.perf_counter()
        async with self._session.post(f"{self._url}/prompt", json=body) as answer:
            prompt_id = (await answer.json())["prompt_id"]
        await (self._poll(prompt_id) if self._socket is None else self._listen(self._socket, prompt_id))
        return time.perf_counter() - began

    async def _poll(self, prompt_id: str) -> None:
        while True:
            async with self._session.get(f"{self._url}/history/{prompt_id}") as answer:
                if await answer.json():
                    return
            await asyncio.sleep(POLL_SECONDS)

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse, prompt_id: str) -> None:
        async for message in socket:
            if message.type is aiohttp.WSMsgType.TEXT and '"executing"' in message.data[:40]:
                found = json.loads(message.data)
                is_end = found["type"] == "executing" and found["data"]["node"] is None
                if is_end and found["data"]["prompt_id"] == prompt_id:
                    return


def build_trivial(settings: EngineSettings) -> Engine:
    """An engine of trivial nodes, in a process of its own as far as it knows, as the engine's command builds it."""
    engine = Engine(settings, TRIVIAL_NODES)
    engine.take_over_process()
    return engine


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[str]:
    """The address of a server over an engine of trivial nodes."""
    settings = EngineSettings(base_directory=folder, cpu=True, port=0)
    start = EngineStart(settings, lambda error: None, build_trivial)
    runner = web.AppRunner(create_app(settings, start))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def measure_over_http(folder: Path, sizes: list[int], repeats: int, *, listens: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with served(folder) as url, aiohttp.ClientSession() as session:
        socket = await session.ws_connect(f"{url}/ws?clientId={CLIENT_ID}", max_msg_size=0) if listens else None
        client = HttpClient(session, url, socket)
        await client.run_once(chain(100, 1))  # warm up
        for shape in (fan, chain):
            for num_nodes in sizes:
                cold: list[float] = []
                cached: list[float] = []
                for repeat in range(repeats):
                    prompt = shape(num_nodes, num_nodes * 1000 + repeat)
                    cold.append(await client.run_once(prompt))
                    cached.append(await client.run_once(prompt))
                rows.append(row("HTTP and WebSocket" if listens else "HTTP", shape.__name__, len(prompt), cold, cached))
    return rows


def measure(
    engine: Engine, shape: Callable[[int, int], dict[str, Any]], num_nodes: int, repeats: int
) -> dict[str, Any]:
    cold: list[float] = []
    cached: list[float] = []
    for repeat in range(repeats):
        prompt = shape(num_nodes, num_nodes * 1000 + repeat)
        cold.append(run_once(engine, prompt))
        cached.append(run_once(engine, prompt))
    return row("engine", shape.__name__, len(prompt), cold, cached)


def row(way: str, graph: str, size: int, cold: list[float], cached: list[float]) -> dict[str, Any]:
    return {
        "way": way,
        "graph": graph,
        "nodes": size,
        "cold_us": round(min(cold) / size * 1e6, 1),
        "cached_us": round(min(cached) / size * 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 800, 900, 3000, 10000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        settings = EngineSettings(base_directory=Path(folder), cpu=True)
        with Engine(settings, TRIVIAL_NODES) as engine:
            engine.take_over_process()
            run_once(engine, chain(100, 1))  # warm up
            for shape in (fan, chain):
                rows.extend(measure(engine, shape, size, arguments.repeats) for size in arguments.sizes)
        for listens in (False, True):
            http = measure_over_http(Path(folder), arguments.sizes, arguments.repeats, listens=listens)
            rows.extend(asyncio.run(http))
    table = Table("way", "graph", "nodes", "cold µs/node", "cached µs/node", title="cost of a trivial node")
    for row in rows:
        is_good = row["cold_us"] <= COLD_BAR_US and row["cached_us"] <= CACHED_BAR_US
        table.add_row(*(str(value) for value in row.values()), style="green" if is_good else "red")
    Console().print(table)
    report = {
        "measured": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": {**describe_cpu(), "load_average": round(os.getloadavg()[0], 1)},
        "bars_us": {"cold": COLD_BAR_US, "cached": CACHED_BAR_US},
        "rows": rows,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
