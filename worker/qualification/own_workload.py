"""User's own benchmark: a file with a workflow, or with a request for a modifier, instead of the built-in one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from darkroom.modifiers.modifier import ModificationsRejected
from darkroom.modifiers.registry import ModifierRegistry, UnknownModifier
from darkroom.worker.engines.families import Family
from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.json.values import JsonObject
from darkroom.worker.models.demo_model import defaults_among
from darkroom.worker.prompts.modifier_defaults import parameters_of
from darkroom.worker.qualification.workload import RANDOM_PROMPT, OwnWorkload
from darkroom.worker.settings.qualification import BenchmarkConfig

Checkpoints = Mapping[str, Family | None]
"""The checkpoints of an engine and their families, None for an unknown one."""

NO_CHECKPOINTS: Checkpoints = {}
FILE_NAME = Path("misc") / "benchmark.json"


def find_own_workload(
    config: BenchmarkConfig, places: Sequence[Path], registry: ModifierRegistry, checkpoints: Checkpoints
) -> OwnWorkload | None:
    """Return BENCHMARK_WORKFLOW, else the first `misc/benchmark.json` in `places`; None without either.

    A modifier gets the machine's only checkpoint and a random prompt where the file names none. `workload` is not
    computed yet. Raises SettingsInvalid, naming the variable or the file, for one that cannot be used.
    """
    file = config.workflow or next((path / FILE_NAME for path in places if (path / FILE_NAME).is_file()), None)
    if file is None:
        return None
    name = "BENCHMARK_WORKFLOW" if config.workflow is not None else str(file)
    workflow = read_workflow(file, name, registry, checkpoints, adds_defaults=True)
    return _workload(file.name, workflow)


def read_workflow(
    path: Path,
    name: str,
    registry: ModifierRegistry,
    checkpoints: Checkpoints = NO_CHECKPOINTS,
    *,
    adds_defaults: bool = False,
) -> dict[str, object]:
    """Read a workflow in API format, bare or as a request (`{"input": {"workflow_json" | "modifier"}}`).

    `adds_defaults`: a modifier gets a checkpoint and a prompt as `with_checkpoint` has them.
    Raises SettingsInvalid that begins with `name`.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsInvalid(f"{name}: {path} cannot be read: {error}") from None
    request = body.get("input", body) if isinstance(body, dict) else {}
    if isinstance(request, dict) and request.get("modifier"):
        modifier, given = str(request["modifier"]), request.get("modifications") or {}
        modifications = with_checkpoint(given, modifier, registry, checkpoints) if adds_defaults else given
        return build(modifier, modifications, registry, name, checkpoints)
    workflow = request.get("workflow_json") or request if isinstance(request, dict) else {}
    is_workflow = bool(workflow) and all(
        isinstance(node, dict) and isinstance(node.get("class_type"), str) for node in workflow.values()
    )
    if not is_workflow:
        raise SettingsInvalid(f"{name}: {path} is not a workflow in API format (node id -> class_type and inputs)")
    return dict(workflow)


def build(
    modifier: str,
    modifications: Mapping[str, object],
    registry: ModifierRegistry,
    name: str,
    checkpoints: Checkpoints = NO_CHECKPOINTS,
) -> dict[str, Any]:
    """Build the prompt of a modifier. Raises SettingsInvalid that begins with `name`."""
    try:
        checkpoint = registry.checkpoint_of(modifier, modifications)
        family = None if checkpoint is None else checkpoints.get(checkpoint)
        return registry.build(modifier, modifications, family=parameters_of(family))
    except UnknownModifier as error:
        raise SettingsInvalid(f"{name}: {error}") from None
    except ModificationsRejected as error:
        raise SettingsInvalid(f"{name}: {error}") from None


def with_checkpoint(
    modifications: JsonObject, modifier: str, registry: ModifierRegistry, checkpoints: Checkpoints
) -> dict[str, object]:
    """Add the machine's only checkpoint and a random prompt to modifications that name none."""
    try:
        fields = registry.get(modifier).model_fields
    except UnknownModifier:
        return dict(modifications)
    defaults: dict[str, Any] = {"prompt": RANDOM_PROMPT} if "prompt" in fields else {}
    found = defaults_among(list(checkpoints), modifications, registry.checkpoint_of(modifier, {}))
    defaults |= {name: value for name, value in found.items() if name in fields}
    return {**defaults, **modifications}


def _workload(name: str, workflow: dict[str, object]) -> OwnWorkload:
    digest = sha256(json.dumps(workflow, sort_keys=True).encode()).hexdigest()[:12]
    return OwnWorkload(name=name, digest=digest, workflow=workflow)
