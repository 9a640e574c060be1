"""Requests and replies in the format of OpenAI's images API, translated to and from ours. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from darkroom.worker.errors import Problem, RequestRejected, TryLater, WorkerError, http_status
from darkroom.worker.json.values import JsonObject

MAX_IMAGES: Final = 10
MAX_INPUT_IMAGES: Final = 3
SIZE: Final = re.compile(r"(\d{2,5})x(\d{2,5})")
FOREIGN_MODELS: Final = re.compile(r"(dall-e|gpt-image|chatgpt-image)-.*|auto|default|")
"""Names of OpenAI's own models, which programs send as their default: drawn by this worker's."""

FORMATS: Final = ("png", "jpeg", "webp")
DRAW, REDRAW, PAINT, EDIT = "Text2Image", "Image2Image", "Inpaint", "Edit"
OWN: Final = frozenset(
    {"model", "n", "size", "quality", "response_format", "output_format", "output_compression", "background", "user"}
    | {"prompt", "style", "moderation", "stream", "partial_images", "input_fidelity", "safety_identifier"}
)
"""Fields of the format; any other is a parameter of the modifier."""


@dataclass(frozen=True, slots=True)
class Order:
    """A request that has been read: inputs of jobs, one an image, and the form of the reply."""

    inputs: Sequence[dict[str, Any]]
    has_links: bool
    output_format: str | None
    size: str | None
    is_streamed: bool
    event: str


def read_order(
    fields: JsonObject,
    modifiers: Sequence[str],
    checkpoints: Sequence[str],
    images: Sequence[bytes] | None = None,
    mask: bytes | None = None,
) -> Order:
    """Return the order of a request; `images` are those of an edit, None for a generation. Raises RequestRejected."""
    problems: list[Problem] = []
    prompt = fields.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        problems.append(Problem("prompt: expected a text", "prompt"))
    if images is not None and not 1 <= len(images) <= MAX_INPUT_IMAGES:
        problems.append(Problem(f"image: got {len(images)}, expected 1 to {MAX_INPUT_IMAGES}", "image"))
    count = _integer(fields, "n", 1, 1, MAX_IMAGES, problems)
    quality = _integer(fields, "output_compression", None, 0, 100, problems)
    output_format = _choice(fields, "output_format", FORMATS, problems)
    answer = _choice(fields, "response_format", ("url", "b64_json"), problems)
    modifier, settings = _model(fields.get("model"), modifiers, checkpoints, _task(images, mask), problems)
    width_height = _size(fields.get("size"), problems) if images is None else {}
    if fields.get("background") == "transparent":
        problems.append(Problem("background: transparent is not drawn; expected opaque or auto", "background"))
    if problems:
        raise RequestRejected(problems)
    own = {name: value for name, value in fields.items() if name not in OWN and value is not None}
    modifications = {"prompt": prompt, **settings, **width_height, **_encoded(modifier, images, mask), **own}
    has_links = answer == "url"
    output: dict[str, object] = {} if output_format is None else {"format": output_format}
    if quality is not None and output_format in ("jpeg", "webp"):
        output["quality"] = max(1, quality)
    base = {"modifier": modifier, "return_outputs_as_base64": not has_links, **({"output": output} if output else {})}
    inputs = [{**base, "modifications": _with_seed(modifications, index)} for index in range(count or 1)]
    shown = f"{width_height['width']}x{width_height['height']}" if width_height else None
    is_streamed = str(fields.get("stream")).lower() == "true"
    event = "image_generation" if images is None else "image_edit"
    return Order(inputs, has_links, output_format, shown, is_streamed, event)


def reply_of(images: Sequence[JsonObject], order: Order, created: int) -> dict[str, Any]:
    """Return the reply of a request; `images` are the public output records of its jobs."""
    reply: dict[str, Any] = {"created": created, "data": [image_of(record, order) for record in images]}
    named = {"output_format": order.output_format, "size": order.size}
    return reply | {name: value for name, value in named.items() if value is not None}


def image_of(record: JsonObject, order: Order) -> dict[str, Any]:
    """Return the entry of one image: its link, or its data in base64."""
    return {"url": record.get("url")} if order.has_links else {"b64_json": record.get("data")}


def error_of(error: WorkerError) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Return the status, the body and the headers of a refusal."""
    status = http_status(type(error))
    problem = error.problems[0] if isinstance(error, RequestRejected) else None
    headers = {}
    if isinstance(error, TryLater):
        headers = {"Retry-After": str(max(1, round(error.retry_after_seconds)))}
    return _status(status), error_body(status, error.code, error.message, problem), headers


def error_body(status: int, code: str, message: str, problem: Problem | None = None) -> dict[str, Any]:
    """Return the body of an error; `problem` names the parameter."""
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    field = None if problem is None or problem.field is None else problem.field.removeprefix("input.modifications.")
    code = (problem.type if problem is not None and problem.type == "model_not_found" else None) or code
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}


def _status(status: int) -> int:
    return 400 if status == 422 else status


def _task(images: Sequence[bytes] | None, mask: bytes | None) -> str:
    """Return the modifier for what was sent."""
    if images is None:
        return DRAW
    return PAINT if mask is not None else EDIT if len(images) > 1 else REDRAW


def _model(
    given: object, modifiers: Sequence[str], checkpoints: Sequence[str], task: str, problems: list[Problem]
) -> tuple[str, dict[str, Any]]:
    """Return the modifier that a model's name means, and its parameters."""
    name = given if isinstance(given, str) else ""
    if name in modifiers:
        return name, {}
    if name in checkpoints:
        return task, {"ckpt_name": name}
    if not FOREIGN_MODELS.fullmatch(name):
        allowed = [*modifiers, *checkpoints]
        message = f"model: {name[:200]!r} is none of the worker's modifiers and checkpoints"
        problems.append(Problem(message, "model", type="model_not_found", allowed=allowed))
    return task, {}


def _encoded(modifier: str, images: Sequence[bytes] | None, mask: bytes | None) -> dict[str, Any]:
    names = ("input_image", "input_image_2", "input_image_3")
    found: dict[str, Any] = {
        name: base64.b64encode(image).decode() for name, image in zip(names, images or (), strict=False)
    }
    if mask is not None:
        found["mask_image"] = base64.b64encode(mask).decode()
        if modifier == PAINT:
            found["mask_channel"] = "alpha"  # the format's masks are transparent where the image is to change
    return found


def _with_seed(modifications: Mapping[str, Any], index: int) -> dict[str, Any]:
    seed = modifications.get("seed")
    return {**modifications, "seed": seed + index} if isinstance(seed, int) and index else dict(modifications)


def _size(given: object, problems: list[Problem]) -> dict[str, int]:
    if given in (None, "", "auto"):
        return {}
    found = SIZE.fullmatch(str(given))
    if found is None:
        problems.append(Problem(f"size: got {str(given)[:40]!r}, expected WIDTHxHEIGHT such as 1024x1024", "size"))
        return {}
    return {"width": int(found[1]), "height": int(found[2])}


def _choice(fields: JsonObject, name: str, allowed: Sequence[str], problems: list[Problem]) -> str | None:
    value = fields.get(name)
    if value in (None, ""):
        return None
    if value not in allowed:
        problems.append(Problem(f"{name}: got {str(value)[:40]!r}, expected {' or '.join(allowed)}", name))
        return None
    return str(value)


def _integer(
    fields: JsonObject, name: str, default: int | None, least: int, most: int, problems: list[Problem]
) -> int | None:
    value = fields.get(name)
    if value in (None, ""):
        return default
    is_text = isinstance(value, str) and value.isdecimal() and len(value) < 10
    number = int(value) if is_text and isinstance(value, str) else value
    if isinstance(number, int) and not isinstance(number, bool) and least <= number <= most:
        return number
    problems.append(Problem(f"{name}: got {str(value)[:40]!r}, expected a number from {least} to {most}", name))
    return default
