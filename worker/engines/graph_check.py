"""Graph check of a prompt: run here for a foreign engine, requested over HTTP from our own. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from darkroom.contract.graph.explain import explain_prompt
from darkroom.contract.graph.object_info import rules_in
from darkroom.worker.errors import Problem
from darkroom.worker.json.values import JsonObject


@dataclass(frozen=True, slots=True)
class FoundProblems:
    """Problems of a prompt that are listed, and the number of the others."""

    listed: tuple[Problem, ...] = ()
    num_unlisted: int = 0


def find_problems(prompt: JsonObject, object_info: JsonObject, pending_files: Collection[str] = ()) -> FoundProblems:
    """Check a prompt against an engine's `/object_info`. `pending_files` will be there by the time it runs."""
    return read_problems(explain_prompt(prompt, rules_in(object_info), pending_files).as_json())


def read_problems(answer: Mapping[str, object]) -> FoundProblems:
    """Read the problems in the answer of `/api/v1/workflow`."""
    problems, unlisted = answer.get("problems"), answer.get("unlisted_problems")
    listed = tuple(_problem(item) for item in problems) if isinstance(problems, Sequence) else ()
    return FoundProblems(listed, int(unlisted) if isinstance(unlisted, int | float) else 0)


def _problem(item: Mapping[str, Any]) -> Problem:
    node_id = item.get("node_id")
    return Problem(
        str(item.get("message") or "The workflow is not valid"),
        field=item.get("field") if node_id is not None else "workflow_json",
        node_id=node_id,
        class_type=item.get("class_type"),
        type=item.get("type"),
        allowed=item.get("allowed"),
        extra=item.get("extra"),
    )
