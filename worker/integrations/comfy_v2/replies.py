"""Replies in the form of the Comfy API v2."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from darkroom.worker.api.replies.reply import Reply


class ComfyErrorEntry(Reply):
    """The reason of a refusal; `details.node_errors` has the problems by node."""

    code: str
    message: str
    details: dict[str, Any] | None = None


class ComfyError(Reply):
    """A refusal in the format of the Comfy API v2."""

    error: ComfyErrorEntry


class ComfyAsset(Reply):
    """A caller's file. `hash` is `blake3:` and hexadecimal digits."""

    id: str
    hash: str | None
    size_bytes: int
    content_type: str
    file_path: str | None = None
    created_new: bool | None = None
    created_at: str
    url: str
    url_expires_at: str
    expires_at: str | None = None


class ComfyOutput(Reply):
    """An output of a job, which is an asset too."""

    node_id: str
    name: str
    type: Literal["image", "video", "audio", "text", "file", "latent"]
    content_type: str
    size_bytes: int
    id: str
    hash: str | None
    url: str
    url_expires_at: str
    job_id: str | None = None
    width: int | None = Field(
        default=None, description="Width of a video; `height`, `frames` and `fps` are a video's, too."
    )
    height: int | None = None
    frames: int | None = None
    fps: float | None = None
    duration_seconds: float | None = Field(default=None, description="Duration of a video or audio.")
    sample_rate: int | None = Field(default=None, description="Sample rate of audio, in Hz.")
    channels: int | None = None


class ComfyJob(Reply):
    """A job in the format of the Comfy API v2. Times are ISO 8601 in UTC."""

    id: str
    status: Literal["queued", "running", "succeeded", "canceled", "failed"]
    created_at: str
    started_at: str | None
    completed_at: str | None
    expires_at: str
    queue_position: int | None
    progress: dict[str, Any] | None
    outputs: list[ComfyOutput]
    error: dict[str, Any] | None
    metadata: dict[str, str] = Field(default_factory=dict)
    metrics: dict[str, int | None] | None = None
    urls: dict[str, str]


class ComfyJobs(Reply):
    """A page of jobs; `next_cursor` is absent on the last one."""

    jobs: list[dict[str, Any]]
    next_cursor: str | None = None


class ComfyWorkflow(Reply):
    """The prompt of a job."""

    workflow: dict[str, Any]
    format: Literal["api"]
