"""Routes of a gateway for workers that ask for jobs, and for the operator who gives them tokens."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Annotated, Final, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ValidationError

from darkroom.worker.api.body_sizes import takes_jobs, takes_little
from darkroom.worker.api.declared import refusals
from darkroom.worker.api.results import check_operator, nobody
from darkroom.worker.api.schemas import problem_of
from darkroom.worker.errors import NotReady, Problem, RequestRejected, Unauthorized
from darkroom.worker.gateway.large_replies import written_reply
from darkroom.worker.gateway.routes import services_of
from darkroom.worker.gateway.workers.bodies import read_result
from darkroom.worker.gateway.workers.brokers import Worker
from darkroom.worker.gateway.workers.desk import WorkerDesk
from darkroom.worker.gateway.workers.entries import is_list_of
from darkroom.worker.gateway.workers.messages import (
    Announced,
    Connected,
    DeadLetter,
    GivenBack,
    HeldJobs,
    Job,
    Jobs,
    MadeToken,
    NewToken,
    Progress,
    TakenBack,
    Wanted,
    Wish,
)
from darkroom.worker.gateway.workers.tokens import WorkerToken
from darkroom.worker.guard.auth import bearer_token
from darkroom.worker.guard.bodies import Sender
from darkroom.worker.guard.rate_limits import caller_name
from darkroom.worker.sources.broker import BrokerUnreachable

ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
WORKER_HEADER: Final = "darkroom-worker"
RECEIPT_HEADER: Final = "darkroom-receipt"
REPLY_SECONDS: Final = 5.0
"""Seconds for which jobs that were taken wait for the memory of their reply, then they go back."""

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of a message other than a result: an announcement has packed node lists."""

Message = TypeVar("Message", bound=BaseModel)

router = APIRouter(prefix="/api/v1/worker", tags=["workers"], responses=refusals(401, 429, 503))
token_router = APIRouter(prefix="/api/v1/worker-tokens", tags=["workers"], responses=refusals(401, 403, 503))


async def worker_of(request: Request) -> Worker:
    """Identify the worker of a request by its token, and the id that it names itself by.

    Raises Unauthorized, WrongKey, RequestRejected, LimitReached.
    """
    services = services_of(request)
    try:
        secret = bearer_token(request.headers.items())
        if not secret:
            raise Unauthorized("A worker token is needed, expected Authorization: Bearer <token>")
        token = await services.tokens.name_of(secret, caller_name(nobody(request)))
    except Unauthorized:
        if services.requests.caller_limits.requests_per_second is not None:  # limits the guessing of tokens
            services.requests.caller_rates.count_request(caller_name(nobody(request)))
        raise
    worker_id = request.headers.get(WORKER_HEADER, "")
    if not ID.fullmatch(worker_id):
        message = f"{WORKER_HEADER}: expected 1 to 64 letters, digits, - and _"
        raise RequestRejected([Problem(message, field=WORKER_HEADER)])
    return Worker(token, worker_id)


Caller = Annotated[Worker, Depends(worker_of)]


@contextlib.asynccontextmanager
async def _desk(request: Request) -> AsyncIterator[WorkerDesk]:
    """Hold the desk. Raises NotReady where the broker cannot be reached."""
    try:
        yield services_of(request).desk
    except BrokerUnreachable as error:
        raise NotReady(f"The broker cannot be reached: {error}", retry_after_seconds=1) from None


@router.post("/connect", operation_id="connect_worker", response_model=Connected)
@takes_little
async def connect(request: Request, worker: Caller) -> Connected:
    """Check a worker's token, and return the lease of its jobs."""
    async with _desk(request) as desk:
        await desk.connect(worker)
        return Connected(lease_seconds=desk.lease_seconds)


@router.post("/jobs", operation_id="take_jobs", response_model=Jobs)
@takes_little
async def take_jobs(request: Request, worker: Caller, wish: Wish) -> Response:
    """Give jobs to the worker, as soon as there is one; none after `wait_seconds`."""
    async with _desk(request) as desk:
        taken = await desk.take(worker, wish.most, wish.models, wish.wait_seconds, _left(request))
        async with contextlib.AsyncExitStack() as held:
            try:
                if taken:
                    await services_of(request).tokens.check_again(bearer_token(request.headers.items()))
                async with asyncio.timeout(REPLY_SECONDS):  # the leases of the jobs run meanwhile
                    await held.enter_async_context(desk.replies.lease(sum(len(one.delivery.body) for one in taken)))
            except TimeoutError:
                await desk.give_all_back(worker, taken)
                taken = []
            except BaseException:
                await desk.give_all_back(worker, taken)
                raise
            return await written_reply(lambda: Jobs(jobs=[Job.of(one) for one in taken]).model_dump_json().encode())


@router.post("/renewals", operation_id="renew_jobs", response_model=HeldJobs)
@takes_jobs
async def renew(request: Request, worker: Caller) -> HeldJobs:
    """Extend the leases of jobs; return those that are still the worker's."""
    held = await _read(request, HeldJobs)
    async with _desk(request) as desk:
        return HeldJobs(receipts=sorted(await desk.renew(worker, held.receipts)))


@router.post("/cancellations", operation_id="await_cancellations", response_model=HeldJobs)
@takes_jobs
async def cancellations(request: Request, worker: Caller) -> HeldJobs:
    """Return those of the worker's jobs that are cancelled, as soon as there is one; none after `wait_seconds`."""
    held = await _read(request, HeldJobs)
    async with _desk(request) as desk:
        return HeldJobs(receipts=sorted(await desk.cancelled(worker, held.receipts, held.wait_seconds)))


@router.post("/progress", operation_id="report_progress", status_code=204, responses=refusals(404))
@takes_little
async def progress(request: Request, worker: Caller, given: Progress) -> None:
    """Publish progress of a job."""
    async with _desk(request) as desk:
        await desk.publish(worker, given.receipt, given.event.model_dump_json().encode())


@router.post("/given-back", operation_id="give_job_back", response_model=TakenBack, responses=refusals(404))
@takes_little
async def give_back(request: Request, worker: Caller, given: GivenBack) -> TakenBack:
    """Take a job back, for another worker."""
    async with _desk(request) as desk:
        return TakenBack(is_known=await desk.give_back(worker, given.receipt))


@router.put("/result", operation_id="put_result", status_code=204, responses=refusals(404, 413, 422))
@takes_jobs
async def put_result(request: Request, worker: Caller) -> None:
    """Store the result of the job of the header `Darkroom-Receipt`, unless it has one. It may be sent again."""
    async with _desk(request) as desk, _result_of(request, worker, desk) as (receipt, result):
        await desk.finish(worker, receipt, result)


@router.put("/dead-letter", operation_id="put_dead_letter", status_code=204, responses=refusals(404, 413, 422))
@takes_jobs
async def put_dead_letter(request: Request, worker: Caller) -> None:
    """Keep a job that no worker can run, that of the header `Darkroom-Receipt`, and store its result."""
    async with _desk(request) as desk, _result_of(request, worker, desk) as (receipt, content):
        letter = await asyncio.to_thread(_parsed, DeadLetter, content)
        result = json.dumps(letter.result, separators=(",", ":")).encode()
        await desk.bury(worker, receipt, letter.body.encode(errors="replace"), letter.reason, result)


@router.post("/announcement", operation_id="announce_worker", response_model=Wanted, responses=refusals(413, 422))
@takes_jobs
async def announce(request: Request, worker: Caller) -> Wanted:
    """Announce the worker; return the node lists that the announcement is to be repeated with."""
    announced = await _read(request, Announced)
    lists = await asyncio.to_thread(_checked_lists, announced)
    async with _desk(request) as desk:
        return Wanted(lists=await desk.announce(worker, announced.entry, lists))


@token_router.post("", operation_id="make_worker_token", status_code=201, response_model=MadeToken)
@takes_little
async def make_token(request: Request, given: NewToken) -> MadeToken:
    """Make a token for workers. Its secret is shown this once."""
    check_operator(request)
    return MadeToken(name=given.name, token=await services_of(request).tokens.make(given.name))


@token_router.get("", operation_id="list_worker_tokens", response_model=list[WorkerToken])
async def list_tokens(request: Request) -> list[WorkerToken]:
    """Return all worker tokens, without their secrets."""
    check_operator(request)
    return await services_of(request).tokens.listed()


@token_router.delete("/{name}", operation_id="revoke_worker_token", responses=refusals(404))
async def revoke_token(name: str, request: Request) -> JSONResponse:
    """Revoke a token: its workers get no more jobs, and what they hold goes to others."""
    check_operator(request)
    await services_of(request).tokens.revoke(name)
    return JSONResponse({"name": name, "message": "Worker token revoked"})


@contextlib.asynccontextmanager
async def _result_of(request: Request, worker: Worker, desk: WorkerDesk) -> AsyncIterator[tuple[str, bytes]]:
    """Yield the receipt and the body of a request, which is received for a job of the worker's alone."""
    receipt = request.headers.get(RECEIPT_HEADER, "")
    await desk.given(worker, receipt)
    gateway = services_of(request).gateway
    async with read_result(request, gateway.memory, gateway.spool) as content:
        yield receipt, content


async def _left(request: Request) -> None:
    """Wait until the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _read(request: Request, message: type[Message]) -> Message:
    """Return the message in a body of a worker. Raises RequestTooLarge, RequestRejected, MemoryLow."""
    bodies = services_of(request).requests.bodies
    with bodies.memory.lease(Sender(is_known=True)) as lease:
        content = bytes(await bodies.read(request, lease, MAX_MESSAGE_BYTES))
        return await asyncio.to_thread(_parsed, message, content)


def _parsed(message: type[Message], content: bytes) -> Message:
    try:
        return message.model_validate_json(content)
    except ValidationError as error:
        raise RequestRejected([problem_of(entry) for entry in error.errors()]) from None


def _checked_lists(announced: Announced) -> dict[str, bytes]:
    """Return the node lists of an announcement, by their digests. Raises RequestRejected for one that is no list."""
    lists = {}
    for nodes_id, text in announced.lists.items():
        try:
            lists[nodes_id] = base64.b64decode(text, validate=True)
        except binascii.Error:
            lists[nodes_id] = b""
        if nodes_id not in announced.entry.lists or not is_list_of(nodes_id, lists[nodes_id]):
            message = f"lists.{nodes_id}: not the packed node list of this digest, or too large"
            raise RequestRejected([Problem(message, field=f"lists.{nodes_id}")])
    return lists
