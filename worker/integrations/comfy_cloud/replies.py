"""Replies in the form of Comfy Cloud's first API."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, RootModel

from darkroom.worker.api.replies.reply import Reply


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
