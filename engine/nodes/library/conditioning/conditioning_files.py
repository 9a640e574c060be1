"""Nodes that save a conditioning to a file and load one, which spares the text encoder."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.models.saved_conditioning import read_conditioning, written_conditioning
from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.sockets import CONDITIONING, ExtraPngInfo, Prompt
from darkroom.engine.nodes.widgets import FilePrefix, ModelCombo

MODULE = "comfy_extras.nodes_cond"
ALIASES = ["save conditioning", "export conditioning", "cache text encoder output"]


@node("ConditioningLoader", display_name="Load Conditioning", category="model/loaders", python_module=MODULE)
def conditioning_loader(
    context: NodeContext, *, conditioning_name: Annotated[str, ModelCombo("embeddings")]
) -> CONDITIONING:
    """Load a conditioning that SaveConditioning saved, or any file with a tensor `conditioning`, from `embeddings`."""
    tensors, metadata = context.models.files.tensors_and_metadata("embeddings", conditioning_name)
    tokens, options = read_conditioning(conditioning_name, tensors, metadata)
    return [[tokens, options]]


@node("SaveConditioning", display_name="Save Conditioning", category="model/conditioning", is_output=True,
      python_module=MODULE, search_aliases=ALIASES)  # fmt: skip
def save_conditioning(
    context: NodeContext,
    *,
    conditioning: CONDITIONING,
    filename_prefix: Annotated[str, FilePrefix(multiline=False)] = "conditioning/ComfyUI",
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Annotated[NodeOutput, Socket("CONDITIONING"), Out("conditioning")]:
    """Save a conditioning of one entry; `ConditioningLoader` finds the file once it is moved to `models/embeddings`."""
    if len(conditioning) != 1:
        raise ValueError(
            f"conditioning: a file has one entry; got {len(conditioning)}, expected one (save it before combining)"
        )
    tensors, metadata = written_conditioning(*conditioning[0])
    path = context.files.save_path(filename_prefix, suffix=".safetensors").path
    context.files.submit(lambda: write_safetensors(path, tensors, metadata))
    return NodeOutput({}, (conditioning,))


NODES = (conditioning_loader, save_conditioning)
