"""`comfy.controlnet`: loading ControlNets."""

from __future__ import annotations

from typing import Any

from engine.compat.host import HOST
from engine.compat.lacking import not_supported
from engine.nodes.control_value import ControlNet

__all__ = ["ControlNet"]


def load_controlnet(ckpt_path: str, model: Any = None, model_options: Any = None) -> Any:
    """A file in a controlnet folder; `model` is what a file of differences is upon."""
    if model_options:
        raise not_supported("comfy.controlnet.load_controlnet with model_options")
    store = HOST.get().engine.models
    return store.controlnet(ckpt_path) if model is None else store.controlnet_upon(ckpt_path, model)
