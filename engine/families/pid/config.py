"""The configuration of PiD, and its reading from the shapes of tensors."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from darkroom.engine.families.pixeldit.config import PATCH_PX, PixelDiTConfig, pixeldit_config
from darkroom.engine.layers.shapes import Shapes, count_children

LATENT_PROJECTION = "lq_proj.latent_proj.0.weight"
GATE = "lq_proj.gate_modules.0.content_proj.weight"
LAST_HEAD = "lq_proj.pit_head.weight"  # of version 1.5
FIRST_LAYERS = 3  # of the projection, before its residual blocks
PACKED_CHANNELS = 32  # of a latent of Flux.2 whose packed cells are apart, in version 1.5
LATENT_CHANNELS = {16: 16, PACKED_CHANNELS: 128}  # of version 1.5, by the channels that it projects
PACKED_SIDE = 2


@dataclass(frozen=True, slots=True)
class PiDConfig(PixelDiTConfig):
    """Configuration of the network.

    `latent_size` is the hidden size of the latent's projection, of which `num_features` linear layers make features for
    every `block_interval`-th block. Gates are for each token or for each channel of it. Version 1.5 (`is_later`)
    conditions the blocks of pixels too, and was trained on images of 2048 instead of 1024 pixels a side.
    """

    latent_channels: int = 16
    latent_size: int = 512
    num_latent_blocks: int = 4
    num_features: int = 7
    gates_tokens: bool = False
    is_later: bool = False

    @property
    def block_interval(self) -> int:
        return -(-self.num_layers // self.num_features)

    @property
    def trained_side(self) -> int:
        """Side of the images of its training [patches]."""
        return (2048 if self.is_later else 1024) // PATCH_PX

    @property
    def splits_cells(self) -> bool:
        """True where a cell of the latent has the channels of four."""
        return self.is_later and self.latent_channels == LATENT_CHANNELS[PACKED_CHANNELS]

    @property
    def projected_channels(self) -> int:
        return self.latent_channels // PACKED_SIDE**2 if self.splits_cells else self.latent_channels

    @property
    def cell_px(self) -> int:
        """Pixels a side of the image for one cell of the latent: the image is four times as large as the latent's."""
        return 4 * (16 if self.latent_channels >= 64 else 8)


def pid_config(shapes: Shapes) -> PiDConfig:
    """Return the configuration of the network with these tensors (names without prefix).

    Raises LookupError, and ValueError for tensors of other dimensions, or a latent that no version has.
    """
    latent_size, projected, *_ = shapes[LATENT_PROJECTION]
    is_later = LAST_HEAD in shapes
    if is_later and projected not in LATENT_CHANNELS:
        expected = " or ".join(map(str, LATENT_CHANNELS))
        raise ValueError(f"{LATENT_PROJECTION}: got {projected} channels of a latent, expected {expected}")
    return PiDConfig(
        **asdict(pixeldit_config(shapes)),
        latent_channels=LATENT_CHANNELS[projected] if is_later else projected,
        latent_size=latent_size,
        num_latent_blocks=count_children(shapes, "lq_proj.latent_proj") - FIRST_LAYERS,
        num_features=count_children(shapes, "lq_proj.gate_modules"),
        gates_tokens=shapes[GATE][0] == 1,
        is_later=is_later,
    )
