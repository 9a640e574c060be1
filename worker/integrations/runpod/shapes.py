"""Conversion between the formats of RunPod's clients (worker-comfyui's, and our own) and `/generate`. Pure.

A job's input with `workflow` is worker-comfyui's: images are included as `images: [{name, image}]`, base64 with or
without the prefix of a data URI, and are named by the workflow's loaders. The reply is `{"images": [{filename, type,
data}]}` with type `base64` or `s3_url`, `errors` for partial failures, and `{"error", "details"}` when there is no
output. An input without `workflow` is `/generate`'s own, and the reply is its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from darkroom.worker.guard.json_body import DEFAULT_LIMITS, parse_text
from darkroom.worker.json.values import JsonObject
from darkroom.worker.prompts.sent_images import SentImagesInvalid, read_images, substitute_images
from darkroom.worker.prompts.workflows.forms import EXPECTED, HOLDERS, describe, describe_known, find_workflow

OURS_ALONE: Final = frozenset({"workflow", "images", "comfy_org_api_key"})
"""Fields of worker-comfyui's input that `/generate` does not have."""

IMAGES: Final = frozenset({"images", "gifs"})
DEVICE_FAULTS: Final = frozenset(
    {
        *("engine_unreachable", "engine_answer_invalid", "engine_crashed"),
        *("engine_hung", "engine_start_failed", "device_lost"),
    }
)
"""Codes of failures after which another machine may succeed."""


class InputRefused(Exception):
    """Error for an input that makes no job. `details` is one text for each invalid image."""

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.details = tuple(details)

    def as_reply(self) -> dict[str, Any]:
        return {"error": self.message, **({"details": list(self.details)} if self.details else {})}


@dataclass(frozen=True, slots=True)
class Translated:
    """Body for `/generate`, with a flag for a reply in worker-comfyui's shape."""

    body: dict[str, Any]
    is_comfyui_shape: bool


def translate(job: JsonObject, job_id: str, *, wants_base64: bool) -> Translated:
    """Return the request for a job; its id is the request's, so a job that is delivered twice is run once.

    A workflow in the place of `input`, or beside it, is the one of the job.

    Raises InputRefused, in worker-comfyui's terms, and RequestRejected for a JSON text over the limits of bodies.
    """
    job_input: Any = job.get("input")
    if job_input is None:
        bare = find_workflow(job, _read_text)
        job_input = None if bare is None else {"workflow": bare[0], "images": job.get("images")}
    if job_input is None:
        raise InputRefused("Please provide input")
    if isinstance(job_input, str):
        try:
            job_input = _read_text(job_input)
        except ValueError:
            raise InputRefused("Invalid JSON format in input") from None
    if not isinstance(job_input, Mapping):
        raise InputRefused("Please provide input")
    job_input = {name: value for name, value in job_input.items() if value is not None}
    if "workflow" not in job_input and ("workflow_json" in job_input or "modifier" in job_input):
        own = {"return_outputs_as_base64": wants_base64, **job_input, "request_id": job_id}
        return Translated({"input": own}, is_comfyui_shape=False)
    try:
        images = read_images(job_input.get("images"))
    except SentImagesInvalid as error:
        raise InputRefused(error.message, error.details) from None
    workflow = _workflow_of(job_input)
    rest = {name: value for name, value in job_input.items() if name not in OURS_ALONE and name not in HOLDERS}
    has_store = any(rest.get(name) for name in ("s3", "put", "hf"))
    body = {
        "return_outputs_as_base64": wants_base64 and not has_store,
        **rest,
        "request_id": job_id,
        "workflow_json": substitute_images(workflow, images),
    }
    return Translated({"input": body}, is_comfyui_shape=True)


def _workflow_of(job_input: JsonObject) -> JsonObject:
    """Return the workflow of an input, in other tools' forms, too. Raises InputRefused."""
    is_missing = job_input.get("workflow") is None
    found = find_workflow(job_input if is_missing else job_input["workflow"], _read_text)
    if found is not None:
        return found[0]
    if not is_missing:
        raise InputRefused(f"workflow: is no workflow; got {describe(job_input['workflow'])}, expected {EXPECTED}")
    known = describe_known(job_input)
    details = [f"input: is no workflow; got {known}, expected {EXPECTED}"] if known else []
    raise InputRefused("Missing 'workflow' parameter", details)


def _read_text(text: str) -> object:
    return parse_text(text, DEFAULT_LIMITS)


def result_reply(result: Mapping[str, Any], *, is_comfyui_shape: bool) -> dict[str, Any]:
    """Build the reply to a job from `/generate`'s result or refusal."""
    error = result.get("error") or {}
    is_completed = result.get("status") == "completed"
    if not is_comfyui_shape and is_completed:
        return dict(result)
    if not is_completed:
        reply: dict[str, Any] = {"error": _headline(error, result), "details": _details(error)}
        if not is_comfyui_shape:
            reply["result"] = dict(result)
        if error.get("code") in DEVICE_FAULTS:
            reply["refresh_worker"] = True
        return reply
    files, errors = _files(result.get("output") or ())
    images = [shown for output_type, shown in files if output_type in IMAGES]
    others = [shown for output_type, shown in files if output_type not in IMAGES]
    if errors and not files:
        return {"error": "Job processing failed", "details": errors}
    reply = {"images": images}
    if others:
        reply["files"] = others
    if errors:
        reply["errors"] = errors
    if not images:
        reply["status"] = "success_no_images"
    return reply


def _files(outputs: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    files, errors = [], []
    for output in outputs:
        name, url = str(output.get("filename")), output.get("url")
        if output.get("upload_error"):
            errors.append(f"Error uploading {name} to S3: {output['upload_error']}")
        if isinstance(url, str) and not _is_own_link(url):
            files.append((str(output.get("output_type")), {"filename": name, "type": "s3_url", "data": url}))
        elif output.get("data"):
            files.append((str(output.get("output_type")), {"filename": name, "type": "base64", "data": output["data"]}))
        elif not output.get("upload_error"):
            errors.append(f"{name} cannot be returned: {output.get('error') or 'no data'}")
    return files, errors


def _headline(error: JsonObject, result: JsonObject) -> str:
    if error.get("code") in ("node_failed", "out_of_memory"):
        return "Job processing failed"
    return str(error.get("message") or result.get("message") or "Job processing failed")


def _details(error: Mapping[str, Any]) -> list[str]:
    if error.get("code") in ("node_failed", "out_of_memory"):
        where = f"Node Type: {error.get('class_type')}, Node ID: {error.get('node_id')}"
        message = str(error.get("message")).removeprefix(f"{error.get('class_type')} (node {error.get('node_id')}): ")
        return [f"Workflow execution error: {where}, Message: {message}"]
    problems = error.get("problems") or ()
    return [_problem(problem) for problem in problems if isinstance(problem, Mapping)]


def _problem(problem: JsonObject) -> str:
    where = problem.get("field") or (f"Node {problem['node_id']}" if problem.get("node_id") else "")
    return f"{where}: {problem.get('message')}" if where else str(problem.get("message"))


def _is_own_link(url: str) -> bool:
    """Return True if a URL is the worker's own signed link, which is not reachable from outside RunPod's machine."""
    parts = urlsplit(url)
    return "/outputs/" in parts.path and {"expires", "signature"} <= parse_qs(parts.query).keys()
