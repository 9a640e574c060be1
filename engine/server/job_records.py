"""Prompts as ComfyUI's job records (`/api/jobs`): status, times, number of outputs, the one to show. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

from darkroom.contract.graph.spec import ValueDict
from darkroom.engine.server.history import HistoryEntry
from darkroom.engine.server.queue import QueuedPrompt

SHOWN_TEXT_CHARS = 1024
SHOWN_KINDS = frozenset({"images", "video", "audio", "3d", "text"})
MODEL_SUFFIXES = frozenset({".obj", ".fbx", ".gltf", ".glb", ".usdz"})
TEXT_SUFFIXES = frozenset({".txt", ".md", ".json"})
NO_FILES = "animated"  # a list of flags, one an image
START, FAILURE, INTERRUPTION = "execution_start", "execution_error", "execution_interrupted"
ENDS = frozenset({"execution_success", FAILURE, INTERRUPTION})


class JobStatus(StrEnum):
    """States of a prompt by ComfyUI's names."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


def waiting_record(item: QueuedPrompt, status: JobStatus) -> ValueDict:
    """Return the record of a prompt that waits or runs."""
    return _without_none({**_origin(item), "status": status.value, "outputs_count": 0})


def ended_status(entry: HistoryEntry) -> JobStatus:
    """Return the final status of a prompt."""
    if entry.status == "success":
        return JobStatus.COMPLETED
    was_interrupted = any(kind == INTERRUPTION for kind, _ in entry.messages)
    return JobStatus.CANCELLED if was_interrupted else JobStatus.FAILED


def ended_record(entry: HistoryEntry) -> ValueDict:
    """Return the record of a prompt that has ended, without its outputs and its graph."""
    messages = dict(entry.messages)
    end = next((data for kind, data in entry.messages if kind in ENDS), {})
    num_outputs, shown = summarise(entry.outputs)
    return _without_none(
        {
            **_origin(entry.item),
            "status": ended_status(entry).value,
            "execution_start_time": messages.get(START, {}).get("timestamp"),
            "execution_end_time": end.get("timestamp"),
            "execution_error": messages.get(FAILURE),
            "outputs_count": num_outputs,
            "preview_output": shown,
        }
    )


def full_record(entry: HistoryEntry) -> ValueDict:
    """Return the record of a prompt that has ended with its outputs, its messages and its graph."""
    whole = entry.as_json()
    _, _, prompt, extra_data, _ = whole["prompt"]
    return {
        **ended_record(entry),
        "outputs": {node_id: _with_files(output) for node_id, output in entry.outputs.items()},
        "execution_status": whole["status"],
        "workflow": {"prompt": prompt, "extra_data": extra_data},
    }


@dataclass(frozen=True, slots=True)
class _Output:
    """One thing that a node showed or saved. `value` is a file's description or a text's first characters."""

    value: ValueDict
    is_file: bool
    is_shown: bool
    is_text: bool


def summarise(outputs: Mapping[str, Any]) -> tuple[int, ValueDict | None]:
    """Return the number of files of a prompt, and the output that stands for it in lists.

    A saved image, video, audio or model goes before a temporary one, that before a saved text, that before a text
    that a node only showed.
    """
    found = list(_outputs(outputs))
    shown = [output for output in found if output.is_shown]
    ranks = (
        [output for output in shown if not output.is_text and output.value.get("type") == "output"],
        [output for output in shown if not output.is_text],
        [output for output in shown if output.is_file],
        shown,
    )
    first = next((rank[0].value for rank in ranks if rank), None)
    return sum(output.is_file for output in found), first


def _outputs(outputs: Mapping[str, Any]) -> Iterator[_Output]:
    for node_id, kind, items in _lists(outputs):
        for raw in items:
            item = _file_of(raw)
            if isinstance(item, Mapping):
                suffix = _suffix(item.get("filename"))
                is_text = kind == "text" or suffix in TEXT_SUFFIXES
                media = str(item.get("format") or "").partition("/")[0]
                is_shown = kind in SHOWN_KINDS or media in ("video", "audio") or is_text or suffix in MODEL_SUFFIXES
                yield _Output({"mediaType": kind, **item, "nodeId": node_id}, True, is_shown, is_text)
            elif kind == "text" and item is not None:
                text = str(item[0] if isinstance(item, (list, tuple)) and item else item)
                cut = {"truncated": True} if len(text) > SHOWN_TEXT_CHARS else {}
                value = {"content": text[:SHOWN_TEXT_CHARS], **cut, "nodeId": node_id, "mediaType": kind}
                yield _Output(value, False, True, True)


def _lists(outputs: Mapping[str, Any]) -> Iterator[tuple[str, str, Sequence[Any]]]:
    for node_id, output in outputs.items():
        if isinstance(output, Mapping):
            for kind, items in output.items():
                if kind != NO_FILES and isinstance(items, (list, tuple)):
                    yield node_id, kind, items


def _with_files(output: object) -> object:
    """Return a node's output with the names of 3D files as files, and without empty items."""
    if not isinstance(output, Mapping):
        return output
    return {
        kind: [_file_of(item) for item in items if item is not None]
        if kind != NO_FILES and isinstance(items, (list, tuple))
        else items
        for kind, items in output.items()
    }


def _file_of(item: object) -> Any:
    """Return the description of a 3D file that a node gave by its name alone; any other item as it is."""
    if isinstance(item, str) and _suffix(item) in MODEL_SUFFIXES:
        return {"filename": item, "type": "output", "subfolder": "", "mediaType": "3d"}
    return item


def _suffix(name: object) -> str:
    return PurePosixPath(name).suffix.lower() if isinstance(name, str) else ""


def _origin(item: QueuedPrompt) -> ValueDict:
    pnginfo = item.extra_data.get("extra_pnginfo")
    workflow = pnginfo.get("workflow") if isinstance(pnginfo, Mapping) else None
    return {
        "id": item.prompt_id,
        "priority": item.number,
        "create_time": item.extra_data.get("create_time"),
        "workflow_id": workflow.get("id") if isinstance(workflow, Mapping) else None,
    }


def _without_none(record: Mapping[str, Any]) -> ValueDict:
    return {key: value for key, value in record.items() if value is not None}


@dataclass(frozen=True, slots=True)
class JobQuery:
    """Selection of the records of a list, and their order. `limit` None means all."""

    statuses: frozenset[JobStatus]
    workflow_id: str | None
    sort_by: str
    is_descending: bool
    limit: int | None
    offset: int


def list_records(
    query: JobQuery,
    running: Iterable[QueuedPrompt],
    waiting: Iterable[QueuedPrompt],
    ended: Iterable[HistoryEntry],
) -> tuple[list[ValueDict], int]:
    """Return the records of a page, and how many there are on all pages together."""
    records = [
        *(waiting_record(item, JobStatus.IN_PROGRESS) for item in running if JobStatus.IN_PROGRESS in query.statuses),
        *(waiting_record(item, JobStatus.PENDING) for item in waiting if JobStatus.PENDING in query.statuses),
        *(ended_record(entry) for entry in ended if ended_status(entry) in query.statuses),
    ]
    if query.workflow_id:
        records = [record for record in records if record.get("workflow_id") == query.workflow_id]
    records.sort(
        key=_duration_ms if query.sort_by == "execution_duration" else _created_ms, reverse=query.is_descending
    )
    end = None if query.limit is None else query.offset + query.limit
    return records[query.offset : end], len(records)


def _created_ms(record: ValueDict) -> int:
    return int(record.get("create_time", 0))


def _duration_ms(record: ValueDict) -> int:
    start, end = record.get("execution_start_time"), record.get("execution_end_time")
    return end - start if start and end else 0
