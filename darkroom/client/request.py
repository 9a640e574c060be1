"""A request as the client's caller writes it, and the body that is sent. A local file stands where an image goes."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Request:
    """A request to generate: a modifier, a workflow, or a stored workflow by its name.

    A `Path` among the values stands for that file, which is sent along. `id` names the job: the same id and values
    never run twice. `more` are further fields of `input` (`s3`, `webhook`, `output`, `quality`, ...).
    """

    modifier: str = ""
    modifications: Mapping[str, Any] = field(default_factory=dict)
    workflow: Mapping[str, Any] | Path | None = None
    stored: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    priority: int = 0
    has_data: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_modifier(cls, name: str, /, **modifications: Any) -> Self:
        """Return a request for a modifier with its parameters."""
        return cls(modifier=name, modifications=modifications)

    @classmethod
    def of_workflow(cls, workflow: Mapping[str, Any] | Path | str, /, **overrides: Any) -> Self:
        """Return a request for a workflow, or for the one in a file: JSON, or an image that carries one."""
        return cls(workflow=Path(workflow) if isinstance(workflow, str) else workflow, overrides=overrides)

    @classmethod
    def of_stored(cls, name: str, /, **inputs: Any) -> Self:
        """Return a request for a workflow that the worker keeps, `NAME` or `NAME@VERSION`, with its named inputs."""
        return cls(stored=name, inputs=inputs)

    def body(self) -> dict[str, Any]:
        """Return the JSON body, files read. Raises OSError for a file that cannot be read."""
        given = {
            **self.more,
            "request_id": self.id,
            "modifier": self.modifier,
            "modifications": _with_files(self.modifications),
            "workflow_json": _read_workflow(self.workflow),
            "workflow": self.stored,
            "inputs": _with_files(self.inputs),
            "overrides": _with_files(self.overrides),
            "priority": self.priority,
            "return_outputs_as_base64": self.has_data,
        }
        return {"input": {name: value for name, value in given.items() if value not in ("", None, {}, 0, False)}}


def _read_workflow(workflow: Mapping[str, Any] | Path | None) -> Mapping[str, Any] | str | None:
    """Return the workflow of a JSON file, else the file itself, in which the worker looks for one."""
    if not isinstance(workflow, Path):
        return workflow
    content = workflow.read_bytes()
    try:
        read: Mapping[str, Any] = json.loads(content)
    except ValueError:
        return base64.b64encode(content).decode()
    return read


def _with_files(value: Any) -> Any:
    if isinstance(value, Path):
        return base64.b64encode(value.read_bytes()).decode()
    if isinstance(value, Mapping):
        return {name: _with_files(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_files(item) for item in value]
    return value
