"""Defaults of a modifier on this machine: its checkpoint, and what the checkpoint's family of models draws with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from darkroom.contract.graph.prompt_graph import ModelFile
from darkroom.modifiers.registry import ModifierRegistry
from darkroom.worker.engines.choices import choices_of_kind
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.families import Family
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.json.values import JsonObject
from darkroom.worker.models.demo_model import defaults_among

CHECKPOINTS: Final = "checkpoints"
NETWORKS: Final = "diffusion_models"
KINDS: Final = (CHECKPOINTS, NETWORKS)
"""Kinds of the files whose families give a modifier its defaults."""


@dataclass(frozen=True, slots=True)
class ModifierDefaults:
    """Replacements of a modifier's defaults by field, and the default parameters of the checkpoint's family.

    `family` is None where the workflow's values stand: for the default family, and where the family is unknown.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    family: Mapping[str, Any] | None = None

    def build(self, registry: ModifierRegistry, name: str, modifications: Mapping[str, object]) -> dict[str, Any]:
        """Build the prompt of a request. Raises UnknownModifier and ModificationsRejected."""
        return registry.build(name, modifications, self.fields, self.family)


def checkpoints_of(object_info: JsonObject) -> Sequence[str]:
    """Return the names of the checkpoints that an engine lists."""
    return choices_of_kind(object_info, CHECKPOINTS)


async def find_defaults(
    engine: EngineClient,
    registry: ModifierRegistry,
    checkpoints: Sequence[str],
    name: str,
    modifications: Mapping[str, Any],
) -> ModifierDefaults:
    """Return the defaults of a modifier for a request. Raises UnknownModifier and EngineUnreachable."""
    network = registry.network_of(name, modifications)
    fields = {} if network else defaults_among(checkpoints, modifications, registry.checkpoint_of(name, {}))
    checkpoint = registry.checkpoint_of(name, {**modifications, **fields})
    file = None if checkpoint is None else ModelFile(CHECKPOINTS, checkpoint)
    file = ModelFile(NETWORKS, network) if network else file
    family = None if file is None else await _family_of(file, engine, checkpoints)
    return ModifierDefaults(fields, parameters_of(family))


async def _family_of(file: ModelFile, engine: EngineClient, checkpoints: Sequence[str]) -> Family | None:
    """Return the family of a file. Raises EngineUnreachable where only an engine that is away can tell it."""
    try:
        return (await engine.facts.families_of([file])).get(file)
    except EngineUnreachable:
        if engine.is_away and file.kind == CHECKPOINTS and file.name not in checkpoints:
            return None  # the engine does not have it either
        raise


async def find_all_defaults(
    engine: EngineClient, registry: ModifierRegistry, checkpoints: Sequence[str], names: Iterable[str]
) -> dict[str, ModifierDefaults]:
    """Return the defaults of modifiers for requests that name no checkpoint. Raises EngineUnreachable."""
    return {name: await find_defaults(engine, registry, checkpoints, name, {}) for name in names}


def parameters_of(family: Family | None) -> Mapping[str, object] | None:
    """Return the default parameters of a family; None where the workflows' own stand.

    Of the default family they are only those of its networks, not those of an image.
    """
    if family is None:
        return None
    return family.default.of_network() if family.is_default else family.default.as_json()
