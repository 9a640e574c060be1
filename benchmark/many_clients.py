"""A thousand clients at once: who is served, who is told to come later, and what it costs the front.

Starts the real front with the real engine on the CPU, opens every connection first, then lets all clients send one
trivial job at the same moment, through `/generate` and through `/generate/sync`. With the default queue a 503 or 429
is an answer when it says when to come back; with `MAX_QUEUE_SIZE=2000` everybody must be served. Writes
`results/many_clients.json`.

    python -m benchmark.many_clients [--clients 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmark.engine_start import free_port
from benchmark.generate_sync import start_front, workflow
from benchmark.machine import describe_cpu

RESULTS = Path(__file__).parent / "results" / "many_clients.json"
ROUTES = ("/generate", "/generate/sync")
QUEUE_SIZES = (100, 2000)
LATER = frozenset({"429", "503"})
ENDS = frozenset({"completed", "failed", "cancelled", "timeout"})
MEMORY_BAR_MB = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """Reply to one client. `status` is "lost" when the connection broke."""

    status: str
    says_when: bool
    seconds: float
    body: dict[str, Any]


async def run(num_clients: int) -> dict[str, Any]:
    rows = []
    for queue_size in QUEUE_SIZES:
        for route in ROUTES:
            rows.append(await measure(route, num_clients, queue_size))
    return {
        "what": f"{num_clients} clients at once, each with one job EmptyImage 64x64 -> SaveImage",
        "machine": describe_cpu(),
        "when": time.strftime("%Y-%m-%d"),
        "rows": rows,
        "is_met": all(is_met(row) for row in rows),
    }


def is_met(row: dict[str, Any]) -> bool:
    """Return True if every refusal has a time to retry, none came with room for all, and nothing failed or was lost."""
    has_room = row["max_queue_size"] >= row["clients"]
    return (
        row["refused_without_retry_after"] == 0
        and row["lost"] == row["failed"] == 0
        and row["completed"] + row["refused"] == row["clients"]
        and (row["refused"] == 0 or not has_room)
        and row["front_peak_mb"] <= MEMORY_BAR_MB
    )


async def measure(route: str, num_clients: int, queue_size: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        front = await start_front(folder, port, MAX_QUEUE_SIZE=str(queue_size))
        try:
            began = time.perf_counter()
            answers = await _send_all(port, route, num_clients)
            jobs = Counter(await _ends(port, answers) if route == "/generate" else _statuses(answers))
            seconds = time.perf_counter() - began
            peak_mb = peak_memory_mb(front.pid)
        finally:
            front.terminate()
            await front.wait()
    refused = [answer for answer in answers if answer.status in LATER]
    return {
        "route": route,
        "clients": num_clients,
        "max_queue_size": queue_size,
        "answers": dict(Counter(answer.status for answer in answers)),
        "refused": len(refused),
        "refused_without_retry_after": sum(not answer.says_when for answer in refused),
        "lost": sum(answer.status == "lost" for answer in answers),
        "completed": jobs["completed"],
        "failed": sum(jobs.values()) - jobs["completed"],
        "p50_seconds_to_answer": round(median(answer.seconds for answer in answers), 2),
        "last_seconds_to_answer": round(max(answer.seconds for answer in answers), 2),
        "jobs_per_second": round(jobs["completed"] / seconds, 1),
        "front_peak_mb": peak_mb,
    }


async def _send_all(port: int, route: str, num_clients: int) -> list[Answer]:
    """Every client has its connection before the first one sends."""
    open_gate = asyncio.Event()
    connected = asyncio.Semaphore(0)

    async def client(number: int) -> Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        connected.release()
        await open_gate.wait()
        began = time.perf_counter()
        try:
            return await _post(reader, writer, route, number, began)
        except (OSError, EOFError):
            return Answer("lost", False, time.perf_counter() - began, {})
        finally:
            writer.close()

    clients = [asyncio.create_task(client(number)) for number in range(num_clients)]
    for _ in clients:
        await connected.acquire()
    open_gate.set()
    return await asyncio.gather(*clients)


async def _post(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, route: str, number: int, began: float
) -> Answer:
    body = json.dumps({"input": {"request_id": f"client-{number}", "workflow_json": workflow(number)}}).encode()
    lines = (f"POST {route} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json")
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
    writer.write(head.encode() + body)
    answered, content = await _read(reader)
    return Answer(answered.split()[1], "retry-after:" in answered, time.perf_counter() - began, content)


def _statuses(answers: Sequence[Answer]) -> list[str]:
    """Return the final states of the jobs of synchronous requests."""
    return [answer.body["status"] for answer in answers if answer.status not in LATER and answer.body]


async def _ends(port: int, answers: Sequence[Answer]) -> list[str]:
    """Asks for every job that was taken until it has ended."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    ends = []
    for answer in answers:
        if answer.status not in ("200", "202"):
            continue
        status = ""
        while status not in ENDS:
            writer.write(f"GET /result/{answer.body['id']} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            status = (await _read(reader))[1]["status"]
            if status not in ENDS:
                await asyncio.sleep(0.05)
        ends.append(status)
    writer.close()
    return ends


async def _read(reader: asyncio.StreamReader) -> tuple[str, dict[str, Any]]:
    """The head of an answer in lower case, and its body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.split("content-length:")[1].split("\r\n")[0])
    return head, json.loads(await reader.readexactly(length))


def peak_memory_mb(pid: int) -> float:
    """The most that a process has held since its start."""
    text = Path(f"/proc/{pid}/status").read_text()
    return round(int(text.split("VmHWM:")[1].split()[0]) / 1024, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    report = asyncio.run(run(arguments.clients))
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    columns = ("route", "max_queue_size", "completed", "refused", "lost", "failed", "jobs_per_second", "front_peak_mb")
    table = Table(*columns, title=f"{arguments.clients} clients at once")
    for row in report["rows"]:
        table.add_row(*(str(row[column]) for column in columns))
    Console().print(table)


if __name__ == "__main__":
    main()
