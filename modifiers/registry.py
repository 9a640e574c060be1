"""Registry of modifiers by name, a user's own among them, built by `build_registry()`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from darkroom.contract.nearest import nearest_name
from darkroom.modifiers.control_net import ControlNet
from darkroom.modifiers.edit import Edit
from darkroom.modifiers.hires_fix import HiresFix
from darkroom.modifiers.image_to_image import Image2Image
from darkroom.modifiers.image_to_video import Image2Video
from darkroom.modifiers.inpaint import Inpaint
from darkroom.modifiers.lora_text_to_image import LoraText2Image
from darkroom.modifiers.model_files import ModelFileFields, reads_text_of_checkpoint
from darkroom.modifiers.modifier import Choices, FieldProblem, ModificationsRejected, Modifier
from darkroom.modifiers.raw_workflow import RawWorkflow
from darkroom.modifiers.text_to_audio import Text2Audio
from darkroom.modifiers.text_to_image import Text2Image
from darkroom.modifiers.text_to_video import Text2Video
from darkroom.modifiers.upscale import Upscale
from darkroom.modifiers.user_folder import BrokenModifier, FoundModifier, read_folder

HERE = Path(__file__).resolve().parent
"""This folder, which is no folder of a user's also where a checkout is the base directory."""

MODIFIERS: tuple[type[Modifier], ...] = (
    Text2Image,
    Image2Image,
    Inpaint,
    ControlNet,
    LoraText2Image,
    HiresFix,
    Upscale,
    Edit,
    Text2Video,
    Image2Video,
    Text2Audio,
    RawWorkflow,
)
BUILT_IN = "built in"
CHECKPOINT_FIELD = "ckpt_name"
NETWORK_FIELD = "unet_name"
FILE_INPUTS = {
    ("LoadImage", "image"): "image/*",
    ("LoadImageMask", "image"): "image/*",
    ("LoadAudio", "audio"): "audio/*",
    ("LoadVideo", "file"): "video/*",
}
"""Inputs that take a file of the request, and its kind (`contentMediaType` of the field's schema)."""
NO_TEXT: FieldProblem = {
    "field": "clip_names",
    "message": "is required: the checkpoint has no text encoder of its own",
    "allowed": {"type": "array", "items": {"type": "string"}},
}
FAMILY_NOTE = "Left out: what suits the family of models that the checkpoint is of."


class UnknownModifier(Exception):
    """Error for an unknown modifier name; `known` are the names that exist."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        self.name = name
        self.known = known
        nearest = nearest_name(name, known, by_start=True)
        hint = f"; did you mean {nearest}?" if nearest else ""
        super().__init__(f"unknown modifier {name!r}; known: {', '.join(known)}{hint}")


class ModifierUnusable(UnknownModifier):
    """Error for the name of a modifier whose file defines none; the message has the reason."""

    def __init__(self, name: str, known: tuple[str, ...], broken: BrokenModifier) -> None:
        super().__init__(name, known)
        self.args = (f"modifier {name!r} cannot be used: {broken.source}: {broken.reason}",)


class ModifierRegistry:
    """Modifiers and their workflows, by the name that requests use, and the files that define none."""

    def __init__(self, found: Sequence[FoundModifier], broken: Sequence[BrokenModifier] = ()) -> None:
        self._found = {entry.name: entry for entry in found}
        self.broken = tuple(broken)

    def names(self) -> tuple[str, ...]:
        return tuple(self._found)

    def get(self, name: str) -> type[Modifier]:
        """Return the modifier class of a name. Raises UnknownModifier, ModifierUnusable."""
        return self._lookup(name).modifier

    def checkpoint_of(self, name: str, modifications: Mapping[str, Any]) -> str | None:
        """Return the checkpoint that modifications name, else that of the workflow; None for a modifier without one.

        Raises UnknownModifier.
        """
        entry = self._lookup(name)
        field = entry.modifier.model_fields.get(CHECKPOINT_FIELD)
        if field is None:
            return None
        own = None if field.is_required() else field.default
        kept = entry.modifier.workflow_values(entry.workflow).get(CHECKPOINT_FIELD)
        found = modifications.get(CHECKPOINT_FIELD) or own or kept
        return found if isinstance(found, str) else None

    def network_of(self, name: str, modifications: Mapping[str, Any]) -> str | None:
        """Return the file that modifications name in place of a checkpoint, or None. Raises UnknownModifier."""
        found = modifications.get(NETWORK_FIELD) if NETWORK_FIELD in self._lookup(name).modifier.model_fields else None
        return found if isinstance(found, str) and found else None

    def describe(
        self, choices: Choices | None = None, families: Mapping[str, Mapping[str, Any]] | None = None
    ) -> list[dict[str, Any]]:
        """Describe each modifier: its name, its description, the JSON schema of its modifications and an example.

        With `choices` the schemas list the files and samplers that the engine has. `families` has, by modifier, the
        default parameters of the family of the checkpoint that draws where none is named. A file that defines no
        modifier is listed at the end, with `error` instead of a schema.
        """
        shown = [_described(entry, choices, (families or {}).get(name, {})) for name, entry in self._found.items()]
        return shown + [{"name": entry.name, "source": entry.source, "error": entry.reason} for entry in self.broken]

    def examples(self, choices: Choices) -> dict[str, dict[str, Any]]:
        """Return runnable modifications by modifier name; modifiers whose files the engine lacks are left out."""
        made = {name: entry.modifier.example_with(entry.workflow, choices) for name, entry in self._found.items()}
        return {name: example for name, example in made.items() if example is not None}

    def build(
        self,
        name: str,
        modifications: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        family: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Build the prompt of a request, with `__RANDOM_INT__` still in it where no seed was given.

        `defaults` replace a modifier's own (the checkpoint of this machine, for one); keys it lacks are skipped.
        `family` are the default parameters of the checkpoint's family, None where the workflow's are to stand; its
        `has_text` is False for a checkpoint without text encoders. Raises UnknownModifier, or ModificationsRejected
        with every problem.
        """
        entry = self._lookup(name)
        prompt = entry.modifier.parse(modifications, defaults, family).make(entry.workflow)
        lacks_text = family is not None and family.get("has_text") is False
        if lacks_text and issubclass(entry.modifier, ModelFileFields) and reads_text_of_checkpoint(prompt):
            raise ModificationsRejected(entry.modifier.__name__, [NO_TEXT])
        return prompt

    def _lookup(self, name: str) -> FoundModifier:
        if name not in self._found:
            broken = next((entry for entry in self.broken if entry.name.lower() == name.lower()), None)
            if broken is not None:
                raise ModifierUnusable(name, self.names(), broken)
            raise UnknownModifier(name, self.names())
        return self._found[name]


def _described(entry: FoundModifier, choices: Choices | None, family: Mapping[str, Any]) -> dict[str, Any]:
    schema = entry.modifier.model_json_schema()
    settled = entry.modifier.workflow_values(entry.workflow) | entry.modifier.defaults_of(family)
    for field, value in settled.items():
        if value not in (None, ""):  # an empty name is a place to fill
            schema["properties"][field]["default"] = value
    for field in entry.modifier.family_fields():
        described = schema["properties"][field]
        described["description"] = f"{described.get('description', '')} {FAMILY_NOTE}".strip()
    for field, media_type in _files_of(entry):
        schema["properties"][field]["contentMediaType"] = media_type
    if choices is not None:
        for field, allowed in entry.modifier.choice_fields(entry.workflow, choices).items():
            schema["properties"][field]["enum"] = list(allowed)
    example = dict(entry.modifier.example) if choices is None else entry.modifier.example_with(entry.workflow, choices)
    return {
        "name": entry.name,
        "description": (entry.modifier.__doc__ or "").strip().split("\n\n")[0],
        "source": entry.source,
        "schema": schema,
        "example": example,
    }


def _files_of(entry: FoundModifier) -> Iterator[tuple[str, str]]:
    """Yield the fields that take a file of the request, each with the kind of file."""
    for field, places in entry.modifier.places().items():
        for place in places:
            node = entry.workflow.get(place.node_id) or {}
            media_type = FILE_INPUTS.get((str(node.get("class_type")), place.input_name))
            if media_type is not None:
                yield field, media_type


def build_registry(folder: Path | None = None) -> ModifierRegistry:
    """Build the registry of all modifiers of this package and of the user's `folder`, and read their workflows."""
    workflows = files("darkroom.modifiers") / "workflows"
    found = [
        FoundModifier(
            modifier.__name__,
            modifier,
            json.loads((workflows / modifier.workflow_file).read_text(encoding="utf-8")),
            BUILT_IN,
        )
        for modifier in MODIFIERS
    ]
    broken = []
    is_own = folder is not None and folder.resolve() == HERE
    for entry in read_folder(folder) if folder is not None and not is_own else ():
        if isinstance(entry, BrokenModifier):
            broken.append(entry)
        elif (taken := next((other for other in found if other.name == entry.name), None)) is not None:
            broken.append(BrokenModifier(entry.name, entry.source, f"the name is taken ({taken.source})"))
        else:
            found.append(entry)
    return ModifierRegistry(found, broken)
