"""The choice of the engine for a workflow: which problems at our engine another ComfyUI may not have. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from darkroom.worker.engines.choices import NOT_IN_LIST, UNKNOWN_CLASSES
from darkroom.worker.errors import EngineCrashed, NodeFailed, Problem, RequestRejected, WorkerError

UNDECLARED = "undeclared_class"
OF_OURS = UNKNOWN_CLASSES | {NOT_IN_LIST, UNDECLARED}
"""Types of problems that come from the engine rather than from the request: nodes and choices that it does not have."""

MODEL_FILE_TYPES = frozenset({"SafetensorError", "BadModelFile", "bad_model_file", "foreign_file"})
"""Types of problems of a run with a model file that our engine does not read."""

ENGINE_NAME = "fallback"
MAX_REASON_LENGTH = 300


class ChoiceKind(StrEnum):
    """Kind of reason for which a job goes to the fallback."""

    UNKNOWN_CLASS = "unknown_class"
    UNKNOWN_VALUE = "unknown_value"
    UNKNOWN_FAMILY = "unknown_family"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine other than ours for a job: the reason for it, and the node classes that it is about."""

    kind: ChoiceKind
    reason: str
    class_types: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return ENGINE_NAME


def may_be_run_elsewhere(problems: Sequence[Problem]) -> bool:
    """Return True if every problem may be our engine's alone."""
    return bool(problems) and all(problem.type in OF_OURS for problem in problems)


def choice_for(problems: Sequence[Problem]) -> EngineChoice:
    """Return the choice of the fallback for a workflow with these problems at our engine."""
    lacking = {problem.class_type for problem in problems if problem.type in UNKNOWN_CLASSES and problem.class_type}
    if lacking:
        return choice_for_classes(sorted(lacking))
    first = problems[0]
    at = f"node {first.node_id}: " if first.node_id else ""
    classes = (first.class_type,) if first.class_type else ()
    return EngineChoice(ChoiceKind.UNKNOWN_VALUE, f"{at}{first.message}"[:MAX_REASON_LENGTH], classes)


def choice_for_classes(class_types: Sequence[str]) -> EngineChoice:
    """Return the choice of the fallback for node classes that our engine lacks."""
    words = f"node classes that this engine lacks: {', '.join(class_types)}"
    return EngineChoice(ChoiceKind.UNKNOWN_CLASS, words[:MAX_REASON_LENGTH], tuple(class_types))


def choice_for_files(names: Sequence[str]) -> EngineChoice:
    """Return the choice of the fallback for model files of no family of our engine."""
    shown = ", ".join(repr(name) for name in names)
    return EngineChoice(ChoiceKind.UNKNOWN_FAMILY, f"models of no family of this engine: {shown}"[:MAX_REASON_LENGTH])


def choice_for_refusal(error: WorkerError) -> EngineChoice | None:
    """Return the choice of the fallback for a workflow that our engine refuses; None where another would as well."""
    if isinstance(error, RequestRejected) and may_be_run_elsewhere(error.problems):
        return choice_for(error.problems)
    return None


def choice_for_failure(error: WorkerError) -> EngineChoice | None:
    """Return the choice of the fallback for a run that failed on our engine; None where another would fail as well."""
    match error:
        case NodeFailed() | EngineCrashed():
            class_type = error.fields.get("class_type")
        case RequestRejected(problems=[problem]) if problem.type in MODEL_FILE_TYPES:
            class_type = problem.class_type
        case _:
            return None
    classes = () if class_type is None else (str(class_type),)
    return EngineChoice(ChoiceKind.FAILED, f"failed on this engine: {error.message}"[:MAX_REASON_LENGTH], classes)


def better_refusal(ours: Sequence[Problem], theirs: Sequence[Problem]) -> Sequence[Problem]:
    """Return the problems that help the caller more: those of the engine that knows the workflow's classes."""
    lacks_ours, lacks_theirs = (
        {problem.class_type for problem in problems if problem.type in UNKNOWN_CLASSES} for problems in (ours, theirs)
    )
    return theirs if len(lacks_theirs) < len(lacks_ours) else ours
