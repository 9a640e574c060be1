"""AsyncClient: a worker's routes as coroutines. The methods are those of `blocking.py`."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx
from httpx_sse import EventSource

from darkroom.client import calls, exchanges
from darkroom.client.errors import RequestRefused, WorkerUnreachable
from darkroom.client.exchanges import AnswerT, Exchange
from darkroom.client.following import Following, completed, read_body
from darkroom.client.request import Request
from darkroom.client.results import Event, Output, Result


class AsyncClient:
    """Connection to a worker. Use as `async with AsyncClient(url) as worker`, or call `close`."""

    def __init__(
        self,
        url: str,
        key: str = "",
        *,
        verify: ssl.SSLContext | bool = True,
        patience_seconds: float = calls.PATIENCE_SECONDS,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Prepare the connection; nothing is sent.

        `verify` is the verification of the worker's certificate, as in httpx. `patience_seconds` is the longest time to
        wait for a worker that replies with Retry-After; `pause` sleeps.
        """
        self.url = url.rstrip("/")
        self._patience_seconds = patience_seconds
        self._pause = pause
        self._was_reached = False
        self._http = httpx.AsyncClient(
            headers=calls.headers_of(key), timeout=calls.timeout(), verify=verify, mounts=calls.ASKED_DIRECTLY
        )
        self._store_http = httpx.AsyncClient(timeout=calls.timeout())  # for links to a store, which get no key

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
        await self._store_http.aclose()

    async def generate(self, request: Request, on_event: Callable[[Event], None] | None = None) -> Result:
        """Return the result of a request once its job has completed; `on_event` gets each event until then.

        Raises RequestRefused, JobFailed, WorkerUnreachable.
        """
        return await self._ended(self.stream(request), on_event)

    async def stream(self, request: Request) -> AsyncIterator[Event]:
        """Yield the events of a request's job, the last with its result. Raises RequestRefused, WorkerUnreachable."""
        body = await asyncio.to_thread(request.body)
        async for event in self._follow(Following(request.id, body, self._patience_seconds)):
            yield event

    def follow(self, job_id: str) -> AsyncIterator[Event]:
        """Yield the events of a job that is there, the last with its result. Raises as `stream`."""
        return self._follow(Following(job_id, None, self._patience_seconds))

    async def wait(self, job_id: str, on_event: Callable[[Event], None] | None = None) -> Result:
        """Return the result of a job that is there once it has completed. Raises as `generate`."""
        return await self._ended(self.follow(job_id), on_event)

    async def submit(self, request: Request) -> Result:
        """Submit a job and return its state at once. Raises RequestRefused, WorkerUnreachable."""
        return await self._ask(await asyncio.to_thread(exchanges.submit, request))

    async def result(self, job_id: str) -> Result:
        """Return the state of a job, with its outputs once it has ended. Raises RequestRefused, WorkerUnreachable."""
        return await self._ask(exchanges.result(job_id))

    async def cancel(self, job_id: str) -> str:
        """Cancel a job and return the status in which it has ended. Raises RequestRefused, WorkerUnreachable."""
        return await self._ask(exchanges.cancel(job_id))

    async def fetch(self, output: Output) -> bytes:
        """Return the content of an output file. Raises WorkerUnreachable, and ValueError for an output that is none."""
        if output.data is not None:
            return output.decoded()
        link = output.link()
        try:
            http = self._http if link.startswith(f"{self.url}/") else self._store_http
            return (await http.get(link)).raise_for_status().content
        except httpx.HTTPError as error:
            raise WorkerUnreachable(str(error)) from None

    async def save(self, output: Output, path: Path | str) -> Path:
        """Write the content of an output file to a path, and return that. Raises as `fetch`, and OSError."""
        await asyncio.to_thread(Path(path).write_bytes, await self.fetch(output))
        return Path(path)

    async def convert(self, workflow: Mapping[str, Any] | Path) -> dict[str, Any]:
        """Return the API format of a workflow, or of the one in a file. Raises RequestRefused, WorkerUnreachable."""
        return await self._ask(await asyncio.to_thread(exchanges.convert, workflow))

    async def put_workflow(
        self,
        name: str,
        workflow: Mapping[str, Any] | Path,
        inputs: Mapping[str, str | list[str]] | None = None,
        description: str = "",
    ) -> dict[str, Any]:
        """Store a workflow and return its description with the new version. Raises as `convert`."""
        return await self._ask(await asyncio.to_thread(exchanges.put_workflow, name, workflow, inputs, description))

    async def workflows(self) -> list[dict[str, Any]]:
        """Return the stored workflows with the schemas of their inputs. Raises RequestRefused, WorkerUnreachable."""
        return await self._ask(exchanges.workflows())

    async def delete_workflow(self, reference: str) -> int:
        """Delete `NAME` or `NAME@VERSION`; return the number of versions. Raises RequestRefused, WorkerUnreachable."""
        return await self._ask(exchanges.delete_workflow(reference))

    async def modifiers(self) -> list[dict[str, Any]]:
        """Return the modifiers with the schemas of their parameters. Raises RequestRefused, WorkerUnreachable."""
        return await self._ask(exchanges.modifiers())

    async def jobs(
        self, states: Sequence[str] = (), limit: int = 50, *, has_details: bool = False
    ) -> list[dict[str, Any]]:
        """Return the caller's newest jobs, ended ones among them, of some states or all. Raises as `modifiers`.

        `has_details`: with prompt, modifier and outputs, of at most 100 jobs.
        """
        return await self._ask(exchanges.jobs(states, limit, has_details=has_details))

    async def queue(self) -> dict[str, Any]:
        """Return the queue: its length, the estimated wait, the caller's jobs. Raises as `modifiers`."""
        return await self._ask(exchanges.queue())

    async def _ended(self, events: AsyncIterator[Event], on_event: Callable[[Event], None] | None) -> Result:
        async for event in events:
            if event.result is not None:
                return completed(event.result)
            if on_event is not None:
                on_event(event)
        raise WorkerUnreachable("the stream ended without a result")

    async def _follow(self, following: Following) -> AsyncIterator[Event]:
        while True:
            try:
                call = following.call()
                url, headers = f"{self.url}{call.path}", dict(call.headers)
                async with self._http.stream(call.method, url, content=call.body, headers=headers) as response:
                    if response.status_code == 200:
                        async for item in EventSource(response).aiter_sse():
                            if item.data:
                                event = following.received(item.id, item.json())
                                yield event
                                if event.result is not None:
                                    return
                        seconds = following.dropped("the stream ended early")
                    else:
                        body = read_body(await response.aread())
                        seconds = following.refused(response.status_code, body, response.headers.get("retry-after"))
            except httpx.TransportError as error:
                is_refused = isinstance(error, httpx.ConnectError)
                seconds = following.dropped(str(error) or type(error).__name__, is_refused=is_refused)
            await self._pause(seconds)

    async def _ask(self, exchange: Exchange[AnswerT]) -> AnswerT:
        call, patience = exchange.call, calls.Patience(self._patience_seconds)
        while True:
            try:
                response = await self._http.request(
                    call.method, f"{self.url}{call.path}", content=call.body, headers=dict(call.headers)
                )
                self._was_reached = True
                return exchange.read(calls.answer_of(response, is_of_job=exchange.is_of_job))
            except RequestRefused as refused:
                await self._pause(patience.pause_after(refused))
            except httpx.TransportError as error:
                # A worker that answered before is restarting: what only reads is asked again.
                if not self._was_reached or call.method != "GET":
                    raise WorkerUnreachable(str(error) or type(error).__name__) from None
                await self._pause(patience.pause_while_away(error))
