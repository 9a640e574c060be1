"""Replies to operators: node packs, keys and limits."""

from __future__ import annotations

from pydantic import Field

from darkroom.worker.api.replies.reply import Reply


class PackEntry(Reply):
    """A pack of custom nodes: `status` is how it was loaded, `state` how it compares with `packs.toml`."""

    name: str
    status: str
    state: str | None
    num_nodes: int
    seconds: float | None
    error: str | None
    missing: list[str] = Field(description="Names of ComfyUI that it uses and this engine lacks")
    failed_nodes: dict[str, str]


class PackList(Reply):
    """The packs of an engine; null while none of ours answers. `problem` is a fault of `packs.toml`."""

    packs: list[PackEntry] | None
    problem: str | None


class CallerLimitsEntry(Reply):
    """Limits of each key; null: none."""

    requests_per_second: float | None
    jobs_waiting: int | None
    jobs_running: int | None
    pixel_steps_per_minute: int | None
    stored_bytes: int | None


class JobCounts(Reply):
    """Jobs that wait and that an engine has begun."""

    jobs_waiting: int
    jobs_running: int


class KeyEntry(JobCounts):
    """An API key by its name. An operator's has no limits. `stored_bytes` is null where nothing counts them."""

    name: str
    scopes: list[str]
    has_limits: bool
    stored_bytes: int | None


class Keys(Reply):
    """API keys without their secrets, the limits of each, and jobs of callers without a key."""

    limits: CallerLimitsEntry
    without_key: JobCounts
    keys: list[KeyEntry]
    scopes: list[str]
