"""Jobs, assets and errors in the format of the Comfy API v2. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from darkroom.worker.errors import (
    AssetNotFound,
    Forbidden,
    HashMismatch,
    JobNotFound,
    QueueFull,
    RequestIdConflict,
    RequestRejected,
    RequestTooLarge,
    TryLater,
    Unauthorized,
    WorkerError,
    http_status,
)
from darkroom.worker.json.values import JsonObject
from darkroom.worker.media.facts import MEDIA_FACTS
from darkroom.worker.storage.asset_store import HASH_PREFIX, Asset
from darkroom.worker.storage.job import Job, JobState
from darkroom.worker.storage.job_labels import labels_of

BASE: Final = "/api/v2"
STATUSES: Final[Mapping[JobState, str]] = {
    JobState.PENDING: "queued",
    JobState.PROCESSING: "queued",
    JobState.GENERATING: "running",
    JobState.GENERATED: "running",
    JobState.COMPLETED: "succeeded",
    JobState.FAILED: "failed",
    JobState.TIMEOUT: "failed",
    JobState.CANCELLED: "canceled",
}
CODES: Final[Mapping[type[WorkerError], str]] = {
    RequestRejected: "invalid_workflow",
    RequestIdConflict: "idempotency_key_reuse",
    JobNotFound: "not_found",
    AssetNotFound: "not_found",
    HashMismatch: "hash_mismatch",
    Unauthorized: "unauthorized",
    Forbidden: "forbidden",
    QueueFull: "queue_full",
    RequestTooLarge: "request_too_large",
}
OWN_CODES: Final = frozenset({"missing_asset", "metadata_invalid", "invalid_metadata_filter", "invalid_cursor"})
"""Types of problems that are the code of the whole refusal."""
KINDS: Final = ("image", "video", "audio", "text")


def error_of(error: WorkerError) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Return the status, the body and the headers of a refusal."""
    status, headers = http_status(type(error)), {}
    code = next((CODES[base] for base in type(error).__mro__ if base in CODES), error.code)
    details: dict[str, Any] = {}
    if isinstance(error, RequestRejected):
        details = {"node_errors": _node_errors(error), "problems": error.fields.get("problems", [])}
        code = next((problem.type for problem in error.problems if problem.type in OWN_CODES), code)
    elif isinstance(error, RequestIdConflict):
        status = 422
    elif isinstance(error, TryLater):
        status, headers = 429, {"Retry-After": str(max(1, round(error.retry_after_seconds)))}
    entry = {"code": code, "message": error.message, **({"details": details} if details else {})}
    return status, {"error": entry}, headers


def _node_errors(error: RequestRejected) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for problem in error.problems:
        if problem.node_id is not None:
            entry = {"field": problem.field, "reason": problem.type, "message": problem.message}
            found.setdefault(problem.node_id, []).append(entry)
    return found


def shown_asset(asset: Asset, base: str, now: float, ttl_seconds: float, created_new: bool | None = None) -> JsonObject:
    """Return an asset; `base` is the URL of the worker, `now` in epoch seconds."""
    shown: dict[str, Any] = {
        "id": asset.id,
        "hash": f"{HASH_PREFIX}{asset.hash}",
        "size_bytes": asset.size_bytes,
        "content_type": asset.content_type,
        "file_path": asset.file_path,
        "created_at": moment(asset.created_ms),
        "url": f"{base}{BASE}/assets/{asset.id}/content",
        "url_expires_at": moment(int((now + ttl_seconds) * 1000)),
        "expires_at": moment(int(max(asset.used_ms, now * 1000) + ttl_seconds * 1000)),
    }
    return shown if created_new is None else {**shown, "created_new": created_new}


def shown_job(
    job: Job,
    outputs: Sequence[JsonObject],
    position: int | None,
    ttl_seconds: float,
) -> dict[str, Any]:
    """Return a job with its outputs in the form of `shown_outputs`."""
    times, path = job.times, f"{BASE}/jobs/{job.public_id}"
    begun_ms = times.queued_at_ms + (times.preprocess_ms or 0) + (times.wait_ms or 0)
    has_begun = STATUSES[job.state] != "queued" and times.wait_ms is not None
    until_ms = (times.completed_at_ms or times.queued_at_ms) + int(ttl_seconds * 1000)
    return {
        "id": job.public_id,
        "status": status_of(job),
        "created_at": moment(times.queued_at_ms),
        "started_at": moment(begun_ms) if has_begun else None,
        "completed_at": None if times.completed_at_ms is None else moment(times.completed_at_ms),
        "expires_at": moment(until_ms),
        "queue_position": position,
        "progress": shown_progress(job),
        "outputs": list(outputs),
        "error": _failure(job),
        "metadata": labels_of(job.metadata),
        "metrics": {"queue_ms": times.wait_ms, "execution_ms": times.generation_ms},
        "urls": {"self": path, "events": f"{path}/events", "cancel": f"{path}/cancel"},
    }


def status_of(job: Job) -> str:
    """Return the status of a job in the format's words."""
    return STATUSES[job.state]


def shown_progress(job: Job) -> dict[str, Any]:
    """Return the snapshot of a job's progress."""
    progress, has_steps = job.progress, job.progress.maximum > 1
    return {
        "value": 1.0 if job.state is JobState.COMPLETED else min(1.0, progress.percent / 100.0),
        "nodes_done": progress.num_done,
        "nodes_total": progress.num_nodes,
        "current_node": progress.node_id,
        "current_node_class": progress.node_class,
        "step": int(progress.value) if has_steps else None,
        "steps": int(progress.maximum) if has_steps else None,
        "message": job.message,
    }


def shown_outputs(job: Job, records: Sequence[JsonObject], base: str, ttl_seconds: float) -> list[dict[str, Any]]:
    """Return the outputs of an ended job; `records` are its public ones, in the order of the stored ones."""
    until = moment((job.times.completed_at_ms or job.times.queued_at_ms) + int(ttl_seconds * 1000))
    shown = []
    for index, (stored, record) in enumerate(zip(job.outputs, records, strict=True)):
        text, asset_id = record.get("text"), output_id(job, index)
        kind = "text/plain" if isinstance(text, str) else str(stored.get("media_type") or "application/octet-stream")
        if "url" not in record and not isinstance(text, str):
            continue  # a value that a node shows
        shown.append(
            {
                "node_id": str(record.get("node_id")),
                "name": str(record.get("filename") or f"{asset_id}.txt"),
                "type": _kind_of(kind, str(record.get("output_type"))),
                "content_type": kind,
                "size_bytes": len(text.encode()) if isinstance(text, str) else stored.get("size_bytes") or 0,
                "id": asset_id,
                "hash": None,
                "url": record.get("url") or f"{base}{BASE}/assets/{asset_id}/content",
                "url_expires_at": until,
                "job_id": job.public_id,
                **{name: record[name] for name in MEDIA_FACTS if name in record},
            }
        )
    return shown


def output_id(job: Job, index: int) -> str:
    """Return the id under which an output of a job is an asset."""
    return f"{job.public_id}~{index}"


def read_output_id(asset_id: str) -> tuple[str, int] | None:
    """Return the job id and the index in an output's id; None for any other."""
    job_id, mark, index = asset_id.rpartition("~")
    return (job_id, int(index)) if mark and job_id and index.isdecimal() and len(index) < 6 else None


def moment(epoch_ms: int) -> str:
    """Return a time in ISO 8601 and UTC."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _kind_of(content_type: str, output_type: str) -> str:
    if output_type.startswith("latent"):
        return "latent"
    return next((kind for kind in KINDS if content_type.startswith(f"{kind}/")), "file")


def _failure(job: Job) -> dict[str, Any] | None:
    failure = job.failure
    if failure is None or job.state is JobState.CANCELLED:
        return None
    code = "node_execution_error" if failure.code == "node_failed" else failure.code
    named = {name: failure.fields.get(name) for name in ("node_id", "class_type")}
    return {"code": code, "message": failure.message, **named}
