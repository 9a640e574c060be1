"""Replies about requests that are not run: what they would need, and hints of models to come."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from darkroom.worker.api.replies.problems import MissingInputEntry, MissingModelEntry, MissingNodeEntry, ProblemEntry
from darkroom.worker.api.replies.reply import Reply
from darkroom.worker.api.replies.results import EngineUsed


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
    price: float | None = Field(description="Price of `run_seconds` at `price_per_hour` or `WORKER_PRICE_PER_HOUR`.")
    source: str = Field(description="Source of `run_seconds`, or the reason that there are none.")


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
    engine: EngineUsed | None = Field(default=None, description="The fallback, where only that can run it.")
    missing_nodes: list[MissingNodeEntry]
    inputs: list[MissingInputEntry] = Field(description="Files that are still to be sent with the job.")
    summary: str = Field(description="The missing model files and the command that fetches them; empty without any.")
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
