"""Errors of the engine, grouped by who must act.

    EngineError
      CallerError                 the prompt or a file it names is wrong; a retry is useless
        PromptRejected            validation found problems; nothing ran
        BadInputFile              a file that a node reads is missing, may not be read, or leaves its folder
        BadFileName               a name that no file can be saved under
        BadModelFile              a checkpoint (or VAE, text encoder...) cannot be read or is of no supported family
      RunError                    this run failed, the engine is fine
        NodeFailed                a node raised
        OutOfMemory               the device had too little memory, also after all other models were evicted
        Interrupted               the run was cancelled
        DownloadEnded             a model file's download ended while it was read; another run may find the file
      PlatformError               the process or the device cannot be trusted any more
        DeviceLost                the accelerator is unreachable or its context is invalid: replace the worker

Every class has a stable `code`. The engine has no HTTP codes: `engine/server` and the worker map to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

JsonObject = dict[str, Any]


class EngineError(Exception):
    code: ClassVar[str] = "engine_error"


class CallerError(EngineError):
    code = "caller_error"


class RunError(EngineError):
    code = "run_error"


class PlatformError(EngineError):
    code = "platform_error"


@dataclass(frozen=True, slots=True)
class Explanation:
    """A problem of a prompt with everything that a program needs to act on it, which ComfyUI's form has not always.

    `type` is None where it is the problem's own; `extra` may hold `received`, the value as it came.
    """

    message: str
    type: str | None = None
    field: str | None = None
    node_id: str | None = None
    class_type: str | None = None
    allowed: Any = None
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of one node, in ComfyUI's words.

    `type` is ComfyUI's stable name (`value_not_in_list`, `required_input_missing`, ...), `extra_info` its part for
    machines (`input_name`, `received_value`, `input_config`, ...). `explanation` is no part of ComfyUI's form.
    """

    type: str
    message: str
    details: str
    extra_info: Mapping[str, Any]
    explanation: Explanation | None = field(default=None, compare=False, repr=False)

    def as_json(self) -> JsonObject:
        return {
            "type": self.type,
            "message": self.message,
            "details": self.details,
            "extra_info": dict(self.extra_info),
        }


@dataclass(frozen=True, slots=True)
class NodeProblems:
    """All problems of one node, and the output nodes that cannot run because of them."""

    class_type: str
    problems: Sequence[Problem]
    dependent_outputs: Sequence[str]

    def as_json(self) -> JsonObject:
        return {
            "errors": [problem.as_json() for problem in self.problems],
            "dependent_outputs": list(self.dependent_outputs),
            "class_type": self.class_type,
        }


class PromptRejected(CallerError):
    """A prompt of which no output can run. `problem` concerns the prompt, `node_problems` (by node id) its nodes."""

    code = "prompt_rejected"

    def __init__(self, problem: Problem, node_problems: Mapping[str, NodeProblems] | None = None) -> None:
        super().__init__(f"{problem.message}: {problem.details}" if problem.details else problem.message)
        self.problem = problem
        self.node_problems = dict(node_problems or {})

    def as_json(self) -> JsonObject:
        """Return the body of ComfyUI's 400 response."""
        return {
            "error": self.problem.as_json(),
            "node_errors": {node_id: entry.as_json() for node_id, entry in self.node_problems.items()},
        }


class BadModelFile(CallerError):
    """A model file that is truncated, has other content than its name implies, or is of an unsupported family."""

    code = "bad_model_file"

    def __init__(self, file_name: str, found: str, expected: str) -> None:
        super().__init__(f"{file_name}: {found}; expected {expected}")
        self.file_name = file_name
        self.found = found
        self.expected = expected


class BadInputFile(CallerError, ValueError):
    """An input file of a node that does not exist, does not belong to the run, or is outside its folder."""

    code = "bad_input_file"


class BadFileName(CallerError, ValueError):
    """A name under which no file can be saved: outside the folder, too long, or with a null character."""

    code = "bad_file_name"


class NodeFailed(RunError):
    code = "node_failed"

    def __init__(self, node_id: str, class_type: str, message: str) -> None:
        super().__init__(f"{class_type} (node {node_id}): {message}")
        self.node_id = node_id
        self.class_type = class_type


class OutOfMemory(RunError):
    """Failure to allocate memory on the device.

    `needed_bytes` and `free_bytes` are 0 when the device did not report them. `frames` is the place of the failure, in
    words, for an error that was caught before: a retained traceback would keep the objects of its frames alive.
    """

    code = "out_of_memory"

    def __init__(self, message: str, *, needed_bytes: int = 0, free_bytes: int = 0, frames: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.frames = frames
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class DownloadEnded(RunError):
    """A model file whose download failed, or began anew, while a run read it. Nothing was computed with it."""

    code = "download_ended"


class Interrupted(RunError):
    """Cancellation of a run, raised by `CancelToken.check()`; nodes let it pass."""

    code = "interrupted"


class DeviceLost(PlatformError):
    code = "device_lost"
