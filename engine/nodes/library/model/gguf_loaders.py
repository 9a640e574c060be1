"""Nodes that load GGUF files, under the names and with the inputs of the pack ComfyUI-GGUF.

Where that pack is installed its own classes replace these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import torch

from darkroom.engine.families import registry
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.model.loaders import TEXT_TYPES, supported_clip_type
from darkroom.engine.nodes.library.model.old_loaders import PAIR_TYPES, supported_pair
from darkroom.engine.nodes.sockets import CLIP, MODEL
from darkroom.engine.nodes.widgets import Choice, Flag, ModelFile

CATEGORY, MODULE = "bootleg", "darkroom"
DEFAULT_ARITHMETIC = torch.float16  # the pack's, whatever the network computes in
ARITHMETIC: Mapping[str, torch.dtype | None] = {  # what the node offers -> the type that blocks are computed in
    "default": DEFAULT_ARITHMETIC,
    "target": None,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


class TextEncoderFile(ModelFile):
    """A file of a text encoder, of any format."""

    def type_in(self, environment: NodeEnvironment) -> list[str]:
        return sorted([*environment.model_files("text_encoders"), *environment.model_files("clip_gguf")])


TEXT_ENCODER = TextEncoderFile("text_encoders")


@node("UnetLoaderGGUF", display_name="Unet Loader (GGUF)", category=CATEGORY, python_module=MODULE)
def unet_loader_gguf(context: NodeContext, *, unet_name: Annotated[str, ModelFile("unet_gguf")]) -> MODEL:
    """Load a denoising network of a GGUF file."""
    model: MODEL = context.models.unet_gguf(unet_name, arithmetic=DEFAULT_ARITHMETIC)
    return model


@node("UnetLoaderGGUFAdvanced", display_name="Unet Loader (GGUF/Advanced)", category=CATEGORY, python_module=MODULE)
def unet_loader_gguf_advanced(
    context: NodeContext,
    *,
    unet_name: Annotated[str, ModelFile("unet_gguf")],
    dequant_dtype: Annotated[str, Choice(tuple(ARITHMETIC))] = "default",
    patch_dtype: Annotated[str, Choice(tuple(ARITHMETIC))] = "default",
    patch_on_device: Annotated[bool, Flag()] = False,
) -> MODEL:
    """Load a denoising network of a GGUF file, its values computed in a type of choice.

    Patches are computed in float32 on the device of the values, whatever is chosen for them.
    """
    model: MODEL = context.models.unet_gguf(unet_name, arithmetic=ARITHMETIC[dequant_dtype])
    return model


@node(
    "CLIPLoaderGGUF",
    display_name="CLIPLoader (GGUF)",
    category=CATEGORY,
    python_module="darkroom",
    check=supported_clip_type,
)
def clip_loader_gguf(
    context: NodeContext,
    *,
    clip_name: Annotated[str, TEXT_ENCODER],
    type: Annotated[str, Choice(TEXT_TYPES)],
) -> CLIP:
    """Load one text encoder."""
    clip: CLIP = context.models.clip(clip_name, text_type=type)
    return clip


@node(
    "DualCLIPLoaderGGUF",
    display_name="DualCLIPLoader (GGUF)",
    category=CATEGORY,
    python_module="darkroom",
    check=supported_pair,
)
def dual_clip_loader_gguf(
    context: NodeContext,
    *,
    clip_name1: Annotated[str, TEXT_ENCODER],
    clip_name2: Annotated[str, TEXT_ENCODER],
    type: Annotated[str, Choice(PAIR_TYPES)],
) -> CLIP:
    """Load two text encoders for one model."""
    clip: CLIP = context.models.clip_set([clip_name1, clip_name2], text_type=type)
    return clip


def _supported_set(num_encoders: int) -> Callable[..., str | None]:
    """Return a check that refuses a set of so many text encoders where no family has one."""

    def check(environment: object, *, clip_name1: str | None = None) -> str | None:
        if registry.complete_set_type(num_encoders) is not None:
            return None
        found = f"clip_name1: no family of models has {num_encoders} text encoders; got {clip_name1!r}"
        return f"{found}, expected another loader, for a model of {registry.labels()}"

    return check


@node(
    "TripleCLIPLoaderGGUF",
    display_name="TripleCLIPLoader (GGUF)",
    category=CATEGORY,
    python_module="darkroom",
    check=_supported_set(3),
)
def triple_clip_loader_gguf(
    context: NodeContext,
    *,
    clip_name1: Annotated[str, TEXT_ENCODER],
    clip_name2: Annotated[str, TEXT_ENCODER],
    clip_name3: Annotated[str, TEXT_ENCODER],
) -> CLIP:
    """Load three text encoders for one model."""
    clip: CLIP = context.models.clip_set([clip_name1, clip_name2, clip_name3], text_type=registry.complete_set_type(3))
    return clip


@node(
    "QuadrupleCLIPLoaderGGUF",
    display_name="QuadrupleCLIPLoader (GGUF)",
    category=CATEGORY,
    python_module="darkroom",
    check=_supported_set(4),
)
def quadruple_clip_loader_gguf(
    context: NodeContext,
    *,
    clip_name1: Annotated[str, TEXT_ENCODER],
    clip_name2: Annotated[str, TEXT_ENCODER],
    clip_name3: Annotated[str, TEXT_ENCODER],
    clip_name4: Annotated[str, TEXT_ENCODER],
) -> CLIP:
    """Load four text encoders for one model."""
    names = [clip_name1, clip_name2, clip_name3, clip_name4]
    clip: CLIP = context.models.clip_set(names, text_type=registry.complete_set_type(4))
    return clip


NODES = (
    unet_loader_gguf, unet_loader_gguf_advanced, clip_loader_gguf, dual_clip_loader_gguf, triple_clip_loader_gguf,
    quadruple_clip_loader_gguf,
)  # fmt: skip
