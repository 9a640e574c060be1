"""Flux.1's blocks with a modulation for each part of a stream.

Parts of a stream may have modulations of their own, as the first frame of a video does whose time is another one's. `B`
batch, `N` vectors, `T` tokens, `D` width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from darkroom.engine.families.flux.transformer import (
    BlockConfig,
    DoubleBlockLayers,
    Modulation,
    ModulationLayer,
    SingleBlockLayers,
    VectorModulation,
)
from darkroom.engine.layers.block_calls import BlockFunction
from darkroom.engine.layers.unet_layers import Options

BlockArguments = Mapping[str, Any]
# Parts of a stream with the modulation of their own: first token, end (None: the stream's), number of the vector.
Spans = Sequence[tuple[int, int | None, int]]


def spread(modulations: Sequence[VectorModulation], spans: Spans | None, num_tokens: int) -> list[Modulation]:
    """Return modulations for each token [B, T, D] of those for parts of a stream [B, N, D]; without parts as given."""
    if spans is None:
        return list(modulations)

    def of_tokens(part: torch.Tensor) -> torch.Tensor:
        ends = [(start, num_tokens if end is None else end, index) for start, end, index in spans]
        pieces = [part[:, index : index + 1].expand(-1, end - start, -1) for start, end, index in ends]
        return torch.cat(pieces, dim=1)

    return [(of_tokens(shift), of_tokens(scale), of_tokens(gate)) for shift, scale, gate in modulations]


class HunyuanVideoDoubleBlock(DoubleBlockLayers):
    """A block of two streams, modulated by a vector [B, D], or by one for each part of a stream [B, N, D]."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__(config)
        self.img_mod, self.txt_mod = ModulationLayer(config.width, 2), ModulationLayer(config.width, 2)

    def forward(
        self,
        img: torch.Tensor,
        txt: torch.Tensor,
        vec: torch.Tensor,
        pe: torch.Tensor | None,
        attn_mask: torch.Tensor | None = None,
        transformer_options: Options | None = None,
        *,
        modulation_dims_img: Spans | None = None,
        modulation_dims_txt: Spans | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        made = (
            spread(self.img_mod(vec), modulation_dims_img, img.shape[1]),
            spread(self.txt_mod(vec), modulation_dims_txt, txt.shape[1]),
        )
        return super().forward(img, txt, made, pe, attn_mask, transformer_options)


class HunyuanVideoSingleBlock(SingleBlockLayers):
    """A block of one stream, modulated in the same ways."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__(config)
        self.modulation = ModulationLayer(config.width, 1)

    def forward(
        self,
        x: torch.Tensor,
        vec: torch.Tensor,
        pe: torch.Tensor | None,
        attn_mask: torch.Tensor | None = None,
        transformer_options: Options | None = None,
        *,
        modulation_dims: Spans | None = None,
    ) -> torch.Tensor:
        (made,) = spread(self.modulation(vec), modulation_dims, x.shape[1])
        return super().forward(x, made, pe, attn_mask, transformer_options)


def double_function(block: nn.Module) -> BlockFunction:
    """Return a block of two streams in the form in which custom nodes call it."""

    def original(args: BlockArguments) -> dict[str, torch.Tensor]:
        img, txt = block(
            args["img"], args["txt"], args["vec"], args["pe"], args["attention_mask"], args["transformer_options"],
            modulation_dims_img=args["modulation_dims_img"], modulation_dims_txt=args["modulation_dims_txt"],
        )  # fmt: skip
        return {"img": img, "txt": txt}

    return original


def single_function(block: nn.Module) -> BlockFunction:
    """Return a block of one stream in the form in which custom nodes call it."""

    def original(args: BlockArguments) -> dict[str, torch.Tensor]:
        spans = args["modulation_dims"]
        out = block(
            args["img"], args["vec"], args["pe"], args["attention_mask"], args["transformer_options"],
            modulation_dims=spans,
        )  # fmt: skip
        return {"img": out}

    return original
