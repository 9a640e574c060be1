"""Client of a worker, blocking and asynchronous: requests, events, results, retries. Needs httpx and httpx-sse alone.

from darkroom.client import Client, Request

with Client("http://127.0.0.1:8000") as worker:
    result = worker.generate(Request.of_modifier("Text2Image", prompt="a red apple", seed=42))
    worker.save(result.outputs[0], "apple.png")
"""

from darkroom.client.asynchronous import AsyncClient
from darkroom.client.blocking import Client
from darkroom.client.errors import JobFailed, Problem, RequestRefused, WorkerError, WorkerUnreachable
from darkroom.client.request import Request
from darkroom.client.results import Event, Output, Result

__all__ = [
    "AsyncClient",
    "Client",
    "Event",
    "JobFailed",
    "Output",
    "Problem",
    "Request",
    "RequestRefused",
    "Result",
    "WorkerError",
    "WorkerUnreachable",
]
