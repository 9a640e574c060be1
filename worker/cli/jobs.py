"""`darkroom jobs`: the list of the caller's jobs, one followed to its end, and cancellation."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from darkroom.client import Client, Event, RequestRefused, WorkerUnreachable
from darkroom.contract.nearest import nearest_name
from darkroom.worker.cli.chosen_worker import API_KEY_VARIABLE, INSECURE, worker_at

MAX_LISTED: Final = 1000  # a page of the worker
MAX_DETAILED: Final = 100  # of one with what was asked
MAX_WORDS: Final = 60

commands = typer.Typer(no_args_is_help=True, help="Jobs of a worker.")

Url = Annotated[str, typer.Option(help="where the front listens")]
Key = Annotated[str, typer.Option(envvar=API_KEY_VARIABLE, help="for a worker that asks for one")]
Insecure = Annotated[bool, typer.Option("--insecure", help=INSECURE)]
Json = Annotated[bool, typer.Option("--json", help="print JSON, one object a line")]


@commands.command("ls")
def list_jobs(
    states: Annotated[list[str] | None, typer.Option("--state", help="only jobs in this state; repeatable")] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=MAX_LISTED, help="at most so many")] = 50,
    url: Url = "",
    api_key: Key = "",
    insecure: Insecure = False,
    is_json: Json = False,
) -> None:
    """List the caller's newest jobs with seconds, workflow and prompt, those that have ended among them.

    Unfinished ones have their progress. Of more than 100 the workflows and prompts are left out.
    """
    with _client(url, api_key, is_insecure=insecure) as client:
        jobs = client.jobs(states or (), limit, has_details=limit <= MAX_DETAILED)
        queued = {job["id"]: job for job in client.queue().get("jobs", ())}
    for job in jobs:
        typer.echo(json.dumps({**queued.get(job["id"], {}), **job}) if is_json else _line(job, queued.get(job["id"])))
    if not jobs and not is_json:
        typer.echo("No jobs", err=True)


def _line(job: Mapping[str, Any], queued: Mapping[str, Any] | None) -> str:
    """Return a job in one line; `queued`: its entry in the queue, where it has not ended."""
    at = datetime.fromtimestamp(job["timings"]["queued_at_ms"] / 1000).astimezone()
    total_ms = job["timings"].get("total_ms")
    seconds = "" if total_ms is None else f"{total_ms / 1000:.1f} s"
    words = _shortened(str(job.get("title") or ""))
    if queued is not None:
        words = f"{queued['percent']:5.1f} %, {queued['estimated_wait_time']:.0f} s to wait  {words}"
    elif job.get("error") or not words:
        words = f"{words}  {_shortened(str((job.get('error') or job).get('message') or ''))}".strip()
    workflow = str(job.get("modifier") or "")
    return f"{job['id']}  {job['status']:<10}  {at:%Y-%m-%d %H:%M:%S}  {seconds:>9}  {workflow:<12}  {words}".rstrip()


def _shortened(words: str) -> str:
    spaced = " ".join(words.split())
    plain = "".join(letter if letter.isprintable() else "�" for letter in spaced)  # a terminal would obey others
    return plain if len(plain) <= MAX_WORDS else f"{plain[: MAX_WORDS - 1]}…"


@commands.command("watch")
def watch(job_id: str, url: Url = "", api_key: Key = "", insecure: Insecure = False, is_json: Json = False) -> None:
    """Follow a job to its end; exit code 1 means that it failed."""
    status = ""
    with _client(url, api_key, is_insecure=insecure) as client:
        for event in _followed(client, job_id):
            status = event.status
            percent = "" if event.percent is None else f"{event.percent:5.1f} %  "
            message = event.message if event.result is None else event.result.message
            typer.echo(json.dumps(event.raw) if is_json else f"{event.status:<10}  {percent}{message}")
    raise typer.Exit(0 if status == "completed" else 1)


@commands.command("cancel")
def cancel(job_ids: list[str], url: Url = "", api_key: Key = "", insecure: Insecure = False) -> None:
    """Cancel jobs and print the status in which each has ended."""
    with _client(url, api_key, is_insecure=insecure) as client:
        for job_id in job_ids:
            with _naming_the_nearest(client, job_id):
                typer.echo(f"{job_id}  {client.cancel(job_id)}")


def _followed(client: Client, job_id: str) -> Iterator[Event]:
    with _naming_the_nearest(client, job_id):
        yield from client.follow(job_id)


@contextlib.contextmanager
def _naming_the_nearest(client: Client, job_id: str) -> Iterator[None]:
    """End the command with the nearest id where the worker has no such job."""
    try:
        yield
    except RequestRefused as refused:
        if refused.status != 404:
            raise
        nearest = nearest_name(job_id, (job["id"] for job in client.jobs((), MAX_LISTED)), by_start=True)
        hint = f"; did you mean {nearest}?" if nearest else "; expected an id that `darkroom jobs ls` lists"
        typer.echo(f"{job_id}: no such job{hint}", err=True)
        raise typer.Exit(1) from None


@contextlib.contextmanager
def _client(url: str, api_key: str, *, is_insecure: bool) -> Iterator[Client]:
    """Yield a client; its errors end the command: 1 for a refusal, 2 for no answer."""
    worker = worker_at(url, is_insecure=is_insecure)
    with Client(worker.url, api_key or worker.own_key, verify=worker.verify) as client:
        try:
            yield client
        except RequestRefused as refused:
            typer.echo(refused.message, err=True)
            raise typer.Exit(1) from None
        except WorkerUnreachable as error:
            typer.echo(worker.no_answer(error), err=True)
            raise typer.Exit(2) from None
