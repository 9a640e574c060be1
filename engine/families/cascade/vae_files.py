"""The autoencoders of Stable Cascade: stage A beside stage B, and the coders of stage C's latents beside stage C."""

from __future__ import annotations

import torch

from darkroom.engine.families.base import Network, NotRecognised, Shapes, Tensors
from darkroom.engine.families.cascade.stages import StageAConfig, StageCCoderConfig, build_coder
from darkroom.engine.families.layouts import names_behind
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.layers.shapes import count_children
from darkroom.engine.settings import DtypePolicy

PREFIX = "vae."
CODEBOOK = "vquantizer.codebook.weight"  # of stage A
ENCODER = "encoder.backbone.0.0.weight"
PREVIEWER = "previewer.blocks.0.weight"
VARIANCE, BATCHES = "running_var", "num_batches_tracked"


def _behind(shapes: Shapes, prefix: str) -> Names | None:
    """Return the names of either autoencoder behind a prefix."""
    if any(prefix + mark in shapes for mark in (CODEBOOK, ENCODER, PREVIEWER)):
        return names_behind(shapes, prefix)
    return None


def _in_checkpoint(shapes: Shapes) -> Names | None:
    return _behind(shapes, PREFIX)


def _alone(shapes: Shapes) -> Names | None:
    """Return the names in a file of an autoencoder, or of the encoder or the previewer by itself."""
    found = _behind(shapes, "")
    if found is not None:
        return found
    for mark in (ENCODER, PREVIEWER):
        part, _, first = mark.partition(".")
        if first in shapes and f"{part}.{first}" not in shapes and len(shapes[first]) == 4 and _is_coder(shapes):
            return {f"{part}.{name}": name for name in shapes}
    return None


def _is_coder(shapes: Shapes) -> bool:
    """Return True if there are the norms that both coders of stage C have, and few other networks."""
    return any(name.endswith(VARIANCE) for name in shapes) and "projections.0.0.weight" not in shapes


def _configure(shapes: Shapes) -> StageAConfig | StageCCoderConfig:
    if CODEBOOK in shapes:
        num_codes, latent_channels = shapes[CODEBOOK]
        channels = [shapes["in_block.1.weight"][0]]
        while channels[-1] < shapes["up_blocks.0.0.weight"][0]:
            channels.append(channels[-1] * 2)
        last = len(channels) - 1
        # The lowest level's blocks, and a block and a resize of each other level, behind the first convolution.
        num_blocks = count_children(shapes, "up_blocks") - 1 - 2 * last
        return StageAConfig(tuple(channels), num_blocks, latent_channels, num_codes)
    if ENCODER not in shapes and PREVIEWER not in shapes:
        raise NotRecognised("a VAE of another family")
    hidden = shapes.get(PREVIEWER)
    latent = shapes["encoder.mapper.0.weight"][0] if hidden is None else hidden[1]
    return StageCCoderConfig(
        latent_channels=latent,
        hidden_channels=0 if hidden is None else hidden[0],
        has_encoder=ENCODER in shapes,
        has_previewer=hidden is not None,
        has_colours="encoder.mean" in shapes,
    )


def _saved(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the weights under a checkpoint's names, with the numbers of batches by which ComfyUI knows such files."""
    saved: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        saved[PREFIX + name] = tensor
        if name.endswith(VARIANCE):
            saved[PREFIX + name.removesuffix(VARIANCE) + BATCHES] = torch.zeros((), dtype=torch.int64, device="cpu")
    return saved


AUTOENCODERS = Network(
    layouts=(_alone,),
    in_checkpoint=(_in_checkpoint,),
    configure=_configure,
    build=build_coder,
    saved=_saved,
    dtypes=DtypePolicy(prefers=("bfloat16",)),
    sizes={"full": StageCCoderConfig(), "small": StageCCoderConfig(hidden_channels=64)},
)
