"""The configuration of Kandinsky 5's transformers, from the shapes of their weights."""

from __future__ import annotations

from dataclasses import dataclass

from darkroom.engine.families.base import NotRecognised
from darkroom.engine.layers.shapes import Shapes, count_children

MARK = "visual_transformer_blocks.0.cross_attention.key_norm.weight"
AUDIO = "audio_embeddings.in_layer.weight"  # of Kandinsky 6, which has the layers of 5
PATCH_CELLS = 4  # two rows by two columns of one frame
IMAGE_CHANNELS = 16
VIDEO_CHANNELS = 2 * IMAGE_CHANNELS + 1  # the noisy latent, one that stays empty, and a mask of given frames
AXES = {64: (16, 24, 24), 128: (32, 48, 48)}
"""Channels that rotate by frame, row and column, by the channels of a head."""

PRO_SIZE = 4096  # the hidden size of Video Pro
LITE_IMAGE_SIZE = 2560  # that of the networks of images, whose positions are not scaled
LARGE_CELLS = 14080  # of a frame's latent, from which Video Pro scales positions more
SCALE, LARGE_SCALE = 2.0, 3.16


@dataclass(frozen=True, slots=True)
class Kandinsky5Config:
    """Configuration of the network. `label_dim` is the size of the text's pooled output."""

    hidden_size: int
    intermediate_size: int
    time_dim: int
    num_text_blocks: int
    num_visual_blocks: int
    head_dim: int
    context_dim: int
    label_dim: int
    in_channels: int = VIDEO_CHANNELS
    out_channels: int = IMAGE_CHANNELS

    @property
    def num_heads(self) -> int:
        return self.hidden_size // self.head_dim

    @property
    def axes(self) -> tuple[int, int, int]:
        """Channels of a head that rotate by frame, row and column."""
        return AXES[self.head_dim]

    def position_scale(self, rows: int, columns: int) -> float:
        """Return the number by which positions along rows and columns are divided, for a latent of cells a frame."""
        if self.in_channels == IMAGE_CHANNELS or self.hidden_size == LITE_IMAGE_SIZE:
            return 1.0
        return LARGE_SCALE if self.hidden_size == PRO_SIZE and rows * columns >= LARGE_CELLS else SCALE


def kandinsky5_config(shapes: Shapes) -> Kandinsky5Config:
    """Return the configuration of the network with these tensors (names without prefix).

    Raises LookupError for a missing tensor, NotRecognised for heads of another size.
    """
    hidden_size, patch_dim = shapes["visual_embeddings.in_layer.weight"]
    (head_dim,) = shapes[MARK]
    if head_dim not in AXES or hidden_size % head_dim:
        raise NotRecognised(
            f"a transformer of Kandinsky 5 with heads of {head_dim} channels in a hidden size of {hidden_size}"
        )
    return Kandinsky5Config(
        hidden_size=hidden_size,
        intermediate_size=shapes["visual_transformer_blocks.0.feed_forward.in_layer.weight"][0],
        time_dim=shapes["time_embeddings.in_layer.weight"][0],
        num_text_blocks=count_children(shapes, "text_transformer_blocks"),
        num_visual_blocks=count_children(shapes, "visual_transformer_blocks"),
        head_dim=head_dim,
        context_dim=shapes["text_embeddings.in_layer.weight"][1],
        label_dim=shapes["pooled_text_embeddings.in_layer.weight"][1],
        in_channels=patch_dim // PATCH_CELLS,
        out_channels=shapes["out_layer.out_layer.weight"][0] // PATCH_CELLS,
    )
