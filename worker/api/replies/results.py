"""A job's result and its parts."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from darkroom.contract.quality import QualityName
from darkroom.worker.api.replies.problems import ErrorEntry, WarningEntry
from darkroom.worker.api.replies.reply import Reply
from darkroom.worker.storage.job import JobState


class Thumbnail(Reply):
    """The thumbnail of an image, of a video's first frame, or of the waveform of audio."""

    filename: str
    width: int
    height: int
    local_path: str | None = None
    url: str | None = None
    upload_error: str | None = None
    data: str | None = None
    mimetype: str | None = None
    error: str | None = None


class OutputFile(Reply):
    """One output of a job: a file, or a text or a value that a node shows."""

    filename: str
    node_id: str
    type: str = Field(description="The engine's folder (`output`, `temp`), or `text` or `value`.")
    output_type: str
    subfolder: str = ""
    local_path: str = ""
    url: str | None = Field(default=None, description="Address of the file, which needs no key.")
    data: str | None = Field(default=None, description="The file as base64, where the request asks for it.")
    mimetype: str | None = None
    text: str | None = None
    value: Any = None
    width: int | None = Field(default=None, description="Width of a video, in pixels.")
    height: int | None = None
    frames: int | None = Field(default=None, description="Number of a video's frames.")
    fps: float | None = Field(default=None, description="Frames a second.")
    duration_seconds: float | None = Field(default=None, description="Duration of a video or audio.")
    sample_rate: int | None = Field(default=None, description="Sample rate of audio or a video's audio, in Hz.")
    channels: int | None = None
    size_bytes: int | None = Field(default=None, description="File size of a video or audio.")
    thumbnail: Thumbnail | None = None
    error: str | None = None
    upload_error: str | None = Field(
        default=None, description="Reason that the file is not in the store; `url` serves it."
    )
    conversion_error: str | None = None
    metadata_error: str | None = None
    thumbnail_error: str | None = None


class Timings(Reply):
    """Times of a job: `_at_ms` are epoch milliseconds, the others durations. Null: not yet, or not at all."""

    queued_at_ms: int | None = None
    preprocess_ms: int | None = None
    wait_ms: int | None = None
    generation_ms: int | None = None
    postprocess_ms: int | None = None
    completed_at_ms: int | None = None
    total_ms: int | None = None


class SplitUsed(Reply):
    """Engines that ran parts of the request at once; `by` outputs or batch, or the `reason` why it ran whole."""

    engines: int
    by: str | None = None
    reason: str | None = None


class EngineUsed(Reply):
    """The engine that a request was given to, and the reason why it is not one of ours."""

    name: str
    reason: str


class TuningUsed(Reply):
    """Strategies that drew the images for a quality.

    `error` is their measured error, relative L2 of latents against the plain path; `unused` has the reason of each
    chosen strategy that did not fit.
    """

    quality: QualityName
    strategies: list[str]
    unused: dict[str, str] = Field(default_factory=dict)
    error: float


class Parameters(Reply):
    """Values that a request chose, random ones as they were drawn; long texts are cut."""

    workflow: str | None = Field(default=None, description="Stored workflow and its version, `NAME@VERSION`.")
    overrides: dict[str, Any] = Field(default_factory=dict, description="By `ID.INPUT`, as `overrides` takes them.")


class Result(Reply):
    """Reply of every route that creates or shows a job, and of every refusal, which has `error`."""

    id: str = Field(description="The job's id; empty where a refused request had none.")
    message: str
    status: JobState
    comfyui_response: dict[str, Any] = Field(default_factory=dict)
    output: list[OutputFile] = Field(default_factory=list)
    timings: Timings = Field(default_factory=Timings)
    tuning: TuningUsed | None = Field(default=None, description="Only of an engine of ours.")
    split: SplitUsed | None = Field(default=None, description="Only of a request that may be split.")
    engine: EngineUsed | None = Field(default=None, description="Only of a request that the fallback runs.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="The caller's, as the request had it.")
    warnings: list[WarningEntry] = Field(default_factory=list)
    parameters: Parameters | None = Field(default=None, description="Only of a request that chose values.")
    error: ErrorEntry | None = None


class BatchReply(Reply):
    """State of each job of a batch, in the order of its inputs; one that was refused has `error` with its `status`."""

    results: list[Result]
