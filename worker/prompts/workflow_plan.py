"""WorkflowPlan: what a workflow lacks here, where that can come from, and what its run would cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from darkroom.worker.engines.choices import NOT_IN_LIST, UNKNOWN_CLASSES
from darkroom.worker.engines.fallback.choice import (
    EngineChoice,
    choice_for,
    choice_for_classes,
    choice_for_files,
    may_be_run_elsewhere,
)
from darkroom.worker.engines.later_nodes import LaterNode, find_later_node
from darkroom.worker.errors import Problem
from darkroom.worker.json.values import JsonObject
from darkroom.worker.prompts.missing_words import MissingInput
from darkroom.worker.prompts.model_needs import MissingModel, ModelNeeds
from darkroom.worker.prompts.workflows.known_packs import find_pack
from darkroom.worker.prompts.workflows.node_uses import NodeUse


@dataclass(frozen=True, slots=True)
class MissingNode:
    """A node class that the engine lacks, with the nodes that use it and the pack that has it, where that is known.

    `later` is set for a class of ComfyUI itself that came with a later version than the engine has.
    """

    class_type: str
    node_ids: tuple[str, ...]
    pack: str = ""
    url: str = ""
    known_by: str = ""
    later: LaterNode | None = None

    def as_json(self) -> dict[str, object]:
        pack = {"name": self.pack, "url": self.url, "known_by": self.known_by} if self.pack else None
        comfyui = None
        if self.later is not None:
            version, is_partner = self.later.version, self.later.is_partner
            comfyui = {"version": version, "is_partner": is_partner, "message": self.later.words}
        return {"class_type": self.class_type, "node_ids": list(self.node_ids), "pack": pack, "comfyui": comfyui}


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """Cost of a run in units of load, its seconds on one engine, and the wait before it. None: not known yet.

    `price` is what those seconds cost, in the currency of `WORKER_PRICE_PER_HOUR`. `source` says where the seconds come
    from, or why there are none.
    """

    cost: float | None = None
    seconds: float | None = None
    wait_seconds: float = 0.0
    price: float | None = None
    source: str = ""

    def as_json(self) -> dict[str, object]:
        return {
            "load_units": self.cost,
            "run_seconds": self.seconds,
            "wait_seconds": self.wait_seconds,
            "price": self.price,
            "source": self.source,
        }


@dataclass(frozen=True, slots=True)
class WorkflowPlan:
    """The plan of a workflow. `problems` are those that neither a pack nor a model solves, `limits` those of operators.

    `inputs` are files that are still to be sent, which is no problem of the workflow.
    `fetched` are the places of files that a job would fetch by itself. `memory` is the engine's plan for its device or
    a named card, None from an engine that has none. `summary` says which command brings the missing model files.
    `choice` is the other engine that the plan is for, None for one of ours.
    """

    needs: ModelNeeds
    inputs: tuple[MissingInput, ...] = ()
    missing_nodes: tuple[MissingNode, ...] = ()
    problems: tuple[Problem, ...] = ()
    limits: tuple[Problem, ...] = ()
    estimate: RunEstimate = field(default_factory=RunEstimate)
    fetched: frozenset[str] = frozenset()
    free_bytes: int = 0
    memory: JsonObject | None = None
    summary: str = ""
    choice: EngineChoice | None = None

    @property
    def can_run(self) -> bool:
        """True if a job with the workflow would be accepted, and its files fetched."""
        is_complete = all(item.entry is not None and item.entry.place in self.fetched for item in self.needs.missing)
        return is_complete and not (self.missing_nodes or self.problems or self.limits or self.inputs)

    def needs_elsewhere(self) -> EngineChoice | None:
        """Return the choice of another engine for what this plan shows that ours lacks; None for other reasons."""
        found = () if self.memory is None else self.memory.get("refused")
        refused = [str(item["model"]) for item in found] if isinstance(found, list) else []
        if self.missing_nodes:
            return choice_for_classes([item.class_type for item in self.missing_nodes])
        if may_be_run_elsewhere(self.problems):
            return choice_for(self.problems)
        return choice_for_files(refused) if refused and not self.problems else None

    def as_json(self) -> dict[str, object]:
        files = self.needs.to_fetch()
        sizes = [item.entry.size_bytes for item in files.values() if item.entry is not None]
        num_bytes = sum(size or 0 for size in sizes)
        return {
            "can_run": self.can_run,
            "engine": None if self.choice is None else {"name": self.choice.name, "reason": self.choice.reason},
            "missing_nodes": [item.as_json() for item in self.missing_nodes],
            "inputs": [item.as_json() for item in self.inputs],
            "summary": self.summary,
            "models": [self._model(item) for item in _once(self.needs.missing)],
            "num_models_here": len({(item.kinds, item.name) for item in self.needs.named if item.is_here}),
            "fetch": {
                "num_files": len(sizes),
                "bytes": num_bytes,
                "num_of_unknown_size": sum(size is None for size in sizes),
                "free_bytes": self.free_bytes,
                "fits": num_bytes <= self.free_bytes,
            },
            "problems": [problem.as_json() for problem in self.problems],
            "limits": [problem.as_json() for problem in self.limits],
            "estimate": self.estimate.as_json(),
            "memory": self.memory,
        }

    def _model(self, item: MissingModel) -> dict[str, object]:
        model, entry = item.model, item.entry
        found: dict[str, object] = {
            "name": model.name,
            "kinds": list(model.kinds),
            "node_id": model.node_id,
            "class_type": model.class_type,
            "field": model.field,
            "is_fetched": entry is not None and entry.place in self.fetched,
            "sources": [] if entry is None else [str(source) for source in entry.sources],
        }
        if entry is not None:
            found |= {"kind": entry.kind, "size_bytes": entry.size_bytes, "sha256": entry.sha256}
            found |= {"licence": entry.licence, "known_by": "manifest" if item.is_operators else "workflow"}
        return found


def find_missing_nodes(uses: Sequence[NodeUse], object_info: JsonObject) -> tuple[MissingNode, ...]:
    """Return the classes that an engine lacks, in the order of the nodes."""
    by_class: dict[str, list[NodeUse]] = {}
    for use in uses:
        if use.class_type not in object_info:
            by_class.setdefault(use.class_type, []).append(use)
    found = []
    for class_type, nodes in by_class.items():
        noted = next((use.pack for use in nodes if use.pack), "")
        later = find_later_node(class_type) if not noted else None
        pack = find_pack(class_type, noted) if later is None else None
        ids = tuple(use.id for use in nodes)
        found.append(
            MissingNode(class_type, ids, later=later)
            if pack is None
            else MissingNode(class_type, ids, pack.name, pack.url, pack.reason)
        )
    return tuple(found)


def other_problems(problems: Sequence[Problem], needs: ModelNeeds, object_info: JsonObject) -> tuple[Problem, ...]:
    """Return the problems that are neither a missing class nor a missing model."""
    models = {(item.model.node_id, item.model.field) for item in needs.missing}
    return tuple(
        problem
        for problem in problems
        if not (problem.type in UNKNOWN_CLASSES and problem.class_type and problem.class_type not in object_info)
        and not (problem.type == NOT_IN_LIST and (problem.node_id, problem.field) in models)
    )


def _once(missing: Sequence[MissingModel]) -> list[MissingModel]:
    """Return each missing file once, with the first node that names it."""
    first: dict[tuple[tuple[str, ...], str], MissingModel] = {}
    for item in missing:
        first.setdefault((item.model.kinds, item.model.name), item)
    return list(first.values())
