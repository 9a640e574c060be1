"""Nodes that choose the device of a model.

An engine computes on one device and moves weights between it and RAM itself, so that each of these nodes passes its
model on as it is. One that names another device says so in a warning: a workflow of a machine with more devices runs.
"""

from __future__ import annotations

import logging
import re
from typing import Annotated, Any

import torch

from darkroom.engine.log_context import report_warning
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import CLIP, MODEL, VAE
from darkroom.engine.nodes.widgets import Int, OpenCombo

VERSION = "0.33.0"
CATEGORY = "advanced/multigpu"
MODULE = "comfy_extras.nodes_multigpu"
ABSENT = "device_absent"
DEVICE = re.compile(r"default|cpu|gpu:\d{1,4}")

log = logging.getLogger(__name__)

Device = Annotated[str, OpenCombo(("default", "cpu"))]
VaeDevice = Annotated[str, OpenCombo(("default",))]


def _complaint(environment: NodeEnvironment, device: str) -> str | None:
    if DEVICE.fullmatch(device) is None:
        return f"device: no device; got {device[:100]!r}, expected default, cpu or one such as gpu:0"
    return None


def _name_absent(device: str, used: torch.device) -> None:
    """Warn of a device that the model does not compute on."""
    is_used = device in {"default", "gpu:0" if used.type != "cpu" else "cpu"}
    if not is_used:
        report_warning(log, ABSENT, f"device: {device} is not this engine's; the model stays on {used}")


@node("SelectModelDevice", display_name="Select Model Device", category=CATEGORY, python_module=MODULE,
      check=_complaint, comfyui_version=VERSION)  # fmt: skip
def select_model_device(context: NodeContext, *, model: MODEL, device: Device) -> MODEL:
    """Pass a diffusion model on, with a warning where another device than the engine's is named."""
    _name_absent(device, model.load_device)
    return model


@node("SelectCLIPDevice", display_name="Select CLIP Device", category=CATEGORY, python_module=MODULE,
      check=_complaint, comfyui_version=VERSION)  # fmt: skip
def select_clip_device(context: NodeContext, *, clip: CLIP, device: Device) -> CLIP:
    """Pass a text encoder on, with a warning where another device than its own is named."""
    _name_absent(device, _device_of(clip))
    return clip


@node("SelectVAEDevice", display_name="Select VAE Device", category=CATEGORY, python_module=MODULE, check=_complaint,
      comfyui_version=VERSION)  # fmt: skip
def select_vae_device(context: NodeContext, *, vae: VAE, device: VaeDevice) -> VAE:
    """Pass a VAE on, with a warning where another device than its own is named."""
    _name_absent(device, _device_of(vae))
    return vae


def _device_of(value: Any) -> torch.device:
    """Return the device that a CLIP or VAE computes on."""
    device: torch.device = value.patcher.load_device
    return device


@node("MultiGPU_WorkUnits", display_name="MultiGPU CFG Split", category=CATEGORY, python_module=MODULE,
      comfyui_version=VERSION)  # fmt: skip
def multigpu_work_units(
    context: NodeContext, *, model: MODEL, max_gpus: Annotated[int, Int(min=1, step=1)] = 2
) -> MODEL:
    """Pass a diffusion model on: a worker with several devices splits guidance among its engines without this node."""
    return model


NODES = (select_model_device, select_clip_device, select_vae_device, multigpu_work_units)
