"""Replies in RunPod's form."""

from __future__ import annotations

from typing import Any, Literal

from darkroom.worker.api.replies.reply import Reply


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
