"""`comfy_api.latest`: nodes by schema, extensions, and the interface for running nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from darkroom.engine.comfy.names.comfy_api.latest import _io as io
from darkroom.engine.comfy.names.comfy_api.latest import _ui as ui
from darkroom.engine.comfy.names.comfy_api.latest._caching import Caching
from darkroom.engine.comfy.names.comfy_api.progress import ComfyAPI, ComfyAPISync
from darkroom.engine.media.video import Audio as AudioInput
from darkroom.engine.media.video import (
    VideoCodec,
    VideoComponents,
    VideoContainer,
    VideoFromComponents,
    VideoFromFile,
    VideoInput,
)
from darkroom.engine.nodes.sockets import Latent as LatentInput

comfy_io = IO = io
UI = ui
ComfyAPI_latest = ComfyAPI

ImageInput = MaskInput = torch.Tensor

__all__ = [
    "IO",
    "UI",
    "AudioInput",
    "Caching",
    "ComfyAPI",
    "ComfyAPISync",
    "ComfyAPI_latest",
    "ComfyExtension",
    "ImageInput",
    "Input",
    "InputImpl",
    "LatentInput",
    "MaskInput",
    "Types",
    "VideoCodec",
    "VideoComponents",
    "VideoContainer",
    "VideoFromComponents",
    "VideoFromFile",
    "VideoInput",
    "comfy_io",
    "io",
    "ui",
]


class ComfyExtension(ABC):
    """A pack that lists its nodes; its module has `comfy_entrypoint()`, which returns an instance."""

    async def on_load(self) -> None:
        """Initialise the pack; called once, before the node list is requested."""
        return

    @abstractmethod
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """Return the node classes."""


class Input:
    """Types of values, for annotations and as bases."""

    Image = ImageInput
    Mask = MaskInput
    Latent = LatentInput
    Audio = AudioInput
    Video = VideoInput


class InputImpl:
    """Videos of files and of images."""

    VideoFromFile = VideoFromFile
    VideoFromComponents = VideoFromComponents


class Types:
    """Parts, containers and codecs of videos."""

    VideoCodec = VideoCodec
    VideoContainer = VideoContainer
    VideoComponents = VideoComponents
