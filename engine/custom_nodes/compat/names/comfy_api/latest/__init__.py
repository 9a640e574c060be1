"""`comfy_api.latest`: nodes by schema, extensions, and the interface for running nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from engine.custom_nodes.compat.names.comfy_api.latest import _io as io
from engine.custom_nodes.compat.names.comfy_api.latest import _ui as ui
from engine.custom_nodes.compat.names.comfy_api.progress import ComfyAPI, ComfyAPISync

comfy_io = IO = io
UI = ui
ComfyAPI_latest = ComfyAPI

__all__ = ["IO", "UI", "ComfyAPI", "ComfyAPISync", "ComfyAPI_latest", "ComfyExtension", "Input", "comfy_io", "io", "ui"]


class ComfyExtension(ABC):
    """A pack that lists its nodes; its module has `comfy_entrypoint()`, which returns an instance."""

    async def on_load(self) -> None:
        """Initialise the pack; called once, before the node list is requested."""
        return

    @abstractmethod
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """Return the node classes."""


class Input:
    """Types of values, for annotations."""

    Image = torch.Tensor
    Mask = torch.Tensor
    Latent = dict
    Audio = dict
