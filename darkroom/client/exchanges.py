"""Exchanges: a request with the meaning of its answer, the same for both clients. Only files of a request are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from darkroom.client.following import Call
from darkroom.client.request import Request
from darkroom.client.results import Result, read_result

AnswerT = TypeVar("AnswerT")
JSON_BODY = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Exchange(Generic[AnswerT]):
    """A call, and the function that reads its answer. `is_of_job`: the answer to a job that failed is an answer."""

    call: Call
    read: Callable[[dict[str, Any]], AnswerT]
    is_of_job: bool = False


def submit(request: Request) -> Exchange[Result]:
    """Return the submission of a job. Raises OSError for a file of the request that cannot be read."""
    return Exchange(_send("POST", "generate", body=request.body()), read_result, is_of_job=True)


def result(job_id: str) -> Exchange[Result]:
    """Return the question for a job's state."""
    return Exchange(_send("GET", "result", job_id), read_result, is_of_job=True)


def cancel(job_id: str) -> Exchange[str]:
    """Return the cancellation of a job, answered with the status in which it has ended."""
    return Exchange(_send("POST", "cancel", job_id), lambda answer: str(answer.get("status")))


def convert(workflow: Mapping[str, Any] | Path) -> Exchange[dict[str, Any]]:
    """Return the conversion of a workflow to the API format. Raises OSError."""
    return Exchange(_send("POST", "convert", body=_workflow(workflow)), lambda answer: dict(answer["workflow_json"]))


def put_workflow(
    name: str,
    workflow: Mapping[str, Any] | Path,
    inputs: Mapping[str, str | list[str]] | None,
    description: str,
) -> Exchange[dict[str, Any]]:
    """Return the storing of a workflow, answered with its description and new version. Raises OSError."""
    body = {**_workflow(workflow), "description": description, **({} if inputs is None else {"inputs": inputs})}
    return Exchange(_send("PUT", "workflows", name, body=body), dict)


def workflows() -> Exchange[list[dict[str, Any]]]:
    """Return the question for the stored workflows."""
    return Exchange(_send("GET", "workflows"), lambda answer: list(answer["workflows"]))


def delete_workflow(reference: str) -> Exchange[int]:
    """Return the deletion of `NAME` or `NAME@VERSION`, answered with the number of versions."""
    return Exchange(_send("DELETE", "workflows", reference), lambda answer: int(answer["deleted"]))


def modifiers() -> Exchange[list[dict[str, Any]]]:
    """Return the question for the modifiers."""
    return Exchange(_send("GET", "modifiers"), lambda answer: list(answer["items"]))


def jobs(states: Sequence[str], limit: int, *, has_details: bool = False) -> Exchange[list[dict[str, Any]]]:
    """Return the question for the caller's newest jobs, of some states or all, with prompt and outputs if asked."""
    details = [("details", "true")] if has_details else []
    query = urlencode([*(("state", state) for state in states), ("limit", limit), *details])
    return Exchange(Call("GET", f"/jobs?{query}"), lambda answer: list(answer["jobs"]))


def queue() -> Exchange[dict[str, Any]]:
    """Return the question for the queue."""
    return Exchange(_send("GET", "queue-info"), dict)


def _workflow(workflow: Mapping[str, Any] | Path) -> dict[str, Any]:
    return {"workflow_json": Request(workflow=workflow).body()["input"]["workflow_json"]}


def _send(method: str, *path: str, body: Mapping[str, Any] | None = None) -> Call:
    content = None if body is None else json.dumps(body).encode()
    headers = JSON_BODY if method in ("POST", "PUT") else {}
    return Call(method, "".join(f"/{quote(part, safe='@')}" for part in path), content, headers)
