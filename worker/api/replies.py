"""Bodies of the replies, as the OpenAPI document shows them. Fields that a body lacks are null or left out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from names.tuning import QualityName
from worker.engines.watch import EngineState
from worker.jobs.job import JobState
from worker.jobs.webhook_rows import WebhookState
from worker.qualification.state import VERDICTS


class Reply(BaseModel):
    """Base of the replies. Later versions may add fields."""

    model_config = ConfigDict(extra="allow", json_schema_serialization_defaults_required=False)


class Converted(Reply):
    """A workflow in API format, as `/generate` takes it in `input`."""

    workflow_json: dict[str, Any]


class NamedInputEntry(Reply):
    """Named input of a stored workflow: the inputs that it sets, each as `ID.INPUT`."""

    into: list[str]
    description: str = ""


class StoredWorkflowEntry(Reply):
    """A version of a stored workflow. `schema` is the JSON schema of its named inputs."""

    name: str
    version: int
    versions: list[int] = Field(default_factory=list, description="Versions that are kept, the newest first.")
    created_ms: int
    description: str = ""
    inputs: dict[str, NamedInputEntry] = Field(default_factory=dict)
    outputs: list[str] = Field(default_factory=list, description="Ids of the nodes that the page's app mode shows.")
    parameters: dict[str, Any] | None = Field(default=None, alias="schema", description="JSON schema")
    workflow_json: dict[str, Any] | None = Field(default=None, description="For an operator only.")


class StoredWorkflowList(Reply):
    """The newest version of every stored workflow, by name."""

    workflows: list[StoredWorkflowEntry]


class Deleted(Reply):
    """Number of versions that were deleted."""

    deleted: int


# jobs


class ProblemEntry(Reply):
    """One problem of a request: its field, or its node and input, and what is allowed there."""

    message: str
    field: str | None = None
    node_id: str | None = None
    class_type: str | None = None
    type: str | None = None
    allowed: Any = None
    extra: dict[str, Any] | None = None


class ErrorEntry(Reply):
    """The reason of a refusal or a failure. `code` is stable; the other fields depend on it."""

    code: str
    message: str
    status: int | None = Field(default=None, description="HTTP status, in the result of a job that failed.")
    problems: list[ProblemEntry] | None = None
    request_id: str | None = None
    node_id: str | None = None
    class_type: str | None = None


class PackEntry(Reply):
    """A pack of custom nodes. `known_by`: `workflow` where its page noted the pack, `name` by the name of the class."""

    name: str
    url: str
    known_by: str


class MissingNodeEntry(Reply):
    """A node class that the engine lacks, the nodes that use it, and the pack that has it, where that is known."""

    class_type: str
    node_ids: list[str]
    pack: PackEntry | None


class MissingModelEntry(Reply):
    """A model file that the engine lacks, named by a node. Without `sources` nobody here knows where it comes from."""

    name: str
    kinds: list[str]
    node_id: str
    class_type: str
    field: str
    is_fetched: bool = Field(description="A job with this workflow fetches it (`FETCH_MISSING`).")
    sources: list[str]
    kind: str | None = None
    size_bytes: int | None = None
    sha256: str | None = None
    licence: str | None = None
    known_by: str | None = Field(default=None, description="`manifest`, or `workflow` for an address that it gives.")


class FetchPlan(Reply):
    """Files to fetch, as far as sources are known. `free_bytes` are those that downloads may use."""

    num_files: int
    bytes: int
    num_of_unknown_size: int
    free_bytes: int
    fits: bool


class PlannedRun(Reply):
    """Estimate of a run: units of load, seconds on one engine, seconds of wait before it; null where unknown."""

    load_units: float | None
    run_seconds: float | None
    wait_seconds: float
    price: float | None = Field(description="Of `run_seconds` at `price_per_hour` or `WORKER_PRICE_PER_HOUR`.")
    source: str = Field(description="Where `run_seconds` come from, or why there are none.")


class EvictedModel(Reply):
    """A model that leaves the device, by its file and the stage that it computes in."""

    stage: Literal["text_encoder", "network", "vae"]
    model: str


class MemoryStage(Reply):
    """A node that computes with a model. `evicted` are the models that leave the device for it, in their order.

    `loaded_bytes` of the weights come to the device, `streamed_bytes` layer by layer while it computes. `device_bytes`
    is what everything takes there meanwhile, `missing_bytes` what lacks.
    """

    node_id: str
    class_type: str
    stage: Literal["text_encoder", "network", "vae"]
    model: str
    weights_bytes: int
    working_bytes: int
    loaded_bytes: int
    streamed_bytes: int
    evicted: list[EvictedModel]
    device_bytes: int
    missing_bytes: int


class RefusedModel(Reply):
    """A model file that no family's loader takes, and what was found in it."""

    model: str
    found: str


class MemoryTimeline(Reply):
    """Estimated memory on the engine's device, or on a named card. `unknown` are files whose sizes are not known.

    `refused` are those of them that are of no family of the engine.
    """

    total_bytes: int
    is_processor: bool
    stages: list[MemoryStage]
    fits: bool
    unknown: list[str]
    refused: list[RefusedModel] = []


class Plan(Reply):
    """Needs of a workflow on this worker. `can_run`: a job with it would be accepted now."""

    can_run: bool
    missing_nodes: list[MissingNodeEntry]
    models: list[MissingModelEntry]
    num_models_here: int
    fetch: FetchPlan
    problems: list[ProblemEntry]
    limits: list[ProblemEntry]
    estimate: PlannedRun
    memory: MemoryTimeline | None = None


class ModelFileEntry(Reply):
    """A model file on disk by its place below `models/`. `used_at`: UTC epoch of its last use, of downloaded files."""

    place: str
    size_bytes: int
    used_at: float | None
    num_uses: int


class FetchingModel(Reply):
    """A model file that is being fetched."""

    name: str
    percent: float
    size_bytes: int | None


class LoadedModel(Reply):
    """A model that an engine of ours holds: on its device (`vram`), in `ram`, or read from its `file` as needed."""

    name: str
    level: str
    size_bytes: int | None


class ModelHints(Reply):
    """Model files by level. `asked`: `vram`, `ram`, `disk`, `fetching`, `shared`, `network` or `none` by name."""

    files: list[ModelFileEntry]
    fetching: list[FetchingModel]
    loaded: list[LoadedModel]
    asked: dict[str, str]


class WarningEntry(Reply):
    """Part of an accepted request that has no effect, or another one than it seems."""

    message: str
    field: str | None = None
    node_id: str | None = None
    type: str | None = None


class Thumbnail(Reply):
    """The thumbnail of a picture."""

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
    url: str | None = Field(default=None, description="Where the file can be fetched, without a key.")
    data: str | None = Field(default=None, description="The file as base64, where the request asks for it.")
    mimetype: str | None = None
    text: str | None = None
    value: Any = None
    width: int | None = Field(default=None, description="Of a video, in pixels.")
    height: int | None = None
    frames: int | None = Field(default=None, description="Of a video.")
    fps: float | None = Field(default=None, description="Frames a second.")
    duration_seconds: float | None = Field(default=None, description="Of a video or a sound.")
    sample_rate: int | None = Field(default=None, description="Of a sound, in Hz, also that of a video.")
    channels: int | None = None
    size_bytes: int | None = Field(default=None, description="Of a video or a sound.")
    thumbnail: Thumbnail | None = None
    error: str | None = None
    upload_error: str | None = Field(default=None, description="Why the file is not in the store; `url` serves it.")
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


class TuningUsed(Reply):
    """Strategies that drew the pictures for a quality.

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
    metadata: dict[str, Any] = Field(default_factory=dict, description="The caller's, as the request had it.")
    warnings: list[WarningEntry] = Field(default_factory=list)
    parameters: Parameters | None = Field(default=None, description="Only of a request that chose values.")
    error: ErrorEntry | None = None


class BatchReply(Reply):
    """State of each job of a batch, in the order of its inputs; one that was refused has `error` with its `status`."""

    results: list[Result]


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


# the worker


class Liveness(Reply):
    """The process responds."""

    status: Literal["alive"]


class CheckEntry(Reply):
    """One check of `darkroom doctor`, with what to do about it."""

    name: str
    status: Literal["good", "warning", "failed", "skipped"]
    detail: str
    remedy: str


class BrokerState(Reply):
    """Connection to the broker from which jobs come."""

    broker: str = Field(description="Kind and address")
    state: Literal["connected", "unreachable"]
    reason: str | None = None
    held: int = Field(description="Jobs of the broker that this worker holds")


class DatabaseState(Reply):
    """Connection to a database server."""

    database: str = Field(description="Address and database")
    state: Literal["connected", "unreachable"]
    reason: str | None = None


class Readiness(Reply):
    """True state of the readiness probe; `reason` says why the worker takes no jobs."""

    status: Literal["ready", "not ready"]
    reason: str | None = None
    checks: list[CheckEntry] | None = None
    broker: BrokerState | None = None
    database: DatabaseState | None = None


class Loss(Reply):
    """The last end of an engine's process."""

    reason: str
    message: str


class Backend(Reply):
    """One engine."""

    url: str
    healthy: bool
    state: EngineState
    prompts: int
    pid: int | None
    heartbeat_age_seconds: float | None
    running: str | None
    node: str | None
    seconds_without_progress: float | None
    memory_bytes: int | None
    restarts: dict[str, int]
    last_loss: Loss | None


class GpuHealth(Reply):
    """State of the accelerators."""

    unrecoverable: bool
    reason: str | None


class FloorState(Reply):
    """Free amount of a resource, and the floor under which no job is accepted."""

    free_bytes: int | None
    floor_bytes: int
    low: bool


class ManifestCounts(Reply):
    """Files of `models.toml` and packs of `packs.toml`, by their state, such as `good` or `missing`."""

    models: dict[str, int]
    packs: dict[str, int]


class Health(Reply):
    """Health of the worker. `problems` lists why it should be replaced."""

    status: Literal["healthy", "degraded", "unhealthy"]
    version: str = Field(description="Version of the program")
    cache_type: str
    queues: QueueSizes
    backends_healthy: str
    gpu: GpuHealth
    backends: list[Backend]
    ready: bool
    restarts: int
    disk: FloorState
    memory: FloorState
    problems: list[str] | None = None
    broker: BrokerState | None = None
    database: DatabaseState | None = None
    manifest: ManifestCounts | None = Field(default=None, description="Where a manifest asks for something")


class ModifierEntry(Reply):
    """One modifier, or a file that defines none, with the reason in `error`."""

    name: str
    source: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default=None, alias="schema", description="JSON schema")
    example: dict[str, Any] | None = None
    error: str | None = None


class Benchmark(Reply):
    """Report of the last benchmark; docs/benchmark.md has every field."""

    verdict: Annotated[str, Field(json_schema_extra={"enum": list(VERDICTS)})]
    reason: str | None = None
    error: str | None = None
    is_running: bool
    num_tries: int
    next_try_in_seconds: float | None
    phases: dict[str, float]
    its_per_second: float | None = None
    workload_per_second: float | None = None


class Preview(Reply):
    """Picture of an unfinished latent. `node_id` is empty where a foreign engine does not name it."""

    node_id: str
    mimetype: str = Field(description="`image/jpeg` or `image/png`.")
    data: str = Field(description="The picture in base64, at most 512 pixels a side.")


class StreamEvent(Reply):
    """The `data` of an event of a job's stream. The last one has `result`."""

    request_id: str
    status: str = Field(description="The job's status; `queued` in the first event, `final_result` in the last.")
    message: str | None = None
    attempt: int | None = None
    progress: Progress | None = None
    queue_info: QueueSizes | None = None
    queue_position: QueuePosition | None = None
    output_count: int | None = None
    preview: Preview | None = Field(default=None, description="The newest, for a request with `previews`.")
    result: Result | None = None
    timestamp: float
    elapsed_time: float | None = None


# the worker


class Device(Reply):
    """Device of an engine, by the engine's name of it."""

    name: str
    memory_bytes: int | None


class CheckpointEntry(Reply):
    """Checkpoint that the engines have. `family` is null where it is not known."""

    name: str
    family: str | None
    size_bytes: int | None


class CallerEntry(Reply):
    """The caller's key and its scopes; no scopes for a caller that needs a key."""

    key_name: str
    scopes: list[str]


class MeasuredSpeed(Reply):
    """Figures of the last benchmark; null without one."""

    verdict: str | None
    its_per_second: float | None
    seconds_per_picture: float | None
    width_px: int | None
    height_px: int | None
    steps: int | None
    model: str | None


class WorkerInfo(Reply):
    """Devices, checkpoints and speed of a worker, and the scopes of the caller there."""

    version: str
    is_ready: bool
    devices: list[Device]
    checkpoints: list[CheckpointEntry]
    benchmark: MeasuredSpeed
    caller: CallerEntry


class EngineEntry(Backend):
    """State of an engine, and the figures of its model memory (`GET /api/v1/memory` of the engine)."""

    memory: dict[str, Any] | None


# webhooks


class WebhookEntry(Reply):
    """A webhook on disk, without its secrets."""

    id: str
    request_id: str
    url: str
    state: WebhookState
    attempts: int
    created_ms: int
    tried_ms: int | None
    next_try_ms: int | None
    last_error: str | None
    is_signed: bool


class WebhookPage(Reply):
    """Webhooks, the newest first, and the number in each state."""

    counts: dict[str, int]
    webhooks: list[WebhookEntry]


class Redelivered(Reply):
    """Number of webhooks that are due now."""

    redelivered: int


class ReceiverTested(Reply):
    """Outcome of a test of a webhook's receiver."""

    delivered: bool
    error: str | None


# RunPod's form


class RunPodStatus(Reply):
    """A job in RunPod's form; the times are milliseconds."""

    id: str
    status: Literal["IN_QUEUE", "IN_PROGRESS", "COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"]
    delayTime: int | None = None
    executionTime: int | None = None
    output: Any = None
    error: str | None = None


class RunPodError(Reply):
    """A refusal in RunPod's form."""

    error: str


# OpenAI's form


class OpenAiImage(Reply):
    """One picture: its data, or its link."""

    b64_json: str | None = None
    url: str | None = None


class OpenAiImages(Reply):
    """Pictures in the format of OpenAI's images API. `created` is in epoch seconds."""

    created: int
    data: list[OpenAiImage]
    size: str | None = None
    output_format: str | None = None


class OpenAiModel(Reply):
    """Something that `model` may name."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class OpenAiModels(Reply):
    """Names that `model` may have."""

    object: Literal["list"]
    data: list[OpenAiModel]


class OpenAiErrorEntry(Reply):
    """The reason of a refusal; `param` is the field."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAiError(Reply):
    """A refusal in the format of OpenAI's API."""

    error: OpenAiErrorEntry


# Comfy API v2


class ComfyErrorEntry(Reply):
    """The reason of a refusal; `details.node_errors` has the problems by node."""

    code: str
    message: str
    details: dict[str, Any] | None = None


class ComfyError(Reply):
    """A refusal in the format of the Comfy API v2."""

    error: ComfyErrorEntry


class CloudRefusal(Reply):
    """A refusal in the format of ComfyUI; `node_errors` has the problems by node."""

    error: dict[str, Any]
    node_errors: dict[str, Any] = Field(default_factory=dict)


class CloudPrompt(Reply):
    """An accepted prompt."""

    prompt_id: str
    number: float
    node_errors: dict[str, Any] = Field(default_factory=dict)


class CloudJob(Reply):
    """A job in the format of Comfy Cloud's first API. Times are milliseconds since 1970."""

    id: str
    status: Literal["pending", "in_progress", "completed", "failed", "cancelled"]
    create_time: int
    execution_start_time: int | None
    execution_end_time: int | None
    outputs_count: int
    execution_error: dict[str, Any] | None
    outputs: dict[str, Any] | None = None


class CloudJobs(Reply):
    """The newest jobs."""

    jobs: list[CloudJob]
    pagination: dict[str, Any]


class CloudHistory(RootModel[dict[str, dict[str, Any]]]):
    """The record of an ended job by its id; empty before."""


class CloudUpload(Reply):
    """A stored file: the name by which prompts of the caller refer to it."""

    name: str
    subfolder: str
    type: str


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
    width: int | None = Field(default=None, description="Of a video, as are `height`, `frames` and `fps`.")
    height: int | None = None
    frames: int | None = None
    fps: float | None = None
    duration_seconds: float | None = Field(default=None, description="Of a video or a sound.")
    sample_rate: int | None = Field(default=None, description="Of a sound, in Hz.")
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
