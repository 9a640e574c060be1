"""Results and events of jobs, as the worker sends them. Fields that are not here are in `raw`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

ENDED: Final = frozenset({"completed", "failed", "cancelled", "timeout"})


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a job: a file by its link or its data in base64, or a text or value that a node shows."""

    filename: str
    node_id: str
    kind: str
    url: str | None = None
    data: str | None = field(default=None, repr=False)
    mimetype: str | None = None
    text: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def is_file(self) -> bool:
        return self.url is not None or self.data is not None

    def decoded(self) -> bytes:
        """Return the content that came along in base64, empty if none did."""
        return base64.b64decode(self.data or "")

    def link(self) -> str:
        """Return the address of the content. Raises ValueError for an output that is no file."""
        if self.url is None:
            raise ValueError(f"output {self.filename or self.node_id}: is no file")
        return self.url


@dataclass(frozen=True, slots=True)
class Result:
    """State of a job, with its outputs once it has ended. `parameters` are the values that its request chose."""

    id: str
    status: str
    message: str
    outputs: tuple[Output, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[Mapping[str, Any], ...] = ()
    error: Mapping[str, Any] | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def files(self) -> tuple[Output, ...]:
        return tuple(output for output in self.outputs if output.is_file)


@dataclass(frozen=True, slots=True)
class Event:
    """Change of a job. `percent` is of the whole run, 0 to 100; `result` is set in the last event alone."""

    job_id: str
    status: str
    message: str = ""
    percent: float | None = None
    node_class: str | None = None
    position: int | None = None
    result: Result | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


def read_result(body: Mapping[str, Any]) -> Result:
    """Return the result in an answer of the worker."""
    outputs = body.get("output")
    return Result(
        id=str(body.get("id") or ""),
        status=str(body.get("status") or ""),
        message=str(body.get("message") or ""),
        outputs=tuple(_read_output(item) for item in outputs or () if isinstance(item, Mapping)),
        parameters=body.get("parameters") or {},
        warnings=tuple(body.get("warnings") or ()),
        error=body.get("error"),
        raw=body,
    )


def read_event(data: Mapping[str, Any]) -> Event:
    """Return the event in the data of a server-sent event."""
    progress, place, result = data.get("progress") or {}, data.get("queue_position") or {}, data.get("result")
    return Event(
        job_id=str(data.get("request_id") or ""),
        status=str(data.get("status") or "") if result is None else str(result.get("status")),
        message=str(data.get("message") or ""),
        percent=progress.get("percent"),
        node_class=progress.get("node_class"),
        position=place.get("position"),
        result=None if result is None else read_result(result),
        raw=data,
    )


def _read_output(item: Mapping[str, Any]) -> Output:
    return Output(
        filename=str(item.get("filename") or ""),
        node_id=str(item.get("node_id") or ""),
        kind=str(item.get("output_type") or ""),
        url=item.get("url"),
        data=item.get("data"),
        mimetype=item.get("mimetype"),
        text=item.get("text"),
        raw=item,
    )
