"""Requests as other tools send them, opened into the form of `/generate`: `{"input": {...}}`. Pure.

Read are: ComfyUI's own body (`prompt`, `extra_data`), worker-comfyui's (`workflow`, `images`), a workflow or the fields
of `input` without `input`, a graph in `input.prompt` or as the whole `input`, JSON text in place of an object, and what
HTTP clients wrap into `body`, `data` or `json`. What is none of them is refused by the name of what it looks like.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from darkroom.contract.wire import PARTNER_KEYS
from darkroom.worker.errors import Problem, RequestRejected
from darkroom.worker.guard.json_body import parse_text
from darkroom.worker.guard.json_scan import FoundJson
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.prompts.sent_images import SentImagesInvalid, read_images, substitute_images
from darkroom.worker.prompts.workflows.forms import (
    EXPECTED,
    HOLDERS,
    TextReader,
    as_json,
    describe,
    describe_known,
    find_workflow,
    is_workflow,
)
from darkroom.worker.prompts.workflows.media import NoWorkflow, find_encoded_workflow

MODES: Final = ("workflow_json", "workflow", "modifier")
REQUEST_WRAPPERS: Final = ("body", "data", "json", "payload", "params", "input")
MAX_WRAPPINGS: Final = 4
MAX_NAME_LENGTH: Final = 200  # of a stored workflow; a longer text may be a file
CLIENT_FIELDS: Final = ("prompt", "client_id", "prompt_id", "number", "front", "partial_execution_targets", "images")
"""Fields of other tools' requests that have done their part, or have none here."""


def open_request(payload: JsonObject, found_json: FoundJson) -> dict[str, Any]:
    """Return the body of a generate request for one in any known form. Raises RequestRejected for no request.

    Fields that are null are left out. The limits of `found_json` hold for JSON within texts and files, too.
    """
    outer, given = _given(payload, _reader_of(found_json), MAX_WRAPPINGS)
    given = {name: value for name, value in given.items() if value is not None}
    return {**outer, "input": _opened(given, found_json)}


def partner_keys_in(extra_data: object) -> dict[str, object]:
    """Return the keys for partner nodes in a body's `extra_data`, under their names."""
    given = object_at(extra_data)
    return {name: given[name] for name in PARTNER_KEYS if given.get(name) is not None}


def is_plain(payload: JsonObject) -> bool:
    """Return True for a request in the form of `/generate`: opening it parses no JSON text and unpacks no file.

    Any other takes a thread, since a file of some kilobytes can hold megabytes of JSON.
    """
    given = payload.get("input")
    if not isinstance(given, Mapping):
        return False
    if given.get("modifier"):
        return True
    workflow, name = given.get("workflow_json"), given.get("workflow")
    if not workflow:
        return isinstance(name, str) and len(name) <= MAX_NAME_LENGTH
    return "images" not in given and isinstance(workflow, Mapping) and is_workflow(workflow)


def _given(payload: JsonObject, read_text: TextReader, depth: int) -> tuple[JsonObject, JsonObject]:
    """Return the fields beside `input` in a request, and the fields of `input`. Raises RequestRejected."""
    given = as_json(payload.get("input"), read_text)
    if isinstance(given, Mapping):
        if depth and not _has_job(given):
            for name in REQUEST_WRAPPERS:
                inside = as_json(given.get(name), read_text)
                if isinstance(inside, Mapping) and _has_job(object_at(inside, "input") or inside):
                    return _given(inside if "input" in inside else {"input": inside}, read_text, depth - 1)
        return {name: value for name, value in payload.items() if name != "input"}, given
    if given is None and (_has_job(payload) or find_workflow(payload, read_text)):
        return {}, payload
    for name in REQUEST_WRAPPERS if given is None and depth else ():
        inside = as_json(payload.get(name), read_text)
        if isinstance(inside, Mapping) and inside:
            return _given(inside, read_text, depth - 1)
    if given is None:
        known = describe_known(payload)
        got = f"; got {known}" if known else ""
        message = f'input: missing{got}; expected the request inside it: {{"input": {{"modifier": ...}}}}'
        raise RequestRejected([Problem(message, field="input", type="missing")])
    message = f"input: no object; got {describe(given)}, expected the fields of a request: {', '.join(MODES)}, ..."
    raise RequestRejected([Problem(message, field="input", type="dict_type")])


def _has_job(given: JsonObject) -> bool:
    """Return True if an object names a job by one of the fields that are for it, or is a workflow itself."""
    return any(given.get(name) for name in (*MODES, *HOLDERS)) or is_workflow(given)


def _opened(given: dict[str, object], found_json: FoundJson) -> dict[str, object]:
    """Return the fields of `input` with the workflow in `workflow_json`. Raises RequestRejected."""
    if given.get("modifier"):
        return given
    read_text = _reader_of(found_json)
    if given.get("workflow_json"):
        return _with_workflow(given, "workflow_json", given["workflow_json"], found_json)
    named = as_json(given.get("workflow"), read_text)
    if isinstance(named, str) and named and not describe_known(named):
        return given
    if is_workflow(given):
        return {"workflow_json": given}
    for name in HOLDERS:
        value = given.get(name)
        is_text = isinstance(value, str) and isinstance(as_json(value, read_text), str)
        if value and (not is_text or name == "workflow"):
            return _with_workflow(given, name, value, found_json)
    if isinstance(given.get("prompt"), str):
        message = (
            "prompt: is a text; expected a workflow there, or a modifier that draws the text: "
            '{"modifier": "Text2Image", "modifications": {"prompt": ...}}'
        )
        raise RequestRejected([Problem(message, field="input.prompt", type="no_workflow")])
    found = find_workflow(given, read_text)
    if found is not None:
        return {"workflow_json": found[0]}
    if "workflow_json" in given:
        raise RequestRejected([not_a_workflow(given["workflow_json"], "input.workflow_json")])
    if describe_known(given):
        raise RequestRejected([not_a_workflow(given, "input")])
    return given


def _with_workflow(given: dict[str, object], name: str, value: object, found_json: FoundJson) -> dict[str, object]:
    """Return the fields of `input` with the workflow of one of them in `workflow_json`. Raises RequestRejected."""
    workflow, page = read_workflow(value, f"input.{name}", found_json)
    if name != "workflow_json" or "images" in given:
        workflow = _with_images(workflow, given.get("images"))
    rest = {key: item for key, item in given.items() if key not in (*CLIENT_FIELDS, name)}
    if name in ("output", "prompt") and isinstance(rest.get("workflow"), Mapping):
        page = page or object_at(rest, "workflow")
    if isinstance(rest.get("workflow"), Mapping):
        del rest["workflow"]
    opened = {**rest, "workflow_json": workflow}
    return {"extra_data": {"extra_pnginfo": {"workflow": page}}, **opened} if page else opened


def _with_images(workflow: JsonObject, images: object) -> JsonObject:
    """Return a workflow with the images that worker-comfyui's clients send along. Raises RequestRejected."""
    try:
        read = read_images(images)
    except SentImagesInvalid as refused:
        message = "; ".join([refused.message, *refused.details])[:1000]
        raise RequestRejected([Problem(message, field="input.images", type="images")]) from None
    return substitute_images(workflow, read) if read else workflow


def read_workflow(value: object, field: str, found_json: FoundJson) -> tuple[JsonObject, JsonObject]:
    """Return the workflow in a value, and the page's file beside it if there is one. Raises RequestRejected."""
    found = find_workflow(value, _reader_of(found_json))
    if found is not None:
        return found
    if isinstance(value, str) and not describe_known(value):
        try:
            return read_workflow(find_encoded_workflow(value, found_json.check), field, found_json)
        except NoWorkflow as error:
            name = field.removeprefix("input.")
            raise RequestRejected([Problem(f"{name} {error}", field, type="no_workflow")]) from None
    raise RequestRejected([not_a_workflow(value, field)])


def _reader_of(found_json: FoundJson) -> TextReader:
    """Return the parser of JSON texts that are within a body."""
    return lambda text: parse_text(text, found_json.limits)


def not_a_workflow(value: object, field: str) -> Problem:
    """Return the problem of a value that is no workflow, which names what it looks like."""
    name = field.removeprefix("input.")
    return Problem(f"{name}: is no workflow; got {describe(value)}, expected {EXPECTED}", field, type="no_workflow")
