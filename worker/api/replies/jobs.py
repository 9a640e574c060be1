"""Replies about jobs: progress, the queue, lists, events of a stream."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from darkroom.worker.api.replies.reply import Reply
from darkroom.worker.api.replies.results import OutputFile, Parameters, Result, Timings
from darkroom.worker.storage.job import JobState


class Progress(Reply):
    """Progress of a run: `percent` of the whole, `value` of `max` of the running node."""

    percent: float
    node_id: str | None = None
    node_class: str | None = None
    value: float
    max: float


class QueuePosition(Reply):
    """Place of a job in its queue; 1 is next."""

    current_queue: str
    position: int
    queue_size: int
    estimated_wait_time: float


class QueueSizes(Reply):
    """Number of jobs before, in and after generation."""

    preprocess_queue_size: int
    generation_queue_size: int
    postprocess_queue_size: int


class Cancellation(Reply):
    """Outcome of a cancellation: the state in which the job has ended."""

    message: str
    status: JobState


class JobError(Reply):
    """Reason why a job did not complete; its result has more."""

    status: int
    code: str
    message: str


class JobEntry(Reply):
    """A job of the list. `owner` is the name of its key, shown to operators."""

    id: str
    owner: str | None = None
    status: JobState
    message: str
    metadata: dict[str, Any]
    timings: Timings
    error: JobError | None = None
    title: str | None = Field(default=None, description="Its prompt, at most 300 characters; with `details`.")
    modifier: str | None = Field(default=None, description="With `details`, as are the next two.")
    parameters: Parameters | None = Field(default=None, description="As in its result.")
    output: list[OutputFile] | None = None


class DetailedJobEntry(JobEntry):
    """A job with its details, and the workflow that it ran."""

    workflow_json: dict[str, Any] | None = Field(default=None, description="In API format, with all values in it.")


class JobPage(Reply):
    """Jobs, the newest first. `next_cursor` continues behind the last one; null: there are no more."""

    jobs: list[JobEntry]
    next_cursor: str | None


class Deletion(Reply):
    """A job that is gone, with its files and webhooks."""

    id: str
    message: str


class ListedJob(QueuePosition):
    """A job that has not ended."""

    id: str
    owner: str | None = None
    status: JobState
    priority: int
    queued_at_ms: int
    percent: float


class QueueInfoReply(QueueSizes):
    """The queue, and the wait of a job that is sent now. `jobs` is absent for a caller without a key."""

    estimated_wait_seconds: float
    estimated_wait_seconds_by_priority: dict[str, float]
    seconds_per_job: float
    engines: int
    jobs: list[ListedJob] | None = None


class Preview(Reply):
    """Image of an unfinished latent. `node_id` is empty where a foreign engine does not name it."""

    node_id: str
    mimetype: str = Field(description="`image/jpeg` or `image/png`.")
    data: str = Field(description="The image in base64, at most 512 pixels a side.")


class StreamEvent(Reply):
    """The `data` of an event of a job's stream. The last one has `result`."""

    request_id: str
    status: str = Field(description="The job's status; `queued` in the first event, `final_result` in the last.")
    message: str | None = None
    attempt: int | None = None
    progress: Progress | None = None
    expected_run_seconds: float | None = Field(
        default=None, description="Seconds on the engine, by the worker's last jobs; null before the first."
    )
    queue_info: QueueSizes | None = None
    queue_position: QueuePosition | None = None
    output_count: int | None = None
    preview: Preview | None = Field(default=None, description="The newest, for a request with `previews`.")
    result: Result | None = None
    timestamp: float
    elapsed_time: float | None = None
