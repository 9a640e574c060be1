"""Jobs, records and refusals in the format of Comfy Cloud's first API, which is ComfyUI's own below `/api`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from darkroom.worker.api.request_forms import partner_keys_in, read_workflow
from darkroom.worker.errors import Problem, RequestRejected, TryLater, WorkerError, http_status
from darkroom.worker.guard.json_scan import FoundJson
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.storage.job import Job, JobState

STATUSES: Final[Mapping[JobState, str]] = {
    JobState.PENDING: "pending",
    JobState.PROCESSING: "pending",
    JobState.GENERATING: "in_progress",
    JobState.GENERATED: "in_progress",
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.TIMEOUT: "failed",
    JobState.CANCELLED: "cancelled",
}
MAX_NAME_LENGTH: Final = 250
UPLOADS: Final = ("image", "video", "audio", "animated_image", "file")
"""Kinds of files in the options of inputs that take an upload, such as `image_upload`."""


def error_of(error: WorkerError) -> tuple[int, JsonObject, dict[str, str]]:
    """Return the status, the body and the headers of a refusal, as ComfyUI's `POST /prompt` refuses."""
    status, headers = http_status(type(error)), {}
    node_errors: JsonObject = {}
    kind = error.code
    if isinstance(error, RequestRejected):
        status, node_errors = 400, _node_errors(error.problems)
        kind = "prompt_outputs_failed_validation" if node_errors else error.code
    elif isinstance(error, TryLater):
        headers = {"Retry-After": str(max(1, round(error.retry_after_seconds)))}
    return status, {"error": _entry(kind, error.message, ""), "node_errors": node_errors}, headers


def shown_job(job: Job, num_outputs: int) -> dict[str, object]:
    """Return a job as the list has it."""
    times = job.times
    begun_ms = times.queued_at_ms + (times.preprocess_ms or 0) + (times.wait_ms or 0)
    has_begun = STATUSES[job.state] != "pending" and times.wait_ms is not None
    return {
        "id": job.public_id,
        "status": STATUSES[job.state],
        "create_time": times.queued_at_ms,
        "execution_start_time": begun_ms if has_begun else None,
        "execution_end_time": times.completed_at_ms,
        "outputs_count": num_outputs,
        "execution_error": _execution_error(job),
    }


def shown_record(job: Job, records: Sequence[JsonObject]) -> JsonObject:
    """Return the history record of an ended job; `records` are its public outputs."""
    is_good, error = job.state is JobState.COMPLETED, _execution_error(job)
    return {
        "outputs": shown_outputs(job, records),
        "status": {"status_str": "success" if is_good else "error", "completed": is_good, "messages": []},
        **({} if error is None else {"error_message": error["exception_message"]}),
    }


def shown_outputs(job: Job, records: Sequence[JsonObject]) -> dict[str, dict[str, list[object]]]:
    """Return outputs by node and list. The `subfolder` of a file leads to this very output of this very job."""
    shown: dict[str, dict[str, list[object]]] = {}
    for index, record in enumerate(records):
        listed = shown.setdefault(str(record.get("node_id")), {}).setdefault(str(record.get("output_type")), [])
        if "url" in record:
            listed.append({"filename": record.get("filename"), "subfolder": place_of(job, index), "type": "output"})
        else:
            listed.append(record.get("text", record.get("value")))
    return shown


def place_of(job: Job, index: int) -> str:
    """Return the subfolder that stands for an output of a job."""
    return f"{job.public_id}/{index}"


def read_place(subfolder: str) -> tuple[str, int] | None:
    """Return the job id and the index in a subfolder; None for any other."""
    job_id, mark, index = subfolder.rpartition("/")
    return (job_id, int(index)) if mark and job_id and index.isdecimal() and len(index) < 6 else None


def read_prompt(body: JsonObject, found_json: FoundJson) -> dict[str, dict[str, object]]:
    """Return the `input` object for a body of `POST /prompt`, in other tools' forms, too. Raises RequestRejected."""
    extra = object_at(body, "extra_data", "extra_pnginfo")
    prompt, page = read_workflow(body["prompt"] if body.get("prompt") is not None else body, "prompt", found_json)
    if not extra and page:
        extra = {"workflow": page}
    kept = partner_keys_in(body.get("extra_data")) | ({"extra_pnginfo": dict(extra)} if extra else {})
    return {"workflow_json": dict(prompt), **({"extra_data": kept} if kept else {})}


def file_names(prompt: JsonObject) -> set[str]:
    """Return the texts of a prompt that may name an uploaded file."""
    return {text for _, _, text in _texts(prompt) if PurePosixPath(text).suffix and len(text) <= MAX_NAME_LENGTH}


def with_references(prompt: JsonObject, references: Mapping[str, str]) -> dict[str, object]:
    """Return a prompt with references in place of the names that `references` has."""
    changed = dict(prompt)
    for node_id, name, text in _texts(prompt):
        if text in references:
            node = object_at(changed, node_id)
            changed[node_id] = {**node, "inputs": {**object_at(node, "inputs"), name: references[text]}}
    return changed


def with_own_files(object_info: JsonObject, names: Sequence[str]) -> dict[str, object]:
    """Return node classes with `names` as the choices of their inputs for uploaded files, which are every caller's."""
    return {name: _with_own_files(declared, names) for name, declared in object_info.items()}


def _with_own_files(declared: object, names: Sequence[str]) -> object:
    groups = object_at(declared, "input")
    if not any(_takes_upload(spec) for kind in groups for spec in object_at(groups, kind).values()):
        return declared
    shown = {
        kind: {name: _own_choices(spec, names) for name, spec in object_at(groups, kind).items()} for kind in groups
    }
    return {**object_at(declared), "input": shown}


def _own_choices(spec: object, names: Sequence[str]) -> object:
    if not (_takes_upload(spec) and isinstance(spec, Sequence)):
        return spec
    if isinstance(spec[0], list):
        return [list(names), *spec[1:]]
    return [spec[0], {**spec[1], "options": list(names)}]


def _takes_upload(spec: object) -> bool:
    options = object_at(spec[1]) if isinstance(spec, Sequence) and len(spec) > 1 else {}
    return any(options.get(f"{kind}_upload") for kind in UPLOADS)


def _texts(prompt: JsonObject) -> Iterator[tuple[str, str, str]]:
    for node_id in prompt:
        for name, value in object_at(prompt, node_id, "inputs").items():
            if isinstance(value, str):
                yield node_id, name, value


def _node_errors(problems: Sequence[Problem]) -> JsonObject:
    found: dict[str, Any] = {}
    for problem in problems:
        if problem.node_id is not None:
            node: dict[str, Any] = {"errors": [], "dependent_outputs": [], "class_type": problem.class_type}
            entry = _entry(problem.type or "invalid", problem.message, problem.field or "")
            found.setdefault(problem.node_id, node)["errors"].append(entry)
    return found


def _entry(kind: str, message: str, details: str) -> JsonObject:
    return {"type": kind, "message": message, "details": details, "extra_info": {}}


def _execution_error(job: Job) -> JsonObject | None:
    failure = job.failure
    if failure is None or job.state is JobState.CANCELLED:
        return None
    return {
        "node_id": failure.fields.get("node_id"),
        "node_type": failure.fields.get("class_type"),
        "exception_type": failure.code,
        "exception_message": failure.message,
    }
