"""Annotations of the inputs that have a value of their own in the prompt: numbers, texts, choices, files."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from darkroom.contract.graph.facts import NO_FACTS, NodeFacts, SamplerFacts
from darkroom.contract.graph.spec import ValueDict
from darkroom.engine.nodes.base import NodeEnvironment
from darkroom.engine.text.prompt_weights import nesting_problem


@dataclass(frozen=True)
class Widget(ABC):
    """An input with a value of its own in the prompt. `extra` holds further options, as `/object_info` lists them."""

    extra: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    @abstractmethod
    def type_in(self, environment: NodeEnvironment) -> str | Sequence[object]:
        """Return ComfyUI's type name, or the values to choose from at this moment."""

    def options(self) -> ValueDict:
        named = {key: value for key, value in vars(self).items() if key != "extra" and value is not None}
        return {**named, **self.extra}

    def options_in(self, environment: NodeEnvironment) -> dict[str, object]:
        """Return the options at this moment. They differ from `options` for widgets that list files."""
        return self.options()

    def facts(self, name: str) -> NodeFacts:
        """Return the facts that a node declares by having this input under that name."""
        return NO_FACTS

    def samplers_in(self, environment: NodeEnvironment) -> Mapping[str, SamplerFacts]:
        """Return the samplers to choose from at this moment, those with facts."""
        return {}


@dataclass(frozen=True)
class Int(Widget):
    min: int | None = None
    max: int | None = None
    step: int | None = None
    control_after_generate: bool | None = None

    def type_in(self, environment: NodeEnvironment) -> str:
        return "INT"


@dataclass(frozen=True)
class WordOrInt(Int):
    """`Int` that takes one of these words too, which later releases of ComfyUI have in its place."""

    words: tuple[str, ...] = ()

    def options(self) -> ValueDict:
        return {key: value for key, value in Int.options(self).items() if key != "words"}

    def complaint(self, environment: NodeEnvironment, value: object) -> str | None:
        """Return the fault of a text that is none of the words, or of a number out of range; else None."""
        low, high = -math.inf if self.min is None else self.min, math.inf if self.max is None else self.max
        if value is None or value in self.words or (isinstance(value, int) and low <= value <= high):
            return None
        return f"got {value!r}, expected {self.min} to {self.max} or one of: {', '.join(self.words)}"

    def facts(self, name: str) -> NodeFacts:
        return NodeFacts(open=(name,))


@dataclass(frozen=True)
class Float(Widget):
    min: float | None = None
    max: float | None = None
    step: float | None = None
    round: float | bool | None = None

    def type_in(self, environment: NodeEnvironment) -> str:
        return "FLOAT"


@dataclass(frozen=True)
class Text(Widget):
    multiline: bool | None = None
    dynamicPrompts: bool | None = None  # noqa: N815 - ComfyUI's spelling

    def type_in(self, environment: NodeEnvironment) -> str:
        return "STRING"


@dataclass(frozen=True)
class FilePrefix(Text):
    """A text that names the files which the node saves: a path below the output folder, without number and ending."""

    def facts(self, name: str) -> NodeFacts:
        return NodeFacts(saves=name)


@dataclass(frozen=True)
class PromptText(Text):
    """A text that a text encoder reads, with weights in brackets."""

    def complaint(self, environment: NodeEnvironment, value: object) -> str | None:
        """Return the reason why the text cannot be read, or None if it can or a link supplies it."""
        return None if value is None else nesting_problem(str(value))


LongText = Annotated[str, PromptText(multiline=True, dynamicPrompts=True)]
"""A prompt of several lines."""


@dataclass(frozen=True)
class Flag(Widget):
    def type_in(self, environment: NodeEnvironment) -> str:
        return "BOOLEAN"


@dataclass(frozen=True)
class Choice(Widget):
    """A choice among fixed values. Clients see a default only if the signature has one."""

    values: tuple[Any, ...] = ()

    def type_in(self, environment: NodeEnvironment) -> tuple[object, ...]:
        return self.values

    def options(self) -> ValueDict:
        return dict(self.extra)


@dataclass(frozen=True)
class Combo(Choice):
    """`Choice` in the notation of ComfyUI's newer nodes: type `COMBO`, the values among the options."""

    def type_in(self, environment: NodeEnvironment) -> Any:
        return "COMBO"

    def options(self) -> ValueDict:
        return {"multiselect": False, "options": list(self.values), **self.extra}


@dataclass(frozen=True)
class OpenCombo(Combo):
    """`Combo` that takes other texts than its values too."""

    def facts(self, name: str) -> NodeFacts:
        return NodeFacts(open=(name,))


class OpenChoice(Choice):
    """`Choice` that takes other texts than its values too."""

    def facts(self, name: str) -> NodeFacts:
        return NodeFacts(open=(name,))


@dataclass(frozen=True)
class ModelFile(Widget):
    """A file of one kind of model (`checkpoints`, `vae`, ...) or of several, as `folders.py` lists them.

    `also` are names offered in addition to the files ("None", built-in previews).
    """

    kind: str = ""
    also: tuple[str, ...] = ()

    def type_in(self, environment: NodeEnvironment) -> list[str]:
        return [*environment.model_files(self.kind), *self.also]

    def complaint(self, environment: NodeEnvironment, value: object) -> str | None:
        """Return the fault of a file by its header alone, None for a whole one and for a name from a link."""
        return environment.model_problem(self.kind, value) if isinstance(value, str) else None

    def options(self) -> ValueDict:
        return dict(self.extra)

    def facts(self, name: str) -> NodeFacts:
        return NodeFacts(models={name: self.kind})


@dataclass(frozen=True)
class ModelCombo(ModelFile):
    """`ModelFile` in the notation of ComfyUI's newer nodes: type `COMBO`, the files among the options."""

    def type_in(self, environment: NodeEnvironment) -> Any:
        return "COMBO"

    def options_in(self, environment: NodeEnvironment) -> dict[str, object]:
        return {"multiselect": False, "options": ModelFile.type_in(self, environment), **self.extra}


@dataclass(frozen=True)
class InputFile(Widget):
    """A file in the input folder. `content` narrows the list: `image` by media type, `.latent` by file extension.

    `"photo.png [output]"` names a file of another folder (`input`, `output`, `temp`), as in ComfyUI. Validation of the
    prompt checks that the file exists; it does not check against the list.
    """

    content: str = "image"

    def type_in(self, environment: NodeEnvironment) -> list[str]:
        return environment.input_files(self.content)

    def complaint(self, environment: NodeEnvironment, value: object) -> str | None:
        """Return the fault of a file's name, in ComfyUI's words, or None without one.

        None also stands for a name that a link supplies.
        """
        if value is None:
            return None
        try:
            if environment.input_path(str(value)).is_file():
                return None
        except (OSError, ValueError):
            pass  # the name is too long, or leaves its folder: for the caller there is no such file
        return f"Invalid {self.content.strip('.')} file: {value}"

    def options(self) -> ValueDict:
        return dict(self.extra)

    def facts(self, name: str) -> NodeFacts:
        kind = self.content.strip(".")
        return NodeFacts(files={name: "image" if kind == "image" else "latent" if kind == "latent" else "file"})


@dataclass(frozen=True)
class InputCombo(InputFile):
    """`InputFile` in the notation of ComfyUI's newer nodes: type `COMBO`, the files among the options."""

    def type_in(self, environment: NodeEnvironment) -> Any:
        return "COMBO"

    def options_in(self, environment: NodeEnvironment) -> dict[str, object]:
        return {"multiselect": False, "options": InputFile.type_in(self, environment), **self.extra}


@dataclass(frozen=True)
class RecordedFile(InputFile):
    """A file that ComfyUI's page records and uploads. `kind` is the type of its widget."""

    kind: str = ""

    def type_in(self, environment: NodeEnvironment) -> Any:
        return self.kind

    def facts(self, name: str) -> NodeFacts:
        return InputFile.facts(self, name).joined(NodeFacts(recorded=(name,)))
