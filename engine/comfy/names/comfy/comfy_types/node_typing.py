"""`comfy.comfy_types.node_typing`: names of socket types, and base classes in ComfyUI's form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, TypedDict

InputTypeDict = dict[str, Any]  # {"required": {name: (type, options)}, "optional": ..., "hidden": ...}
InputTypeOptions = dict[str, Any]
HiddenInputTypeDict = dict[str, Any]


class StrEnum(str, Enum):  # noqa: UP042 - Python's own has no __ne__ to change
    def __str__(self) -> str:
        return str(self.value)


class IO(StrEnum):
    """Socket types. `ANY` equals every type, so that code which compares types lets it pass."""

    STRING = "STRING"
    IMAGE = "IMAGE"
    MASK = "MASK"
    LATENT = "LATENT"
    BOOLEAN = "BOOLEAN"
    INT = "INT"
    FLOAT = "FLOAT"
    COMBO = "COMBO"
    CONDITIONING = "CONDITIONING"
    SAMPLER = "SAMPLER"
    SIGMAS = "SIGMAS"
    GUIDER = "GUIDER"
    NOISE = "NOISE"
    CLIP = "CLIP"
    CONTROL_NET = "CONTROL_NET"
    VAE = "VAE"
    MODEL = "MODEL"
    LORA_MODEL = "LORA_MODEL"
    LOSS_MAP = "LOSS_MAP"
    CLIP_VISION = "CLIP_VISION"
    CLIP_VISION_OUTPUT = "CLIP_VISION_OUTPUT"
    STYLE_MODEL = "STYLE_MODEL"
    GLIGEN = "GLIGEN"
    UPSCALE_MODEL = "UPSCALE_MODEL"
    AUDIO = "AUDIO"
    WEBCAM = "WEBCAM"
    POINT = "POINT"
    FACE_ANALYSIS = "FACE_ANALYSIS"
    BBOX = "BBOX"
    SEGS = "SEGS"
    VIDEO = "VIDEO"
    ANY = "*"
    NUMBER = "FLOAT,INT"
    PRIMITIVE = "STRING,FLOAT,INT,BOOLEAN"

    def __ne__(self, value: object) -> bool:
        if self.value == "*" or value == "*":
            return False
        if not isinstance(value, str):
            return True
        ours, theirs = set(self.value.split(",")), set(value.split(","))
        return not (ours <= theirs or theirs <= ours)

    __hash__ = str.__hash__


class FileLocator(TypedDict):
    """A file that an output node shows."""

    filename: str
    subfolder: str
    type: str


class ComfyNodeABC(ABC):
    """Base of node classes in ComfyUI's form; `engine/nodes/legacy_node.py` describes how its members are read."""

    DESCRIPTION: str
    CATEGORY: str
    EXPERIMENTAL: bool
    DEPRECATED: bool
    API_NODE: bool | None

    OUTPUT_NODE: bool
    INPUT_IS_LIST: bool
    OUTPUT_IS_LIST: tuple[bool, ...]
    RETURN_TYPES: tuple[str, ...]
    RETURN_NAMES: tuple[str, ...]
    OUTPUT_TOOLTIPS: tuple[str, ...]
    FUNCTION: str

    @classmethod
    @abstractmethod
    def INPUT_TYPES(cls) -> InputTypeDict:
        """Return the inputs by section: `{"required": {name: (type, options)}, "optional": ..., "hidden": ...}`."""


class CheckLazyMixin:
    """Mixin of a lazy node that requires all its inputs."""

    def check_lazy_status(self, **kwargs: object) -> list[str]:
        return [name for name, value in kwargs.items() if value is None]
