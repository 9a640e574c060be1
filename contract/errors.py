"""Errors of a prompt: what its checker finds in the front and in the engine, and the roots of the engine's errors.

`engine/errors.py` shows the whole tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar


class EngineError(Exception):
    code: ClassVar[str] = "engine_error"


class CallerError(EngineError):
    code = "caller_error"


class RunError(EngineError):
    code = "run_error"


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

    def as_json(self) -> dict[str, Any]:
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

    def as_json(self) -> dict[str, Any]:
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

    def as_json(self) -> dict[str, Any]:
        """Return the body of ComfyUI's 400 response."""
        return {
            "error": self.problem.as_json(),
            "node_errors": {node_id: entry.as_json() for node_id, entry in self.node_problems.items()},
        }
