"""Sizes of Wan's transformers, and how they are read from the shapes of a file's tensors."""

from __future__ import annotations

from dataclasses import dataclass

from darkroom.engine.layers.patches import PATCH
from darkroom.engine.layers.shapes import Shapes, count_children

HEAD_WIDTH = 128
AXES = (44, 42, 42)  # channels of a head that rotate by frame, row and column
TIME_WIDTH = 256  # of the sinusoids of the time
NORM_EPS, IMAGE_NORM_EPS = 1e-6, 1e-5
NUM_MODULATIONS = 6

MARK = "head.modulation"
FIRST = "patch_embedding.weight"
OF_IMAGE = "blocks.0.cross_attn.k_img.weight"
REFERENCE = "ref_conv.weight"

# Weights that stay float32 in every type of the network, as ComfyUI keeps them: their layers compute in it.
FLOAT32_LAYERS = (
    "patch_embedding", "vace_patch_embedding", "patch_embedding_pose", "patch_embedding_mask", "patch_embedding_global",
)  # fmt: skip
FLOAT32_ENDS = tuple(f".{layer}.{weight}" for layer in FLOAT32_LAYERS for weight in ("weight", "bias"))


@dataclass(frozen=True, slots=True)
class WanConfig:
    """Configuration of the network. Channels are those of the latent.

    `image_dim` is the width of an image encoder's tokens, 0 for a network that reads none; `image_places` is the
    number of tokens that have places of their own, those of a first and a last image. `reference_channels` are those
    of a reference image's latent, 0 for a network without.
    """

    width: int
    num_blocks: int
    inner_width: int
    context_dim: int = 4096
    in_channels: int = 16
    out_channels: int = 16
    image_dim: int = 0
    image_places: int = 0
    reference_channels: int = 0

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH


def wan_config(shapes: Shapes) -> WanConfig:
    """Return the configuration of the network with these tensors (names without prefix)."""
    nothing = (0, 0, 0)
    return WanConfig(
        width=shapes[MARK][-1],
        num_blocks=count_children(shapes, "blocks"),
        inner_width=shapes["blocks.0.ffn.0.weight"][0],
        context_dim=shapes["text_embedding.0.weight"][1],
        in_channels=shapes[FIRST][1],
        out_channels=shapes["head.head.weight"][0] // PATCH**2,
        image_dim=shapes["img_emb.proj.1.weight"][1] if OF_IMAGE in shapes else 0,
        image_places=shapes.get("img_emb.emb_pos", nothing)[1],
        reference_channels=shapes.get(REFERENCE, nothing)[1],
    )
