"""Conversion between the formats of RunPod's clients (worker-comfyui's, and our own) and `/generate`. Pure.

A job's input with `workflow` is worker-comfyui's: pictures are included as `images: [{name, image}]`, base64 with or
without the prefix of a data URI, and are named by the workflow's loaders. The reply is `{"images": [{filename, type,
data}]}` with type `base64` or `s3_url`, `errors` for partial failures, and `{"error", "details"}` when there is no
output. An input without `workflow` is `/generate`'s own, and the reply is its result.
"""

from __future__ import annotations

import base64
import binascii
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from worker.guard.json_body import DEFAULT_LIMITS, parse_text
from worker.json.values import JsonObject
from worker.prompts.workflows.forms import EXPECTED, HOLDERS, describe, describe_known, find_workflow
from worker.prompts.workflows.page_graph import is_page_format

OURS_ALONE: Final = frozenset({"workflow", "images", "comfy_org_api_key"})
"""Fields of worker-comfyui's input that `/generate` does not have."""

CHECKED_LENGTH: Final = 1024 * 1024  # of base64, at a time; a multiple of four

PICTURES: Final = frozenset({"images", "gifs"})
DEVICE_FAULTS: Final = frozenset(
    {
        *("engine_unreachable", "engine_answer_invalid", "engine_crashed"),
        *("engine_hung", "engine_start_failed", "device_lost"),
    }
)
"""Codes of failures after which another machine may succeed."""


class InputRefused(Exception):
    """Error for an input that makes no job. `details` is one text for each invalid picture."""

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
    pictures = read_pictures(job_input.get("images"))
    workflow = _workflow_of(job_input)
    rest = {name: value for name, value in job_input.items() if name not in OURS_ALONE and name not in HOLDERS}
    has_store = any(rest.get(name) for name in ("s3", "put", "hf"))
    body = {
        "return_outputs_as_base64": wants_base64 and not has_store,
        **rest,
        "request_id": job_id,
        "workflow_json": substitute_pictures(workflow, pictures),
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


def read_pictures(images: Any) -> dict[str, str]:
    """Return data URIs, or addresses, by the pictures' names. Raises InputRefused."""
    if images is None:
        return {}
    is_list = isinstance(images, list) and all(
        isinstance(image, Mapping) and isinstance(image.get("name"), str) and isinstance(image.get("image"), str)
        for image in images
    )
    if not is_list:
        raise InputRefused("'images' must be a list of objects with 'name' and 'image' keys")
    uris, wrong = {}, []
    for image in images:
        if image["image"].lower().startswith(("http://", "https://")):  # fetched like any input
            uris[image["name"]] = image["image"]
            continue
        content = image["image"].partition(",")[2] if "," in image["image"] else image["image"]
        try:
            _check_base64("".join(content.split()))
        except (binascii.Error, ValueError) as error:
            wrong.append(f"Error decoding base64 for {image['name']}: {error}")
        uris[image["name"]] = f"data:{_media_type(image['name'])};base64,{content}"
    if wrong:
        raise InputRefused("Failed to upload one or more input images", wrong)
    return uris


def _check_base64(text: str) -> None:
    """Check base64 in pieces, so that other threads can run. Raises ValueError."""
    for start in range(0, len(text), CHECKED_LENGTH):
        base64.b64decode(text[start : start + CHECKED_LENGTH], validate=True)


def substitute_pictures(workflow: JsonObject, pictures: Mapping[str, str]) -> dict[str, Any]:
    """Return a copy of the workflow with the data of each picture in the inputs that name it."""
    if is_page_format(workflow):
        return {**workflow, "nodes": [_with_pictures(node, pictures) for node in _nodes_of(workflow)]}
    filled: dict[str, Any] = {node_id: copy.copy(node) for node_id, node in workflow.items()}
    for node in filled.values():
        inputs = node.get("inputs") if isinstance(node, dict) else None
        if isinstance(inputs, Mapping):
            node["inputs"] = {
                name: pictures.get(value, value) if isinstance(value, str) else value for name, value in inputs.items()
            }
    return filled


def _nodes_of(page: JsonObject) -> list[Any]:
    nodes = page.get("nodes")
    return nodes if isinstance(nodes, list) else []


def _with_pictures(node: object, pictures: Mapping[str, str]) -> object:
    """Return a node of a page's workflow with the data of each picture in place of its name."""
    values = node.get("widgets_values") if isinstance(node, Mapping) else None
    if not isinstance(node, Mapping) or not isinstance(values, list):
        return node
    filled = [pictures.get(value, value) if isinstance(value, str) else value for value in values]
    return {**node, "widgets_values": filled}


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
    pictures = [shown for output_type, shown in files if output_type in PICTURES]
    others = [shown for output_type, shown in files if output_type not in PICTURES]
    if errors and not files:
        return {"error": "Job processing failed", "details": errors}
    reply = {"images": pictures}
    if others:
        reply["files"] = others
    if errors:
        reply["errors"] = errors
    if not pictures:
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


def _media_type(name: str) -> str:
    ending = name.rpartition(".")[2].lower()
    return {"jpg": "image/jpeg", "jpeg": "image/jpeg", "webp": "image/webp", "gif": "image/gif"}.get(
        ending, "image/png"
    )
