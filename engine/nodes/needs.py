"""Requirements of a prompt: the model files it names and the node classes it uses that do not exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from darkroom.contract.graph.spec import ValueDict, Values
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.nodes.catalogue import Catalogue
from darkroom.engine.nodes.function_node import FunctionNode
from darkroom.engine.nodes.widgets import ModelFile


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model file that an input of a node names. `kind` is its kind of folder (`checkpoints`, `vae`, ...)."""

    node_id: str
    input_name: str
    kind: str
    name: str
    is_present: bool

    def as_json(self) -> ValueDict:
        return {
            "node_id": self.node_id,
            "input_name": self.input_name,
            "folder": self.kind,
            "name": self.name,
            "present": self.is_present,
        }


@dataclass(frozen=True, slots=True)
class PromptNeeds:
    models: tuple[NamedModel, ...]
    missing_classes: tuple[str, ...]


def needs_of(prompt: Mapping[str, object], catalogue: Catalogue, folders: ModelFolders) -> PromptNeeds:
    """Return the model files that a prompt names and the node classes it lacks.

    Models are found in the inputs of built-in nodes; of custom nodes only the class is checked. `prompt` may be invalid
    in any way; entries that are not nodes are skipped.
    """
    nodes = {
        str(node_id): raw
        for node_id, raw in prompt.items()
        if isinstance(raw, Mapping) and isinstance(raw.get("class_type"), str)
    }
    missing = [raw["class_type"] for raw in nodes.values() if raw["class_type"] not in catalogue]
    models = [model for node_id, raw in nodes.items() for model in _models_of(node_id, raw, catalogue, folders)]
    return PromptNeeds(tuple(models), tuple(dict.fromkeys(missing)))


def _models_of(node_id: str, raw: Values, catalogue: Catalogue, folders: ModelFolders) -> Iterator[NamedModel]:
    node_class, inputs = catalogue.get(raw["class_type"]), raw.get("inputs")
    if not isinstance(node_class, FunctionNode) or not isinstance(inputs, Mapping):
        return
    for parameter in node_class.parameters:
        marker, name = parameter.marker, inputs.get(parameter.name)
        if isinstance(marker, ModelFile) and isinstance(name, str) and name not in marker.also:
            is_present = folders.path(marker.kind, name) is not None
            yield NamedModel(node_id, parameter.name, marker.kind, name, is_present)
