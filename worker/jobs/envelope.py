"""Envelope of a result, as every generate route, `/result` and a webhook have it. Pure."""

from __future__ import annotations

from typing import Any

from darkroom.worker.json.values import JsonObject
from darkroom.worker.storage.job import SPLIT, Job


def result_of(job: Job, outputs: list[dict[str, object]]) -> dict[str, object]:
    """Return the result envelope of a job; `outputs` are its public records."""
    shown: dict[str, Any] = {
        "id": job.public_id,
        "message": job.message,
        "status": job.state.value,
        "comfyui_response": dict(job.engine_response),
        "output": outputs,
        "timings": job.times.as_json(),
    }
    if job.metadata:
        shown["metadata"] = dict(job.metadata)
    if job.request.warnings:
        shown["warnings"] = [dict(warning) for warning in job.request.warnings]
    if job.request.parameters:
        shown["parameters"] = dict(job.request.parameters)
    tuning = dict(job.tuning)
    split = tuning.pop(SPLIT, None)
    if tuning:
        shown["tuning"] = tuning
    if split is not None:
        shown["split"] = split
    if job.request.engine:
        shown["engine"] = {"name": job.request.engine, "reason": job.request.engine_reason}
    if job.failure is not None:
        shown["error"] = job.failure.as_json()
    return shown


def refusal(job_id: str, message: str, error: JsonObject) -> dict[str, object]:
    """Return the result envelope for a request that did not become a job."""
    return {
        "id": job_id,
        "message": message,
        "status": "failed",
        "comfyui_response": {},
        "output": [],
        "timings": {},
        "error": dict(error),
    }
