"""Model files that a workflow names, which of them the engine lacks, and where those can come from. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import PurePosixPath
from typing import Final

from darkroom.contract.graph.facts import Facts
from darkroom.contract.graph.model_inputs import ModelInputs
from darkroom.worker.engines.choices import choices_in
from darkroom.worker.engines.model_folders import kinds_of_input
from darkroom.worker.json.values import JsonObject
from darkroom.worker.models.entry import ModelEntry, find_kind_problem, find_name_problem
from darkroom.worker.models.files import MODEL_EXTENSIONS
from darkroom.worker.models.manifest import Manifest
from darkroom.worker.models.sources import BucketSource, FileSource, Source, parse_source
from darkroom.worker.prompts.workflows.node_uses import ModelHint, NodeUse

SAFE_EXTENSIONS: Final = frozenset({".safetensors", ".sft", ".gguf"})
"""Files that a request may bring: none of them can hold code."""

MAX_NAMED: Final = 1000
MAX_NAME_LENGTH: Final = 4096  # of a path


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model file that a node names. `kinds` are the folders below `models/` it may lie in; empty: not known."""

    node_id: str
    class_type: str
    field: str
    name: str
    kinds: tuple[str, ...]
    is_here: bool


@dataclass(frozen=True, slots=True)
class MissingModel:
    """A file that the engine lacks, and its entry where a source is known. `is_operators`: the manifest has it."""

    model: NamedModel
    entry: ModelEntry | None = None
    is_operators: bool = True


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """The files that a workflow names, each once for every node that names it."""

    named: tuple[NamedModel, ...] = ()
    missing: tuple[MissingModel, ...] = field(default=())

    def without(self, node_ids: Collection[str]) -> ModelNeeds:
        """Return the files that other nodes than these name."""
        if not node_ids:
            return self
        named = tuple(item for item in self.named if item.node_id not in node_ids)
        return ModelNeeds(named, tuple(item for item in self.missing if item.model.node_id not in node_ids))

    def to_fetch(self) -> dict[str, MissingModel]:
        """Return the missing files that have a source, by place below `models/`."""
        return {item.entry.place: item for item in self.missing if item.entry is not None}


def find_needs(
    uses: Sequence[NodeUse], object_info: JsonObject, manifest: Manifest, hints: Sequence[ModelHint] = ()
) -> ModelNeeds:
    """Return the model files of a workflow. `hints` are the download addresses that it gives itself."""
    named = tuple(islice(_named_models(uses, object_info), MAX_NAMED))
    by_name: dict[str, list[_Hint]] = {}
    for hint in hints:
        source = _source_of(hint)
        if source is not None:
            by_name.setdefault(hint.name, []).append(_Hint(hint, source))
    missing = tuple(_missing(model, manifest, by_name) for model in named if not model.is_here)
    return ModelNeeds(named, missing)


@dataclass(frozen=True, slots=True)
class _Hint:
    """Download address that a request gives, parsed."""

    hint: ModelHint
    source: Source


def _named_models(uses: Sequence[NodeUse], object_info: JsonObject) -> Iterator[NamedModel]:
    lookup, model_inputs = choices_in(object_info), ModelInputs(Facts(object_info), object_info)
    for use in uses:
        is_known = use.class_type in object_info
        for name, value in use.values.items():
            file_name, kinds = _file_in(model_inputs, use.class_type, name, value)
            if not file_name:
                continue
            choices = lookup(use.class_type, name) if is_known else None
            if choices is None and is_known and not kinds:
                continue  # a text that mentions a file
            is_here = choices is not None and file_name in choices
            yield NamedModel(use.id, use.class_type, name, file_name, kinds, is_here)


def _file_in(model_inputs: ModelInputs, class_type: str, input_name: str, value: object) -> tuple[str, tuple[str, ...]]:
    """Return the model file that an input names, and its kinds; no name without one."""
    kinds = kinds_of_input(model_inputs, class_type, input_name)
    if isinstance(value, Mapping):  # a row of a list of LoRAs
        value, kinds = (value.get("lora") if value.get("on", True) else None), ("loras",)
    if not isinstance(value, str) or len(value) > MAX_NAME_LENGTH or "\n" in value:
        return "", ()
    if PurePosixPath(value).suffix.lower() not in MODEL_EXTENSIONS:
        return "", ()
    return value, kinds


def _missing(model: NamedModel, manifest: Manifest, hints: Mapping[str, Sequence[_Hint]]) -> MissingModel:
    entry = manifest.find(model.kinds, model.name)
    if entry is not None:
        return MissingModel(model, entry)
    if PurePosixPath(model.name).suffix.lower() not in SAFE_EXTENSIONS or find_name_problem(model.name):
        return MissingModel(model)  # a request may not bring it
    for name in dict.fromkeys((model.name, PurePosixPath(model.name).name)):
        for found in hints.get(name, ()):
            kind = found.hint.directory
            if not model.kinds or kind in model.kinds:
                entry = ModelEntry(
                    f"{kind}/{model.name}", model.name, kind, model.name, (found.source,), sha256=found.hint.sha256
                )
                return MissingModel(replace(model, kinds=model.kinds or (kind,)), entry, is_operators=False)
    return MissingModel(model)


def _source_of(hint: ModelHint) -> Source | None:
    """Return the source that a request gives for a file; None for one that it may not give."""
    try:
        source: Source = parse_source(hint.url)
    except ValueError:
        return None
    is_local = isinstance(source, FileSource | BucketSource)
    return None if is_local or find_kind_problem(hint.directory) else source
