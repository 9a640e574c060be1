"""Parts of replies that name what was wrong, or is worth a warning."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from darkroom.worker.api.replies.reply import Reply


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
    summary: str | None = Field(default=None, description="Summary of all problems: missing files and their command.")
    request_id: str | None = None
    node_id: str | None = None
    class_type: str | None = None


class PackEntry(Reply):
    """A pack of custom nodes. `known_by`: `workflow` where its page noted the pack, `name` by the name of the class."""

    name: str
    url: str
    known_by: str


class LaterNodeEntry(Reply):
    """The version of ComfyUI that a node class came with. `is_partner`: it calls a partner's paid service."""

    version: str
    is_partner: bool
    message: str


class MissingInputEntry(Reply):
    """An image, video or audio file that a node names and that is still to be sent, and the ways to send it."""

    node_id: str
    class_type: str
    field: str
    name: str
    media: str
    ways: list[str]


class MissingNodeEntry(Reply):
    """A node class that the engine lacks, the nodes that use it, and the pack that has it, where that is known."""

    class_type: str
    node_ids: list[str]
    pack: PackEntry | None
    comfyui: LaterNodeEntry | None = Field(
        default=None, description="Release of a node that is newer than this engine's ComfyUI."
    )


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


class WarningEntry(Reply):
    """Part of an accepted request that has no effect, or another one than it seems."""

    message: str
    field: str | None = None
    node_id: str | None = None
    type: str | None = None
