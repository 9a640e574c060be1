"""Nodes for a LoRA that was trained in the same workflow: applying and saving it, and a plot of the losses.

LORA_MODEL holds its tensors by name, as its file does; LOSS_MAP is `{"loss": [one number a step]}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch

from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.images.encode import metadata_texts, write_png
from darkroom.engine.images.line_plot import line_plot
from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.model.lora import with_lora
from darkroom.engine.nodes.markers import Hidden, Optional, Out, Socket
from darkroom.engine.nodes.sockets import MODEL
from darkroom.engine.nodes.widgets import FilePrefix, Flag, Float, Int

MODULE = "comfy_extras.nodes_train"
PNG_LEVEL = 6

LoraModel = Annotated[Mapping[str, torch.Tensor], Socket("LORA_MODEL")]


LossMap = Annotated[Mapping[str, Any], Socket("LOSS_MAP")]


@node(
    "LoraModelLoader",
    display_name="Load LoRA Model",
    category="model/loaders",
    python_module=MODULE,
    experimental=True,
    output_tooltips=["The modified diffusion model."],
)
def lora_model_loader(
    context: NodeContext,
    *,
    model: MODEL,
    lora: LoraModel,
    strength_model: Annotated[float, Float(min=-100.0, max=100.0)] = 1.0,
    bypass: Annotated[bool, Flag()] = False,
) -> Annotated[MODEL, Out("model")]:
    """Load Trained LoRA weights from Train LoRA node.

    `bypass` changes nothing here: the model's own weights are never modified, the LoRA is added to a copy of them.
    """
    if strength_model == 0:
        return model
    patched, _ = with_lora(model, None, lora, strength_model, 0.0)
    assert patched is not None
    return patched


@node("SaveLoRANode", display_name="Save LoRA Weights", category="loaders", python_module=MODULE, is_output=True,
      experimental=True)  # fmt: skip
def save_lora(
    context: NodeContext,
    *,
    lora: LoraModel,
    prefix: Annotated[str, FilePrefix()] = "loras/ComfyUI_trained_lora",
    steps: Annotated[int | None, Int(extra={"forceInput": True}), Optional()] = None,
) -> NodeOutput:
    """Save a LoRA in the types that it has. Its name has the number of steps when that is given."""
    name = prefix if steps is None else f"{prefix}_{steps}_steps"
    path: Path = context.files.save_path(name, suffix=".safetensors").path
    tensors = {key: tensor.detach().to("cpu").contiguous() for key, tensor in lora.items()}
    write_safetensors(path, tensors, {})
    return NodeOutput({})


@node("LossGraphNode", display_name="Plot Loss Graph", category="model/training", python_module=MODULE, is_output=True,
      experimental=True)  # fmt: skip
def loss_graph(
    context: NodeContext,
    *,
    loss: LossMap,
    filename_prefix: Annotated[str, FilePrefix(multiline=False)] = "loss_graph",
    prompt: Annotated[object, Hidden("PROMPT")] = None,
    extra_pnginfo: Annotated[Mapping[str, object] | None, Hidden("EXTRA_PNGINFO")] = None,
) -> NodeOutput:
    """Plots the loss graph and saves it to the output directory."""  # noqa: D401 - ComfyUI's words
    losses = [float(value) for value in loss.get("loss", ())]
    if not losses:
        raise ValueError("loss: nothing to plot; got no losses, expected those of a training")
    image = line_plot(losses, x_label="Steps", y_label="Loss")
    texts = metadata_texts(prompt, extra_pnginfo) if context.embed_metadata else {}
    output = context.files.save_path(filename_prefix, kind="temp")
    context.files.submit(partial(write_png, output.path, image, texts, PNG_LEVEL))
    return NodeOutput({"images": [output.shown()]})


NODES = (lora_model_loader, save_lora, loss_graph)
