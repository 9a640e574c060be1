"""Inputs and outputs of nodes by schema, and the types whose values have widgets."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from darkroom.contract.graph.spec import Values


class FolderType(str, Enum):  # noqa: UP042 - its values are formatted as ComfyUI's are
    input = "input"
    output = "output"
    temp = "temp"


class UploadType(str, Enum):  # noqa: UP042 - its values are formatted as ComfyUI's are
    image = "image_upload"
    audio = "audio_upload"
    video = "video_upload"
    model = "file_upload"


class NumberDisplay(str, Enum):  # noqa: UP042 - its values are formatted as ComfyUI's are
    number = "number"
    slider = "slider"
    gradient_slider = "gradientslider"


class ControlAfterGenerate(str, Enum):  # noqa: UP042 - its values are formatted as ComfyUI's are
    fixed = "fixed"
    increment = "increment"
    decrement = "decrement"
    randomize = "randomize"


@dataclass
class RemoteOptions:
    """A list of choices that the client fetches."""

    route: str
    refresh_button: bool
    control_after_refresh: str = "first"
    timeout: int | None = None
    max_retries: int | None = None
    refresh: int | None = None

    def as_dict(self) -> dict[str, object]:
        return without_none(vars(self))


BASE = ("display_name", "optional", "tooltip", "lazy")
BASE_END = ("extra_dict", "raw_link", "advanced")
WIDGET_END = ("socketless", "force_input", *BASE_END)


def parameters(*names: str) -> tuple[str, ...]:
    """Return the names of an input's parameters after its id."""
    return names


class Input:
    """An input that only a link can supply. `io_type` is ComfyUI's type name.

    A class lists in `takes` the parameters of its constructor after the id, in ComfyUI's order; each becomes an
    attribute. `shown` are those among the options of `/object_info`, by the option's name.
    """

    io_type: Any = "*"
    takes: ClassVar[tuple[str, ...]] = (*BASE, *BASE_END)
    defaults: ClassVar[Values] = {"optional": False}  # of the parameters that are not None by default
    required: ClassVar[int] = 0  # how many of `takes` have no default
    shown: ClassVar[Mapping[str, str]] = {
        "display_name": "display_name",
        "tooltip": "tooltip",
        "lazy": "lazy",
        "rawLink": "raw_link",
        "advanced": "advanced",
    }
    id: str
    display_name: str | None
    optional: bool
    tooltip: str | None
    lazy: bool | None
    extra_dict: Values | None

    def __init__(self, id: Any, *given: Any, **named: Any) -> None:
        bound = self._signature().bind(id, *given, **named)
        bound.apply_defaults()
        vars(self).update(bound.arguments)
        self.prepare()

    @classmethod
    def _signature(cls) -> inspect.Signature:
        def parameter(index: int, name: str) -> inspect.Parameter:
            default = inspect.Parameter.empty if index < cls.required else cls.defaults.get(name)
            return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)

        first = inspect.Parameter("id", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return inspect.Signature([first, *(parameter(index, name) for index, name in enumerate(cls.takes))])

    def prepare(self) -> None:
        """Derive from the parameters what else the input has. Raises ValueError for what they must not be."""

    def get_io_type(self) -> Any:
        return self.io_type

    def get_all(self) -> list[Input]:
        """Return the input and those that it may stand for."""
        return [self]

    def validate(self) -> None:
        """Raise ValueError for a declaration that cannot be used; most have nothing to check."""

    def as_dict(self) -> dict[str, object]:
        """Return the options as `/object_info` lists them."""
        base, own = (
            without_none({option: plain(getattr(self, name)) for option, name in shown.items()})
            for shown in (Input.shown, self.shown)
        )
        return without_none({**base, **(self.extra_dict or {}), **own})


class WidgetInput(Input):
    """An input with a value of its own in the prompt."""

    takes = parameters(*BASE, "default", "socketless", "widget_type", "force_input", *BASE_END)
    shown: ClassVar[Mapping[str, str]] = {
        "default": "default",
        "socketless": "socketless",
        "widgetType": "widget_type",
        "forceInput": "force_input",
    }
    default: Any = None
    socketless: bool | None = None
    widget_type: str | None = None
    force_input: bool | None = None

    def prepare(self) -> None:
        self.default = plain(self.default)

    def get_io_type(self) -> Any:
        return self.widget_type or self.io_type


class Output:
    io_type: Any = "*"

    def __init__(
        self,
        id: str | None = None,
        display_name: str | None = None,
        tooltip: str | None = None,
        is_output_list: bool = False,
    ) -> None:
        self.id = id
        self.display_name = display_name or id
        self.tooltip = tooltip
        self.is_output_list = is_output_list

    def get_io_type(self) -> Any:
        return self.io_type


class ComfyTypeI:
    """A type whose values may be inputs."""

    io_type: Any = "*"
    Type: Any = Any
    Input: type[Any] = Input


class ComfyTypeIO(ComfyTypeI):
    """A type whose values may be inputs and outputs."""

    Output: type[Any] = Output


def comfytype(io_type: str, **kwargs: object) -> Callable[[type], object]:
    """Return a decorator that gives a class that type name, with inputs and outputs of its own."""

    def decorate(cls: type) -> object:
        made = cls if issubclass(cls, ComfyTypeI) else type(cls.__name__, (cls, ComfyTypeIO), {})
        return _typed(made, io_type)

    return decorate


def Custom(io_type: str) -> type[ComfyTypeIO]:
    """Return a type of any name."""
    return socket_type(io_type)


def _typed(kind: Any, io_type: Any) -> Any:
    """Set a type's name; its `Input` and `Output` become classes of its own."""
    kind.io_type = io_type
    for name, base in (("Input", Input), ("Output", Output)):
        member = getattr(kind, name, None)
        if member is not None and issubclass(member, base):
            own: Any = type(name, (member,), {"Parent": kind})
            own.io_type = io_type
            setattr(kind, name, own)
    return kind


def socket_type(io_type: str, value_type: Any = Any, **named: object) -> type[ComfyTypeIO]:
    """Return the type of a link. `named` are the types of its values that packs name in annotations."""
    made: type[ComfyTypeIO] = _typed(type("ComfyType", (ComfyTypeIO,), {"Type": value_type, **named}), io_type)
    return made


def shown_as(*names: str, **renamed: str) -> dict[str, str]:
    """Return a widget's options: those of every widget, those under their own names, and those under others."""
    return {**WidgetInput.shown, **{name: name for name in names}, **renamed}


class _BooleanInput(WidgetInput):
    takes = parameters(*BASE, "default", "label_on", "label_off", *WIDGET_END)
    shown = shown_as("label_on", "label_off")


class _IntInput(WidgetInput):
    takes = parameters(*BASE, "default", "min", "max", "step", "control_after_generate", "display_mode", *WIDGET_END)
    shown = shown_as("min", "max", "step", "control_after_generate", display="display_mode")


class _FloatInput(WidgetInput):
    takes = parameters(*BASE, "default", "min", "max", "step", "round", "display_mode", "gradient_stops", *WIDGET_END)
    shown = shown_as("min", "max", "step", "round", "gradient_stops", display="display_mode")


class _StringInput(WidgetInput):
    takes = parameters(*BASE, "multiline", "placeholder", "default", "dynamic_prompts", *WIDGET_END)
    shown = shown_as("multiline", "placeholder", dynamicPrompts="dynamic_prompts")
    defaults = {**Input.defaults, "multiline": False}


class _ComboInput(WidgetInput):
    takes = parameters(
        "options", *BASE, "default", "control_after_generate", "upload", "image_folder", "remote", "socketless",
        *BASE_END,
    )  # fmt: skip
    shown = shown_as("multiselect", "options", "control_after_generate", "image_folder")
    options: Any
    upload: UploadType | None = None
    image_folder: FolderType | None = None
    remote: RemoteOptions | None = None
    multiselect = False

    def prepare(self) -> None:
        super().prepare()
        if isinstance(self.options, type) and issubclass(self.options, Enum):
            self.options = [item.value for item in self.options]

    def as_dict(self) -> dict[str, object]:
        options = super().as_dict()
        if self.upload is not None:
            options[UploadType(self.upload).value] = True
        if self.remote is not None:
            options["remote"] = self.remote.as_dict()
        return options


class _MultiComboInput(_ComboInput):
    takes = parameters(
        "options", *BASE, "default", "placeholder", "chip", "control_after_generate", "socketless", *BASE_END,
    )  # fmt: skip
    required = 1
    multiselect = True
    placeholder: str | None
    chip: bool | None

    def as_dict(self) -> dict[str, object]:
        shown = without_none({"placeholder": self.placeholder, "chip": self.chip})
        return {**super().as_dict(), "multi_select": shown}


class _WebcamInput(WidgetInput):
    takes = parameters(*BASE, "default", "socketless", *BASE_END)


class _ComboOutput(Output):
    """One of several choices. Any input of choices takes it."""

    def __init__(
        self,
        id: str | None = None,
        display_name: str | None = None,
        options: Sequence[Any] | None = None,
        tooltip: str | None = None,
        is_output_list: bool = False,
    ) -> None:
        super().__init__(id, display_name, tooltip, is_output_list)
        self.options = list(options or ())


class _MultiTypeInput(Input):
    """An input of several types. Given an `Input` instead of an id, clients show its widget."""

    takes = parameters("types", *BASE, *BASE_END)
    required = 1
    types: Sequence[Any]

    def prepare(self) -> None:
        self.override: Input | None = None
        own: Any = self.id
        if isinstance(own, Input):
            self.override = copy.copy(own)
            self.optional = own.optional or self.optional
            self.display_name = own.display_name or self.display_name
            self.tooltip = own.tooltip or self.tooltip
            self.lazy = own.lazy if own.lazy is not None else self.lazy
            if isinstance(self.override, WidgetInput):
                self.override.widget_type = self.override.get_io_type()
            self.id = own.id
        self.io_types: list[Any] = [item if isinstance(item, type) else type(item) for item in self.types]

    def get_io_type(self) -> str:
        own = [] if self.override is None else [str(self.override.get_io_type())]
        return ",".join(dict.fromkeys([*own, *(str(kind.io_type) for kind in self.io_types)]))

    def as_dict(self) -> dict[str, object]:
        return {**({} if self.override is None else self.override.as_dict()), **super().as_dict()}


def widget_type(
    io_type: str, value_type: object, input_class: type[Input], output_class: type[Output] = Output
) -> object:
    members = {"Type": value_type, "Input": input_class, "Output": output_class}
    return _typed(type(io_type.title(), (ComfyTypeIO,), members), io_type)


Boolean = widget_type("BOOLEAN", bool, _BooleanInput)
Int = widget_type("INT", int, _IntInput)
Float = widget_type("FLOAT", float, _FloatInput)
String = widget_type("STRING", str, _StringInput)
Combo = widget_type("COMBO", str, _ComboInput, _ComboOutput)
MultiCombo = widget_type("COMBO", list[str], _MultiComboInput)
Webcam = widget_type("WEBCAM", str, _WebcamInput)


class MultiType:
    io_type = "COMFY_MULTITYPED_V3"
    Type = Any
    Input = _MultiTypeInput


def without_none(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else value
