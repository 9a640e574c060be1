"""`comfy_api.latest.io`: nodes that are declared by a schema.

A `ComfyNode` is read as a class in ComfyUI's older form (`engine/nodes/legacy_node.py`): the members of that form
(`INPUT_TYPES`, `RETURN_TYPES`, `FUNCTION`, ...) are derived here from `define_schema()`. Its author's code never makes
an instance: `execute` and the rest are class methods, called on a sub-class that belongs to one node and carries its
hidden inputs.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

import torch

from engine.custom_nodes.compat.missing_symbol import not_supported
from engine.graph.spec import ValueDict, Values
from engine.nodes.base import ExecutionBlocker
from engine.values.video import Audio as AudioInput
from engine.values.video import VideoInput


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
        return _without_none(vars(self))


class Hidden(str, Enum):  # noqa: UP042 - its values are formatted as ComfyUI's are
    """Inputs that the engine fills in."""

    unique_id = "UNIQUE_ID"
    prompt = "PROMPT"
    extra_pnginfo = "EXTRA_PNGINFO"
    dynprompt = "DYNPROMPT"
    auth_token_comfy_org = "AUTH_TOKEN_COMFY_ORG"
    api_key_comfy_org = "API_KEY_COMFY_ORG"


class HiddenHolder:
    """Hidden inputs of a call as attributes; None for those the schema does not declare."""

    def __init__(self, values: Values | None = None) -> None:
        self.__dict__.update(values or {})

    def __getattr__(self, name: str) -> object:
        return None


# --- inputs and outputs ---------------------------------------------------------------------------


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
    ) -> None:
        self.id = id
        self.display_name = display_name
        self.optional = optional
        self.tooltip = tooltip
        self.lazy = lazy
        self.extra_dict = dict(extra_dict or {})

    def get_io_type(self) -> Any:
        return self.io_type

    def as_dict(self) -> dict[str, object]:
        """Return the options as `/object_info` lists them."""
        common = {"display_name": self.display_name, "tooltip": self.tooltip, "lazy": self.lazy}
        own = {name: _plain(getattr(self, attribute)) for name, attribute in self.named.items()}
        return _without_none({**common, **self.extra_dict, **own})


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
        extra_dict: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(id, display_name, optional, tooltip, lazy, extra_dict)
        self.default = _plain(default)
        self.socketless = socketless
        self.widget_type = widget_type
        self.force_input = force_input

    def get_io_type(self) -> Any:
        return self.widget_type or self.io_type

    def as_dict(self) -> dict[str, object]:
        common = {name: getattr(self, attribute) for name, attribute in self.common.items()}
        options = super().as_dict()
        own = {name: options.pop(name) for name in self.named if name in options}
        return {**options, **_without_none(common), **own}


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
        self.display_name = display_name
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
            if not isinstance(vars(member).get("io_type"), property):
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
        socketless: bool | None = None,
        force_input: bool | None = None,
    ) -> None:
        super().__init__(id, display_name, optional, tooltip, lazy, default, socketless, None, force_input)
        self.min = min
        self.max = max
        self.step = step
        self.round = round
        self.control_after_generate = control_after_generate
        self.display_mode = display_mode


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
    ) -> None:
        super().__init__(id, display_name, optional, tooltip, lazy, default, socketless, None, force_input)
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
    ) -> None:
        super().__init__(id, display_name, optional, tooltip, lazy, default, socketless)
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
        shown = {"multi_select": True, "placeholder": self.placeholder, "chip": self.chip}
        return {**super().as_dict(), **_without_none(shown)}


class _ComboOutput(Output):
    """Output of a combo, whose type is the list of choices."""

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

    @property
    def io_type(self) -> Any:
        return self.options


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
        extra_dict: Mapping[str, Any] | None = None,
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
        super().__init__(id, display_name, optional, tooltip, lazy, extra_dict)
        self.io_types: list[Any] = [item if isinstance(item, type) else type(item) for item in types]

    def get_io_type(self) -> str:
        own = [] if self.shown is None else [str(self.shown.get_io_type())]
        return ",".join(dict.fromkeys([*own, *(str(kind.io_type) for kind in self.io_types)]))

    def as_dict(self) -> dict[str, object]:
        return {**({} if self.shown is None else self.shown.as_dict()), **super().as_dict()}


def _widget_type(
    io_type: str, value_type: object, input_class: type[Input], output_class: type[Output] = Output
) -> object:
    members = {"Type": value_type, "Input": input_class, "Output": output_class}
    return _typed(type(io_type.title(), (ComfyTypeIO,), members), io_type)


Boolean = _widget_type("BOOLEAN", bool, _BooleanInput)
Int = _widget_type("INT", int, _NumberInput)
Float = _widget_type("FLOAT", float, _NumberInput)
String = _widget_type("STRING", str, _StringInput)
Combo = _widget_type("COMBO", str, _ComboInput, _ComboOutput)
MultiCombo = _widget_type("COMBO", list[str], _MultiComboInput)
Webcam = _widget_type("WEBCAM", str, WidgetInput)


class MultiType:
    Type = Any
    Input = _MultiTypeInput


Image = socket_type("IMAGE", torch.Tensor)
Mask = socket_type("MASK", torch.Tensor)
Latent = socket_type("LATENT", dict)
Conditioning = socket_type("CONDITIONING", list)
Sampler = socket_type("SAMPLER")
Sigmas = socket_type("SIGMAS", torch.Tensor)
Noise = socket_type("NOISE")
Guider = socket_type("GUIDER")
Clip = socket_type("CLIP")
ControlNet = socket_type("CONTROL_NET")
Vae = socket_type("VAE")
Model = socket_type("MODEL")
ClipVision = socket_type("CLIP_VISION")
ClipVisionOutput = socket_type("CLIP_VISION_OUTPUT")
StyleModel = socket_type("STYLE_MODEL")
Gligen = socket_type("GLIGEN")
UpscaleModel = socket_type("UPSCALE_MODEL")
Audio = socket_type("AUDIO", AudioInput)
Video = socket_type("VIDEO", VideoInput)
SVG = socket_type("SVG")
LoraModel = socket_type("LORA_MODEL", dict)
LossMap = socket_type("LOSS_MAP", dict)
Voxel = socket_type("VOXEL")
Mesh = socket_type("MESH")
Hooks = socket_type("HOOKS")
HookKeyframes = socket_type("HOOK_KEYFRAMES")
TimestepsRange = socket_type("TIMESTEPS_RANGE", tuple)
LatentOperation = socket_type("LATENT_OPERATION")
FlowControl = socket_type("FLOW_CONTROL", tuple)
Accumulation = socket_type("ACCUMULATION", dict)
Load3DCamera = socket_type("LOAD3D_CAMERA", dict)
Load3D = socket_type("LOAD_3D", dict)
Load3DAnimation = socket_type("LOAD_3D_ANIMATION", dict)
Photomaker = socket_type("PHOTOMAKER")
Point = socket_type("POINT")
FaceAnalysis = socket_type("FACE_ANALYSIS")
BBOX = socket_type("BBOX")
SEGS = socket_type("SEGS")
AnyType = socket_type("*")
MODEL_PATCH = socket_type("MODEL_PATCH")
AudioEncoder = socket_type("AUDIO_ENCODER")
AudioEncoderOutput = socket_type("AUDIO_ENCODER_OUTPUT")
WanCameraEmbedding = socket_type("WAN_CAMERA_EMBEDDING", torch.Tensor)


# --- schema and node ------------------------------------------------------------------------------


@dataclass
class Schema:
    """Declaration of a node."""

    node_id: str
    display_name: str | None = None
    category: str = "sd"
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    hidden: list[Hidden] = field(default_factory=list)
    description: str = ""
    is_input_list: bool = False
    is_output_node: bool = False
    is_deprecated: bool = False
    is_experimental: bool = False
    is_api_node: bool = False
    not_idempotent: bool = False
    enable_expand: bool = False

    def validate(self) -> None:
        """Raise ValueError when two inputs, or two outputs, have the same id.

        An output may have an input's: ComfyUI 0.3.64 refuses that, later versions, which packs are written for, do not.
        """
        lists = [[item.id for item in items or () if item.id is not None] for items in (self.inputs, self.outputs)]
        twice = sorted({name for ids in lists for name in ids if ids.count(name) > 1})
        if twice:
            raise ValueError(f"{self.node_id}: ids must be unique, and these are not: {', '.join(twice)}")

    def all_hidden(self) -> list[Hidden]:
        """Return the declared hidden inputs, and those that output nodes and API nodes always get."""
        wanted = list(self.hidden or ())
        if self.is_api_node:
            wanted += [Hidden.auth_token_comfy_org, Hidden.api_key_comfy_org]
        if self.is_output_node:
            wanted += [Hidden.prompt, Hidden.extra_pnginfo]
        return list(dict.fromkeys(wanted))


class NodeOutput:
    """Result of `execute`: the outputs in order, and what is shown, expanded or blocked."""

    def __init__(
        self, *args: Any, ui: Any = None, expand: dict[str, Any] | None = None, block_execution: str | None = None
    ) -> None:
        self.args = args
        self.ui = ui
        self.expand = expand
        self.block_execution = block_execution

    @property
    def result(self) -> tuple[Any, ...] | None:
        return self.args or None

    def __getitem__(self, index: int) -> object:
        return self.args[index]


class _FromSchema:
    """A member of the older form, read from the schema on each access, since lists of files change."""

    def __init__(self, read: Callable[[Schema], Any]) -> None:
        self._read = read

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self._read(owner.GET_SCHEMA())


class ComfyNode(ABC):
    """Base of nodes by schema: `define_schema` and `execute`, and optionally the three checks below them."""

    hidden: Any = HiddenHolder()

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Set `validate_inputs` and `fingerprint_inputs`, where a class has them, under their older names."""
        super().__init_subclass__(**kwargs)
        for name, older in (("validate_inputs", "VALIDATE_INPUTS"), ("fingerprint_inputs", "IS_CHANGED")):
            own = getattr(cls, name, None)
            if own is not None:
                setattr(cls, older, own)

    @classmethod
    @abstractmethod
    def define_schema(cls) -> Schema:
        """Return the declaration."""

    @classmethod
    @abstractmethod
    def execute(cls, **kwargs: object) -> object:
        """Run one call.

        Return a `NodeOutput`, a tuple of outputs, a dict in the older form, or an `ExecutionBlocker`.
        """

    @classmethod
    def GET_SCHEMA(cls) -> Schema:
        schema = cls.define_schema()
        schema.validate()
        return schema

    @classmethod
    def INPUT_TYPES(cls) -> ValueDict:
        schema = cls.GET_SCHEMA()
        declared: dict[str, Any] = {"required": {}}
        for item in schema.inputs or ():
            if not hasattr(item, "get_io_type"):
                raise not_supported(f"comfy_api.latest.io.{type(item).__qualname__}")
            section = declared.setdefault("optional" if item.optional else "required", {})
            section[item.id] = (item.get_io_type(), item.as_dict())
        hidden = schema.all_hidden()
        if hidden:
            declared["hidden"] = {item.name: item.value for item in hidden}
        return declared

    FUNCTION = "CALL"
    RETURN_TYPES = _FromSchema(lambda schema: tuple(item.get_io_type() for item in schema.outputs or ()))
    RETURN_NAMES = _FromSchema(
        lambda schema: tuple(item.display_name or item.get_io_type() for item in schema.outputs or ())
    )
    OUTPUT_IS_LIST = _FromSchema(lambda schema: tuple(item.is_output_list for item in schema.outputs or ()))
    OUTPUT_TOOLTIPS = _FromSchema(lambda schema: tuple(item.tooltip for item in schema.outputs or ()))
    DESCRIPTION = _FromSchema(lambda schema: schema.description)
    CATEGORY = _FromSchema(lambda schema: schema.category)
    EXPERIMENTAL = _FromSchema(lambda schema: schema.is_experimental)
    DEPRECATED = _FromSchema(lambda schema: schema.is_deprecated)
    API_NODE = _FromSchema(lambda schema: schema.is_api_node)
    OUTPUT_NODE = _FromSchema(lambda schema: schema.is_output_node)
    INPUT_IS_LIST = _FromSchema(lambda schema: schema.is_input_list)
    NOT_IDEMPOTENT = _FromSchema(lambda schema: schema.not_idempotent)

    def CALL(self, **inputs: object) -> object:
        """Run one call in the older form. The class is a sub-class with this call's hidden inputs."""
        kind: Any = type(self)
        schema = kind.GET_SCHEMA()
        hidden = {item.name: inputs.pop(item.name, None) for item in schema.all_hidden()}
        own: Any = type(kind.__name__, (kind,), {"hidden": HiddenHolder(hidden), "__module__": kind.__module__})
        outcome = own.execute(**inputs)
        if inspect.isawaitable(outcome):
            return _later(outcome, schema)
        return older_form(outcome, schema)


async def _later(outcome: Any, schema: Schema) -> Any:
    return older_form(await outcome, schema)


def older_form(outcome: Any, schema: Schema) -> Any:
    """Convert the result of `execute` for `engine/nodes/legacy_node.py`. Raises TypeError for any other type."""
    if isinstance(outcome, ExecutionBlocker):
        return outcome
    if outcome is None:
        outcome = NodeOutput()
    if isinstance(outcome, (tuple, dict)):
        return outcome
    if not isinstance(outcome, NodeOutput):
        raise TypeError(f"{schema.node_id} gave a {type(outcome).__name__}, which is no output of a node")
    if outcome.expand is not None and not schema.enable_expand:
        raise TypeError(f"{schema.node_id} expands, which its schema does not allow (enable_expand)")
    if outcome.block_execution is not None:
        return ExecutionBlocker(outcome.block_execution)
    shown: dict[str, Any] = {}
    if outcome.result is not None:
        shown["result"] = outcome.result
    if outcome.ui is not None:
        shown["ui"] = outcome.ui if isinstance(outcome.ui, dict) else outcome.ui.as_dict()
    if outcome.expand is not None:
        shown["expand"] = outcome.expand
    return shown


def _without_none(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else value
