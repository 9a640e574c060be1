"""The transformer of Hunyuan3D 2 (Tencent 2025, arXiv 2501.12202, section 3.2), of any width and depth.

Flux.1's blocks of two streams, then of one, over the tokens of a shape, which have no places. `B` batch, `C` channels,
`N` tokens of the shape, `T` tokens of the image, `D` width. Module names are those of the original checkpoints, as
ComfyUI has them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from darkroom.engine.families.flux.transformer import (
    TIME_FACTOR,
    TIME_WIDTH,
    DoubleBlock,
    Embedder,
    FinalLayer,
    SingleBlock,
    run_blocks,
)
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

MAX_PERIOD = 1000.0  # of the sinusoids of time; the network was trained so

MARK = "latent_in.weight"
FIRST = "double_blocks.0.img_attn.qkv.weight"


@dataclass(frozen=True, slots=True)
class Hunyuan3dConfig:
    """Configuration of the network. `has_guidance` is True for distilled ones, which know it."""

    width: int = 1024
    num_double: int = 16
    num_single: int = 32
    context_dim: int = 1536
    latent_channels: int = 64
    head_width: int = 64
    has_guidance: bool = False
    inner_factor: int = 4

    @property
    def heads(self) -> int:
        return self.width // self.head_width


def hunyuan3d_config(shapes: Shapes) -> Hunyuan3dConfig:
    """Return the configuration of the network with these tensors (names without prefix). Raises LookupError."""
    width, latent_channels = shapes[MARK]
    return Hunyuan3dConfig(
        width=width,
        num_double=count_children(shapes, "double_blocks"),
        num_single=count_children(shapes, "single_blocks"),
        context_dim=shapes["cond_in.weight"][1],
        latent_channels=latent_channels,
        head_width=shapes["double_blocks.0.img_attn.norm.query_norm.scale"][0],
        has_guidance="guidance_in.in_layer.weight" in shapes,
    )


class Hunyuan3dTransformer(nn.Module):
    """The network: a noisy shape [B, C, N], times, tokens of images [B, T, D'] -> its prediction [B, C, N]."""

    def __init__(self, config: Hunyuan3dConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.latent_channels
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.latent_in = Linear(config.latent_channels, config.width)
        self.time_in = Embedder(TIME_WIDTH, config.width)
        self.guidance_in = Embedder(TIME_WIDTH, config.width) if config.has_guidance else None
        self.cond_in = Linear(config.context_dim, config.width)
        self.double_blocks = nn.ModuleList(DoubleBlock(config) for _ in range(config.num_double))
        self.single_blocks = nn.ModuleList(SingleBlock(config) for _ in range(config.num_single))
        self.final_layer = FinalLayer(config.width, config.latent_channels)

    @property
    def dtype(self) -> torch.dtype:
        return self.compute_dtype or self.latent_in.weight.dtype

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        guidance: torch.Tensor | None = None,
        **_: object,
    ) -> torch.Tensor:
        """Predict; there is no `y` and no `control` for it. Times run from 1, noise, to 0."""
        options = {} if transformer_options is None else transformer_options
        shape = self.latent_in(x.transpose(1, 2))
        vec = self.time_in(self._waves(1.0 - timesteps, x.dtype))
        if self.guidance_in is not None and guidance is not None:
            vec = vec + self.guidance_in(self._waves(guidance, x.dtype))
        vectors = ([vec] * len(self.double_blocks), [vec] * len(self.single_blocks))
        streams = (shape, self.cond_in(context))
        out = run_blocks(self.double_blocks, self.single_blocks, streams, vectors, None, None, options)
        drawn: torch.Tensor = self.final_layer(out, vec)
        return -drawn.transpose(1, 2)

    def _waves(self, times: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return timestep_embedding(times * TIME_FACTOR, TIME_WIDTH, MAX_PERIOD).to(dtype)
