"""Options of the Ray Serve application, given as `serve run darkroom.ray_serve:build NAME=VALUE`."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class RayOptions(BaseModel):
    """Size of the fleet, and what one replica takes. Settings of workers come from the environment of Ray's nodes."""

    model_config = ConfigDict(extra="forbid")

    min_replicas: int = Field(default=1, ge=0)
    max_replicas: int = Field(default=1, ge=1)
    gpus: float = Field(default=1.0, ge=0, description="GPUs of a replica; 0: it computes on the CPU.")
    cpus: float = Field(default=1.0, ge=0, description="Processors that Ray reserves for a replica.")
    target_ongoing_requests: float = Field(
        default=2.0, gt=0, description="Requests for each replica at which Ray Serve adds no replica."
    )
    max_ongoing_requests: int = Field(default=4, ge=1, description="Requests that one replica holds.")
    max_queued_requests: int = Field(default=100, ge=-1, description="Waiting requests; more get 503. -1: no limit.")
    downscale_delay_seconds: float = Field(default=300.0, ge=0)
    drain_seconds: float = Field(default=60.0, gt=0, description="Time that a replica's requests get when it goes.")
    inline_outputs: bool = Field(
        default=True, description="Results have the files' data. Switch it off where workers upload to S3."
    )
    state_directory: Path = Field(
        default=Path("/tmp/darkroom-ray"),  # noqa: S108 - each replica makes a private folder below it
        description="Folder in which every replica makes one for its worker's state.",
    )
    settings: dict[str, str] = Field(
        default_factory=dict, description="Settings of workers, without secrets: Ray shows them in its dashboard."
    )
