"""Outcome of a prompt, read from the engine's history entry. Pure.

It alone distinguishes failures inside the engine that are the caller's: a model file that is no model, an image that
is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from darkroom.contract.graph.explain import SUMMARY_TYPE
from darkroom.contract.graph.object_info import read_input
from darkroom.contract.wire import CONTINUED_BY, PARTNER_KEYS
from darkroom.worker.engines.hidden_folders import without_folders
from darkroom.worker.errors import DeviceLost, NodeFailed, OutOfMemory, Problem, RequestRejected, WorkerError

TUNING_USED = "tuning_used"
NODE_WARNING = "node_warning"
MAX_WARNINGS = 50  # of one run
OUT_OF_MEMORY_TYPES = frozenset({"OutOfMemoryError", "OutOfMemory", "out_of_memory", "MemoryError"})
DEVICE_LOST_TYPES = frozenset({"DeviceLost", "device_lost"})
OUT_OF_MEMORY_WORDS = ("out of memory", "can't allocate memory", "not enough memory")
LOST_DEVICE_WORDS = (
    "CUDA error: an illegal memory access", "CUDA error: device-side assert", "CUDA error: unspecified launch failure",
    "CUDA error: misaligned address", "CUDA error: uncorrectable ECC error", "CUDA error: unknown error",
    "GPU has fallen off the bus", "CUDA error: the launch timed out",
)  # fmt: skip
"""Messages of torch in an engine that is not ours: they have no type of their own."""
CALLER_TYPES = frozenset(
    {
        *("SafetensorError", "BadModelFile", "bad_model_file", "BadInputFile", "bad_input_file", "foreign_file"),
        *("BadMedia", "NoAudio"),
        *("UnidentifiedImageError", "PictureTooLarge", "PromptTooDeep", "bad_file_name"),
    }
)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Outcome of a run: success, `was_interrupted` or `error`. `outputs`: items to show by node id.

    `tuning` is the quality, the strategies that an engine of ours used for it, and their measured error. `continued_by`
    are the prompts that the run's nodes queued in an engine of ours. `warnings` say what its nodes left out, in the
    form of a problem.
    """

    outputs: Mapping[str, Mapping[str, Any]]
    entry: Mapping[str, Any]
    was_interrupted: bool = False
    error: WorkerError | None = None
    tuning: Mapping[str, Any] = field(default_factory=dict)
    continued_by: tuple[str, ...] = ()
    warnings: tuple[Mapping[str, Any], ...] = ()


def read_outcome(entry: Mapping[str, Any], hidden: Sequence[str] = ()) -> RunOutcome:
    """Parse a history entry.

    `entry` is the value under the prompt's id in `GET /history/{id}`; `hidden` are folders that no error may name.
    """
    entry = _without_secrets(entry)
    outputs = entry.get("outputs") or {}
    status = entry.get("status") or {}
    messages = status.get("messages") or []
    warnings = _warnings_of(messages, hidden)
    if status.get("status_str", "success") == "success":
        continued_by = tuple(map(str, entry.get(CONTINUED_BY) or ()))
        return RunOutcome(outputs, entry, tuning=_tuning_of(messages), continued_by=continued_by, warnings=warnings)
    for name, data in reversed(messages):
        if name == "execution_interrupted":
            return RunOutcome(outputs, entry, was_interrupted=True)
        if name == "execution_error":
            return RunOutcome(outputs, entry, error=error_of(data, hidden), warnings=warnings)
    unknown = NodeFailed("The engine reported an error without a message")
    return RunOutcome(outputs, entry, error=unknown, warnings=warnings)


def _without_secrets(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an entry whose prompt's extra data has no partner's keys, which an older ComfyUI repeats."""
    prompt = entry.get("prompt")
    if not isinstance(prompt, list) or not any(isinstance(part, Mapping) and _has_secrets(part) for part in prompt):
        return entry
    kept = [
        {name: value for name, value in part.items() if name not in PARTNER_KEYS} if isinstance(part, Mapping) else part
        for part in prompt
    ]
    return {**entry, "prompt": kept}


def _has_secrets(extra_data: Mapping[str, Any]) -> bool:
    return any(name in extra_data for name in PARTNER_KEYS)


def _tuning_of(messages: Any) -> dict[str, Any]:
    """Return the data of the engine's message `tuning_used`, without the prompt's id; empty without one."""
    found: Mapping[str, Any] = next((data for name, data in messages if name == TUNING_USED), {})
    return {key: value for key, value in found.items() if key not in ("prompt_id", "timestamp")}


def _warnings_of(messages: Any, hidden: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Return the engine's messages `node_warning`, in the form of a problem."""
    told = [data for name, data in messages if name == NODE_WARNING]
    return tuple(
        {
            "type": str(data.get("type") or NODE_WARNING),
            "message": without_folders(str(data.get("message") or ""), hidden),
            "node_id": str(data.get("node_id")),
            "class_type": data.get("node_type"),
        }
        for data in told[:MAX_WARNINGS]
    )


def error_of(data: Mapping[str, Any], hidden: Sequence[str] = ()) -> WorkerError:
    """Return our error for the data of an `execution_error` message."""
    kind = str(data.get("exception_type") or "")
    names = {kind.rsplit(".", 1)[-1], str(data.get("code") or "")}
    message = without_folders(str(data.get("exception_message") or kind).strip(), hidden)
    where = {"node_id": data.get("node_id"), "class_type": data.get("node_type")}
    if names & CALLER_TYPES:
        problem = Problem(message, node_id=str(where["node_id"]), class_type=where["class_type"], type=kind)
        return RequestRejected([problem])
    if names & DEVICE_LOST_TYPES or any(words in message for words in LOST_DEVICE_WORDS):
        return DeviceLost(f"{where['class_type']} (node {where['node_id']}): {message}", **where, error_type=kind)
    if names & OUT_OF_MEMORY_TYPES or any(words in message.lower() for words in OUT_OF_MEMORY_WORDS):
        short = f"{where['class_type']} (node {where['node_id']}): out of memory"
        return OutOfMemory(short, **where, error_type=kind, details=message)
    return NodeFailed(f"{where['class_type']} (node {where['node_id']}): {message}", **where, error_type=kind)


def problems_of_rejection(body: Mapping[str, Any]) -> list[Problem]:
    """Return every problem in the body of a 400: `error` and `node_errors`."""
    problems: list[Problem] = []
    for node_id, entry in (body.get("node_errors") or {}).items():
        for error in entry.get("errors") or []:
            problems.append(_node_problem(str(node_id), entry.get("class_type"), error))
    error = body.get("error")
    if isinstance(error, str) and error:
        return [Problem(error, field="workflow_json"), *problems]
    # Our engine's check lists all that is wrong with the prompt itself, ComfyUI's 400 has one thing.
    about_prompt = body.get("errors") or ([error] if isinstance(error, Mapping) else [])
    of_prompt = [_prompt_problem(item) for item in about_prompt if not problems or item.get("type") != SUMMARY_TYPE]
    return [*of_prompt, *problems]


def _prompt_problem(error: Mapping[str, Any]) -> Problem:
    extra = error.get("extra_info") or {}
    details = error.get("details") or ""
    message = str(error.get("message") or "The workflow is not valid")
    node_id = extra.get("node_id") or _named_node(details)
    return Problem(
        f"{message}: {details}" if details and details not in message else message,
        field=None if node_id else "workflow_json",
        node_id=node_id,
        class_type=extra.get("class_type"),
        type=error.get("type"),
    )


def _named_node(details: str) -> str | None:
    """Return the node that a message names: ComfyUI reports an unknown class in its text only."""
    found = re.search(r"Node ID '#(.+)'", details)
    return found[1] if found else None


def _node_problem(node_id: str, class_type: str | None, error: Mapping[str, Any]) -> Problem:
    extra = error.get("extra_info") or {}
    details = error.get("details") or ""
    message = str(error.get("message") or error.get("type") or "not valid")
    received = {"received": extra["received_value"]} if "received_value" in extra else None
    return Problem(
        f"{message}: {details}" if details else message,
        field=extra.get("input_name"),
        node_id=node_id,
        class_type=class_type,
        type=error.get("type"),
        allowed=allowed_by(extra.get("input_config")),
        extra=received,
    )


def allowed_by(input_config: Any) -> Any:
    """Return the values that an input's declaration allows, in short: its choices, or its type and range."""
    if not isinstance(input_config, list | tuple) or not input_config:
        return None
    return read_input("", input_config).allowed()
