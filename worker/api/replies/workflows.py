"""Replies about workflows: converted ones, stored ones."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from darkroom.worker.api.replies.reply import Reply
from darkroom.worker.prompts.workflows.form import Role


class Converted(Reply):
    """A workflow in API format, as `/generate` takes it in `input`."""

    workflow_json: dict[str, Any]


class FormEntry(Reply):
    """An input of a node, as a field of a form. `target` names it in `overrides`."""

    target: str
    also: list[str] = Field(description="Further targets of its value: prompts with the same text.")
    node_id: str
    input: str
    class_type: str
    title: str = Field(description="Title of the node.")
    label: str
    role: Role
    parameters: dict[str, Any] = Field(alias="schema", description="JSON schema; the default is the workflow's value.")
    choices: str = Field(description="Name of its entry in the form's `choices`; empty for an input that has none.")
    folder: str = Field(description="Folder below `models/` of the file that it names; empty for another input.")
    is_main: bool = Field(description="False: folded in, below the fields that most people change.")


class Form(Reply):
    """A workflow in API format and a field for each of its inputs that has a value, in the order of a form."""

    workflow_json: dict[str, Any]
    fields: list[FormEntry]
    choices: dict[str, list[Any]]
    num_left_out: int = Field(description="Inputs beyond the most that a form has.")


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
