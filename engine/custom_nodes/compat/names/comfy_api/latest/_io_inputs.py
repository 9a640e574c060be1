"""Inputs and outputs of nodes by schema, and the types whose values have widgets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from engine.graph.spec import Values


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


class Input:
    """An input that only a link can supply. `io_type` is ComfyUI's type name."""

    io_type: Any = "*"
    named: ClassVar[Mapping[str, str]] = {}  # attributes among the options, by the option's name

    def __init__(
        self,
        id: str,
        display_name: str | None = None,
        optional: bool = False,
        tooltip: str | None = None,
        lazy: bool | None = None,
        extra_dict: Values | None = None,
        raw_link: bool | None = None,
        advanced: bool | None = None,
    ) -> None:
        self.id = id
        self.display_name = display_name
        self.optional = optional
        self.tooltip = tooltip
        self.lazy = lazy
        self.extra_dict = dict(extra_dict or {})
        self.rawLink = raw_link
        self.advanced = advanced

    def get_io_type(self) -> Any:
        return self.io_type

    def get_all(self) -> list[Input]:
        """Return the input and those that it may stand for."""
        return [self]

    def validate(self) -> None:
        """Raise ValueError for a declaration that cannot be used; most have nothing to check."""

    def as_dict(self) -> dict[str, object]:
        """Return the options as `/object_info` lists them."""
        common = {
            "display_name": self.display_name,
            "tooltip": self.tooltip,
            "lazy": self.lazy,
            "rawLink": self.rawLink,
            "advanced": self.advanced,
        }
        own = {name: plain(getattr(self, attribute)) for name, attribute in self.named.items()}
        return without_none({**common, **self.extra_dict, **own})


class WidgetInput(Input):
    """An input with a value of its own in the prompt."""

    common: ClassVar[Mapping[str, str]] = {
        "default": "default",
        "socketless": "socketless",
        "widgetType": "widget_type",
        "forceInput": "force_input",
    }

    def __init__(
        self,
        id: str,
        display_name: str | None = None,
        optional: bool = False,
        tooltip: str | None = None,
        lazy: bool | None = None,
        default: Any = None,
        socketless: bool | None = None,
        widget_type: str | None = None,
        force_input: bool | None = None,
        extra_dict: Values | None = None,
        raw_link: bool | None = None,
        advanced: bool | None = None,
    ) -> None:
        super().__init__(id, display_name, optional, tooltip, lazy, extra_dict, raw_link, advanced)
        self.default = plain(default)
        self.socketless = socketless
        self.widget_type = widget_type
        self.force_input = force_input

    def get_io_type(self) -> Any:
        return self.widget_type or self.io_type

    def as_dict(self) -> dict[str, object]:
        common = {name: getattr(self, attribute) for name, attribute in self.common.items()}
        options = super().as_dict()
        own = {name: options.pop(name) for name in self.named if name in options}
        return {**options, **without_none(common), **own}


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


def socket_type(io_type: str, value_type: Any = Any) -> type[ComfyTypeIO]:
    made: type[ComfyTypeIO] = _typed(type("ComfyType", (ComfyTypeIO,), {"Type": value_type}), io_type)
    return made


class _BooleanInput(WidgetInput):
    named = {"label_on": "label_on", "label_off": "label_off"}

    def __init__(
        self, id: str, *args: Any, label_on: str | None = None, label_off: str | None = None, **more: Any
    ) -> None:
        super().__init__(id, *args, **more)
        self.label_on = label_on
        self.label_off = label_off


class _NumberInput(WidgetInput):
    named = {
        "min": "min",
        "max": "max",
        "step": "step",
        "round": "round",
        "control_after_generate": "control_after_generate",
        "display": "display_mode",
        "gradient_stops": "gradient_stops",
    }

    def __init__(
        self,
        id: str,
        display_name: str | None = None,
        optional: bool = False,
        tooltip: str | None = None,
        lazy: bool | None = None,
        default: float | None = None,
        min: float | None = None,
        max: float | None = None,
        step: float | None = None,
        round: float | None = None,
        control_after_generate: bool | None = None,
        display_mode: NumberDisplay | None = None,
        gradient_stops: list[dict[str, Any]] | None = None,
        socketless: bool | None = None,
        force_input: bool | None = None,
        extra_dict: Values | None = None,
        raw_link: bool | None = None,
        advanced: bool | None = None,
    ) -> None:
        shown = (socketless, None, force_input, extra_dict, raw_link, advanced)
        super().__init__(id, display_name, optional, tooltip, lazy, default, *shown)
        self.min = min
        self.max = max
        self.step = step
        self.round = round
        self.control_after_generate = control_after_generate
        self.display_mode = display_mode
        self.gradient_stops = gradient_stops


class _StringInput(WidgetInput):
    named = {"multiline": "multiline", "placeholder": "placeholder", "dynamicPrompts": "dynamic_prompts"}

    def __init__(
        self,
        id: str,
        display_name: str | None = None,
        optional: bool = False,
        tooltip: str | None = None,
        lazy: bool | None = None,
        multiline: bool = False,
        placeholder: str | None = None,
        default: str | None = None,
        dynamic_prompts: bool | None = None,
        socketless: bool | None = None,
        force_input: bool | None = None,
        extra_dict: Values | None = None,
        raw_link: bool | None = None,
        advanced: bool | None = None,
    ) -> None:
        shown = (socketless, None, force_input, extra_dict, raw_link, advanced)
        super().__init__(id, display_name, optional, tooltip, lazy, default, *shown)
        self.multiline = multiline
        self.placeholder = placeholder
        self.dynamic_prompts = dynamic_prompts


class _ComboInput(WidgetInput):
    named = {
        "multiselect": "multiselect",
        "options": "options",
        "control_after_generate": "control_after_generate",
        "image_folder": "image_folder",
    }

    def __init__(
        self,
        id: str,
        options: Any = None,
        display_name: str | None = None,
        optional: bool = False,
        tooltip: str | None = None,
        lazy: bool | None = None,
        default: Any = None,
        control_after_generate: bool | None = None,
        upload: UploadType | None = None,
        image_folder: FolderType | None = None,
        remote: RemoteOptions | None = None,
        socketless: bool | None = None,
        extra_dict: Values | None = None,
        raw_link: bool | None = None,
        advanced: bool | None = None,
    ) -> None:
        shown = (socketless, None, None, extra_dict, raw_link, advanced)
        super().__init__(id, display_name, optional, tooltip, lazy, default, *shown)
        is_enum = isinstance(options, type) and issubclass(options, Enum)
        self.options = [item.value for item in options] if is_enum else options
        self.multiselect = False
        self.control_after_generate = control_after_generate
        self.upload = upload
        self.image_folder = image_folder
        self.remote = remote

    def as_dict(self) -> dict[str, object]:
        options = super().as_dict()
        if self.upload is not None:
            options[UploadType(self.upload).value] = True
        if self.remote is not None:
            options["remote"] = self.remote.as_dict()
        return options


class _MultiComboInput(_ComboInput):
    def __init__(
        self, id: str, options: Any, *args: Any, placeholder: str | None = None, chip: bool | None = None, **more: Any
    ) -> None:
        super().__init__(id, options, *args, **more)
        self.multiselect = True
        self.placeholder = placeholder
        self.chip = chip

    def as_dict(self) -> dict[str, object]:
        return {
            **super().as_dict(),
            "multi_select": without_none({"placeholder": self.placeholder, "chip": self.chip}),
        }


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

    def __init__(
        self,
        id: Any,
        types: Sequence[Any],
        display_name: str | None = None,
        optional: bool = False,
        tooltip: str | None = None,
        lazy: bool | None = None,
        extra_dict: Values | None = None,
        raw_link: bool | None = None,
        advanced: bool | None = None,
    ) -> None:
        self.shown: Any = None
        if isinstance(id, Input):
            self.shown = copy.copy(id)
            optional = id.optional or optional
            display_name, tooltip = id.display_name or display_name, id.tooltip or tooltip
            lazy = id.lazy if id.lazy is not None else lazy
            if isinstance(self.shown, WidgetInput):
                self.shown.widget_type = self.shown.get_io_type()
            id = id.id
        super().__init__(id, display_name, optional, tooltip, lazy, extra_dict, raw_link, advanced)
        self.io_types: list[Any] = [item if isinstance(item, type) else type(item) for item in types]

    def get_io_type(self) -> str:
        own = [] if self.shown is None else [str(self.shown.get_io_type())]
        return ",".join(dict.fromkeys([*own, *(str(kind.io_type) for kind in self.io_types)]))

    def as_dict(self) -> dict[str, object]:
        return {**({} if self.shown is None else self.shown.as_dict()), **super().as_dict()}


def widget_type(
    io_type: str, value_type: object, input_class: type[Input], output_class: type[Output] = Output
) -> object:
    members = {"Type": value_type, "Input": input_class, "Output": output_class}
    return _typed(type(io_type.title(), (ComfyTypeIO,), members), io_type)


Boolean = widget_type("BOOLEAN", bool, _BooleanInput)
Int = widget_type("INT", int, _NumberInput)
Float = widget_type("FLOAT", float, _NumberInput)
String = widget_type("STRING", str, _StringInput)
Combo = widget_type("COMBO", str, _ComboInput, _ComboOutput)
MultiCombo = widget_type("COMBO", list[str], _MultiComboInput)
Webcam = widget_type("WEBCAM", str, WidgetInput)


class MultiType:
    io_type = "COMFY_MULTITYPED_V3"
    Type = Any
    Input = _MultiTypeInput


def without_none(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else value
