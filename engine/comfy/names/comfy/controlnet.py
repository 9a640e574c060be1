"""`comfy.controlnet`: loading ControlNets, and the classes that packs derive controls of their own from."""

from __future__ import annotations

from typing import Any

from darkroom.engine.comfy.host import HOST
from darkroom.engine.comfy.missing_symbol import not_supported
from darkroom.engine.comfy.names.comfy.utils import load_torch_file
from darkroom.engine.formats.weight_file import open_weights
from darkroom.engine.models.kinds.control_lora_value import ControlLora
from darkroom.engine.models.kinds.controlnet_value import (
    ControlBase,
    ControlNet,
    StrengthType,
    T2IAdapter,
    broadcast_image_to,
)

__all__ = ["ControlBase", "ControlLora", "ControlNet", "StrengthType", "T2IAdapter", "broadcast_image_to"]


def load_controlnet(ckpt_path: str, model: Any = None, model_options: Any = None) -> Any:
    """Load a file from a controlnet folder; `model` is the base of a file of differences.

    A pack's replacement of `comfy.utils.load_torch_file` is called, since the pack may remove it again right
    afterwards. It must return the file's own tensors.
    """
    if model_options:
        raise not_supported("comfy.controlnet.load_controlnet with model_options")
    store = HOST.get().engine.models
    read = HOST.get().replaced.get("comfy.utils.load_torch_file", load_torch_file)
    if read is not load_torch_file:
        _check_tensors(read(ckpt_path, safe_load=True), store.files.path_of("controlnet", ckpt_path))
    return store.auxiliary.controlnet(ckpt_path) if model is None else store.auxiliary.controlnet_upon(ckpt_path, model)


def _check_tensors(given: Any, path: Any) -> None:
    tensors = given[0] if isinstance(given, tuple) else given
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != open_weights(path).shapes:
        raise not_supported("another file's tensors from what takes comfy.utils.load_torch_file's place")
