"""Forms in which other tools save and send a workflow, and names of what is none. Pure.

A workflow is in API format (nodes by id, each with its `class_type`) or as ComfyUI's page saves it (`nodes`, `links`).
Tools put it into another object: ComfyUI's own client into `prompt`, its page's export function into `output` beside
the page's `workflow`, HTTP clients into `body`, `data` or `json`, some as JSON text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.prompts.workflows.page_graph import is_page_format

TextReader = Callable[[str], object]
"""Parser of a JSON text within the limits of bodies. Raises ValueError for what is no JSON."""

HOLDERS: Final = (
    *("workflow_json", "output", "prompt", "workflow_api", "workflowApi", "api_workflow", "comfyui_workflow"),
    *("comfy_workflow", "api_prompt", "prompt_json", "workflow", "graph"),
)
"""Fields that hold a workflow, the ones with the API format first."""

WRAPPERS: Final = ("input", "inputs", "body", "data", "json", "payload", "params", "extra_data", "extra_pnginfo")
"""Fields into which clients wrap a whole request."""

MAX_WRAPPINGS: Final = 5
MAX_SHOWN_FIELDS: Final = 6
EXPECTED: Final = (
    'a workflow in API format ({"1": {"class_type": ..., "inputs": {...}}, ...}), one that ComfyUI\'s page saved '
    '({"nodes": [...], "links": [...]}), or a file with one in base64'
)

RAW: Final = "send the file itself, as its Raw or Download link gives it"

_FIELDS_OF: Final[tuple[tuple[frozenset[str], str], ...]] = (
    (frozenset({"openapi", "paths"}), "an OpenAPI document"),
    (frozenset({"swagger", "paths"}), "an OpenAPI document"),
    (frozenset({"$schema", "properties"}), "a JSON schema"),
    (frozenset({"name", "version", "dependencies"}), "a package.json"),
    (frozenset({"name", "version", "scripts"}), "a package.json"),
    (frozenset({"name", "lockfileVersion"}), "a package-lock.json"),
    (frozenset({"nodes", "connections"}), "an n8n workflow"),
    (frozenset({"nodes", "edges", "exposedFields"}), "an InvokeAI workflow"),
    (frozenset({"nodes", "edges", "id"}), "an InvokeAI graph"),
    (frozenset({"nodes", "edges"}), "a graph of nodes and edges, as InvokeAI and React Flow have it"),
    (frozenset({"kind", "app", "workflow"}), "a Dify app"),
    (frozenset({"app", "workflow", "version"}), "a Dify app"),
    (frozenset({"sampler_name", "cfg_scale"}), "settings of AUTOMATIC1111's web UI"),
    (frozenset({"negative_prompt", "cfg_scale"}), "settings of AUTOMATIC1111's web UI"),
    (frozenset({"sd_model_checkpoint"}), "settings of AUTOMATIC1111's web UI"),
    (frozenset({"override_settings"}), "settings of AUTOMATIC1111's web UI"),
    (frozenset({"model", "messages"}), "a request of OpenAI's chat API"),
    (frozenset({"weight_map", "metadata"}), "the index of a checkpoint in parts"),
    (frozenset({"_class_name", "_diffusers_version"}), "the configuration of a diffusers model"),
    (frozenset({"architectures", "model_type"}), "the configuration of a transformers model"),
    (frozenset({"queue_running", "queue_pending"}), "ComfyUI's queue"),
    (frozenset({"exec_info"}), "ComfyUI's state"),
    (frozenset({"system", "devices"}), "ComfyUI's system statistics"),
    (frozenset({"prompt_id", "number", "node_errors"}), "ComfyUI's reply to a prompt"),
    (frozenset({"git_url", "html_url"}), f"a reply of GitHub's API; {RAW}"),
    (frozenset({"payload", "props"}), f"data of a web page; {RAW}"),
    (frozenset({"payload", "title"}), f"data of a web page; {RAW}"),
)
"""Names of objects by the fields that they all have; the first that fits holds."""

_PAGE: Final = re.compile(r"\s*(?:<!--.{0,200}?-->\s*)?<(?:!doctype|html|head|body|\?xml)", re.IGNORECASE | re.DOTALL)
_LFS: Final = re.compile(r"\s*version https://git-lfs\.github\.com/spec")


def is_workflow(value: object) -> bool:
    """Return True for a workflow in either format, whether or not it is a good one."""
    if not isinstance(value, Mapping) or not value:
        return False
    if is_page_format(value):
        return not any(fields <= value.keys() for fields, _ in _FIELDS_OF)
    nodes = [node for node in value.values() if isinstance(node, Mapping)]
    if any("class_type" in node for node in nodes):
        return True
    if len(nodes) < len(value) or not value.keys().isdisjoint((*HOLDERS, *WRAPPERS)):
        return False
    return all(isinstance(node.get("inputs"), Mapping) for node in nodes)


def find_workflow(value: object, read_text: TextReader) -> tuple[JsonObject, JsonObject] | None:
    """Return the workflow in a value, and the page's own file where it is beside a prompt; None if there is none.

    The value may be the workflow, a JSON text of it, or an object with it in a field that tools use for it.
    """
    return _found(value, read_text, MAX_WRAPPINGS)


def _found(value: object, read_text: TextReader, depth: int) -> tuple[JsonObject, JsonObject] | None:
    value = as_json(value, read_text)
    if is_workflow(value) and isinstance(value, Mapping):
        return value, {}
    if not isinstance(value, Mapping) or not depth:
        return None
    for name in (*HOLDERS, *WRAPPERS):
        inside = value.get(name)
        found = _found(inside, read_text, depth - 1) if isinstance(inside, Mapping | str) and inside else None
        if found is not None:
            workflow, page = found
            return workflow, page or _page_beside(value, workflow, read_text)
    return None


def _page_beside(value: JsonObject, workflow: JsonObject, read_text: TextReader) -> JsonObject:
    """Return the page's file that an object holds beside a prompt, as ComfyUI's files and its client have it."""
    if is_page_format(workflow):
        return {}
    for held in (value.get("workflow"), object_at(value, "extra_data", "extra_pnginfo").get("workflow")):
        page = as_json(held, read_text)
        if isinstance(page, Mapping) and is_page_format(page):
            return page
    return {}


def as_json(value: object, read_text: TextReader) -> object:
    """Return the value of a JSON text of an object, any other value as it is."""
    if not isinstance(value, str) or not value.lstrip("\ufeff \t\r\n").startswith("{"):
        return value
    try:
        return read_text(value.lstrip("\ufeff \t\r\n"))
    except ValueError:
        return value


def describe(value: object) -> str:
    """Return a name for a value that is no workflow, of the thing that it looks like where it is a known one."""
    known = describe_known(value)
    if known:
        return known
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "a number"
        case str():
            return f"the text {value[:40]!r}" + ("..." if len(value) > 40 else "") if value else "an empty text"
        case list():
            return f"a list of {len(value)}" if value else "an empty list"
        case Mapping():
            names = [str(name)[:40] for name in list(value)[:MAX_SHOWN_FIELDS]]
            more = ", ..." if len(value) > MAX_SHOWN_FIELDS else ""
            return f"an object with {', '.join(names)}{more}, none of them a node" if names else "an empty object"
    return "something else"


def describe_known(value: object) -> str | None:
    """Return the name of a known kind of file or message that is no workflow, or None."""
    if isinstance(value, str):
        if _PAGE.match(value[:400]):
            return f"a web page; {RAW}"
        return "a pointer of Git LFS, not its file" if _LFS.match(value[:100]) else None
    if isinstance(value, list):
        is_drawing = any(isinstance(item, Mapping) and {"id", "type", "wires"} <= item.keys() for item in value[:5])
        return "a flow of Node-RED" if is_drawing else None
    if not isinstance(value, Mapping):
        return None
    for fields, name in _FIELDS_OF:
        if fields <= value.keys():
            return name
    first: Any = next(iter(value.values()), None)
    if isinstance(first, Mapping):
        if {"input", "output", "category"} <= first.keys():
            return "ComfyUI's list of node classes (object_info)"
        if {"prompt", "outputs", "status"} <= first.keys():
            return "an entry of ComfyUI's history; its prompt is the third item of `prompt`"
    return None
