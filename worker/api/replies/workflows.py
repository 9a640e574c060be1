"""Replies about workflows: converted ones, stored ones."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from darkroom.worker.api.replies.reply import Reply


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
