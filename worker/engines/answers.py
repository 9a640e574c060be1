"""Engine answers as they are read: bounded, of the expected shape, and else an error that names the route. Pure.

An engine may be a program of others (`ENGINE_URL`), and a node pack runs inside ours: whatever an answer holds, it ends
nothing here, and it is never taken for a fault of the caller.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from darkroom.worker.errors import EngineAnswerInvalid, RequestRejected
from darkroom.worker.guard.json_scan import check_json
from darkroom.worker.json.values import WRONG_SHAPE, JsonObject
from darkroom.worker.settings.listener import JsonLimits
from darkroom.worker.settings.section import MIB

LIMITS: Final = JsonLimits(max_depth=200, max_elements=1_000_000, max_string_bytes=64 * MIB)
"""A prompt has up to 100 levels, history and queue hold prompts; /object_info of 5,000 classes has 400,000 values."""

MAX_SHOWN: Final = 60
PAIR: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
HALF_PAIR: Final = re.compile(rb"\\u[dD][89a-fA-F]")


def parse(route: str, body: bytes) -> Any:
    """Return the JSON value of an answer. Raises EngineAnswerInvalid."""
    try:
        check_json(body, LIMITS)
        value = json.loads(body)
        if HALF_PAIR.search(PAIR.sub(b"", body)):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except RequestRejected as rejected:
        raise invalid(route, rejected.problems[0].message) from None
    except RecursionError:
        raise invalid(route, "the JSON is nested too deeply") from None
    except UnicodeEncodeError:
        raise invalid(route, "a text with half a surrogate pair") from None
    except ValueError:
        shown = body[:MAX_SHOWN].decode(errors="replace")
        raise invalid(route, f"no JSON; got {shown!r}") from None


def parse_object(route: str, body: bytes) -> dict[str, Any]:
    """Return the JSON object of an answer. Raises EngineAnswerInvalid."""
    value = parse(route, body)
    if not isinstance(value, dict):
        raise invalid(route, f"got {_shown(value)}, expected an object")
    return value


def invalid(route: str, reason: str) -> EngineAnswerInvalid:
    """Return the error of an answer that cannot be used."""
    return EngineAnswerInvalid(f"{route}: the engine's answer is not valid: {reason}", route=route)


@contextlib.contextmanager
def reading(route: str) -> Iterator[None]:
    """Translate what a reader raises at values of a wrong shape. Raises EngineAnswerInvalid."""
    try:
        yield
    except WRONG_SHAPE as error:
        raise invalid(route, f"values of a wrong type ({type(error).__name__})") from None


def check_stats(route: str, stats: JsonObject) -> None:
    """Check the answer of `/system_stats`: facts of the system, and a list of devices. Raises EngineAnswerInvalid."""
    devices = stats.get("devices")
    if not isinstance(stats.get("system"), Mapping) or not isinstance(devices, list):
        raise invalid(route, "expected an object with `system` and `devices`")
    if not all(isinstance(device, Mapping) for device in devices):
        raise invalid(route, "devices: expected a list of objects")


def read_object_info(route: str, found: JsonObject) -> dict[str, Any]:
    """Return the node classes of `/object_info`, those parts that are not as ComfyUI writes them left empty.

    Raises EngineAnswerInvalid for an answer that lists no classes, or a class without inputs.
    """
    if not found:
        raise invalid(route, "no node classes; expected an object of node classes by name")
    for class_type, declared in found.items():
        if not isinstance(declared, Mapping) or not isinstance(declared.get("input"), Mapping):
            raise invalid(route, f"{class_type[:MAX_SHOWN]}: expected an object with `input`")
    return {class_type: _class_of(declared) for class_type, declared in found.items()}


def _class_of(declared: Any) -> dict[str, Any]:
    sections, output = declared["input"], declared.get("output")
    is_known = all(isinstance(section, Mapping) for section in sections.values())
    if is_known and isinstance(output, list):
        known: dict[str, Any] = declared
        return known
    kept = {name: section if isinstance(section, Mapping) else {} for name, section in sections.items()}
    return {**declared, "input": kept, "output": output if isinstance(output, list) else []}


def read_queue(route: str, queue: JsonObject) -> dict[str, list[list[Any]]]:
    """Return the running and waiting prompts of `/queue`, each a list of at least a number and an id.

    Raises EngineAnswerInvalid.
    """
    found = {}
    for place in ("queue_running", "queue_pending"):
        items = queue.get(place)
        if not isinstance(items, list) or not all(isinstance(item, list) and len(item) > 1 for item in items):
            raise invalid(route, f"{place}: expected a list of prompts")
        found[place] = items
    return found


def read_entry(route: str, history: JsonObject, prompt_id: str) -> JsonObject | None:
    """Return the entry of a prompt in a history, None without one. Raises EngineAnswerInvalid."""
    entry = history.get(prompt_id)
    if entry is None and history:
        raise invalid(route, f"an object without {prompt_id}")
    if entry is None:
        return None
    if not isinstance(entry, Mapping):
        raise invalid(route, f"{prompt_id}: got {_shown(entry)}, expected an object")
    outputs, status = entry.get("outputs"), entry.get("status")
    has_outputs = outputs is None or (isinstance(outputs, Mapping) and all(map(_is_object_or_none, outputs.values())))
    if not has_outputs or not _is_object_or_none(status):
        raise invalid(route, f"{prompt_id}: expected `outputs` and `status` to be objects")
    if outputs is not None and None in outputs.values():
        shown = {node_id: items for node_id, items in outputs.items() if items is not None}
        return {**entry, "outputs": shown}
    return entry


def _is_object_or_none(value: object) -> bool:
    return value is None or isinstance(value, Mapping)


def _shown(value: object) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
