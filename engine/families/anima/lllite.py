"""ControlNet-LLLite for Anima: an image's small embedding shifts the inputs of some layers of the network.

K. Shih, https://github.com/kohya-ss/ControlNet-LLLite-ComfyUI. `B` batch, `H W` pixels, `P` patches of 16 pixels, `D`
hidden size of the network, `E` of the embedding. Module names are those of files of its second version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.base import Network, NotRecognised
from darkroom.engine.families.layouts import behind_first
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.shapes import Shapes, count_children

MARK = "lllite_conditioning1.conv1.weight"
EMBEDDER = "lllite_conditioning1"
MODULE = re.compile(r"lllite_dit_blocks_(\d+)_(self_attn_[qkv]_proj|cross_attn_q_proj|mlp_layer1)")
MODULE_PREFIX = "lllite_dit_blocks_"
MOST_GROUPS = 8
DEFAULT_DILATIONS, MOST_DILATION = "1,2,4,8", 64


@dataclass(frozen=True, slots=True)
class LLLiteConfig:
    """Configuration of the network. `modules` are names of the layers it shifts, with the sizes of theirs.

    With 4 `image_channels` it reads a mask too; `hides_masked`: the image is blank where that is set.
    """

    modules: tuple[tuple[str, int], ...]
    hidden_size: int
    image_channels: int
    channels: int
    embedding_dim: int
    num_blocks: int = 0
    dilations: tuple[int, ...] = ()
    hides_masked: bool = False


def lllite_config(shapes: Shapes) -> LLLiteConfig:
    """Return the configuration of the network with these tensors. Raises NotRecognised for layers it cannot shift."""
    names = sorted({name.split(".", 1)[0] for name in shapes if name.startswith(MODULE_PREFIX)})
    unknown = next((name for name in names if MODULE.fullmatch(name) is None), None)
    if not names or unknown is not None:
        raise NotRecognised(
            f"an Anima LLLite of other layers, {unknown!r}" if unknown else "an Anima LLLite of no layer"
        )
    return LLLiteConfig(
        modules=tuple((name, shapes[f"{name}.down.weight"][0]) for name in names),
        hidden_size=shapes[f"{names[0]}.down.weight"][1],
        image_channels=shapes[MARK][1],
        channels=shapes[f"{EMBEDDER}.conv3.weight"][0],
        embedding_dim=shapes[f"{EMBEDDER}.proj.weight"][0],
        num_blocks=count_children(shapes, f"{EMBEDDER}.resblocks"),
        dilations=(1,) * count_children(shapes, f"{EMBEDDER}.aspp.branches"),
    )


def as_described(config: LLLiteConfig, metadata: Mapping[str, str]) -> LLLiteConfig:
    """Return the configuration with what a file's metadata tell. Raises `NotRecognised` for another version."""
    version = metadata.get("lllite.version", "2")
    if version != "2":
        raise NotRecognised(f"an Anima LLLite of version {version!r}, expected '2'")
    found = [item.strip() for item in metadata.get("lllite.aspp_dilations", DEFAULT_DILATIONS).split(",")]
    known = {str(number): number for number in range(1, MOST_DILATION + 1)}
    dilations = tuple(known.get(item, 0) for item in found if item) if config.dilations else ()
    if 0 in dilations or len(dilations) != len(config.dilations):
        raise NotRecognised(f"an Anima LLLite whose metadata do not describe it (dilations {','.join(found)})")
    hides = metadata.get("lllite.inpaint_masked_input", "false").lower() == "true"
    return replace(config, dilations=dilations, hides_masked=hides)


def _group_norm(channels: int) -> nn.GroupNorm:
    groups = MOST_GROUPS
    while channels % groups:
        groups //= 2
    return nn.GroupNorm(groups, channels)


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = _group_norm(channels), _group_norm(channels)
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv1(functional.silu(self.norm1(x)))
        out: torch.Tensor = x + self.conv2(functional.silu(self.norm2(h)))
        return out


def _activated(conv: nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(conv, _group_norm(conv.out_channels), nn.SiLU())


class DilatedPyramid(nn.Module):
    """Dilated convolutions beside the mean of the whole image (Chen et al. 2017, arXiv 1706.05587)."""

    def __init__(self, channels: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            _activated(
                nn.Conv2d(channels, channels, 1)
                if step == 1
                else nn.Conv2d(channels, channels, 3, padding=step, dilation=step)
            )
            for step in dilations
        )
        self.global_conv = _activated(nn.Conv2d(channels, channels, 1))
        self.proj = _activated(nn.Conv2d(channels * (len(dilations) + 1), channels, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.global_conv(x.mean(dim=(2, 3), keepdim=True)).expand_as(x)
        out: torch.Tensor = self.proj(torch.cat([*(branch(x) for branch in self.branches), mean], dim=1))
        return out


class ImageEmbedder(nn.Module):
    """Images [B, C, H, W] of -1..1 -> embeddings [B, P, E]."""

    def __init__(self, config: LLLiteConfig) -> None:
        super().__init__()
        half, channels = config.channels // 2, config.channels
        self.conv1 = nn.Conv2d(config.image_channels, half, 4, stride=4)
        self.conv2 = nn.Conv2d(half, half, 3, padding=1)
        self.conv3 = nn.Conv2d(half, channels, 4, stride=4)
        self.norm1, self.norm2, self.norm3 = _group_norm(half), _group_norm(half), _group_norm(channels)
        self.resblocks = nn.ModuleList(ResidualBlock(channels) for _ in range(config.num_blocks))
        self.aspp = DilatedPyramid(channels, config.dilations) if config.dilations else nn.Identity()
        self.proj = nn.Conv2d(channels, config.embedding_dim, 1)
        self.out_norm = nn.LayerNorm(config.embedding_dim)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = functional.silu(self.norm1(self.conv1(image)))
        x = functional.silu(self.norm2(self.conv2(x)))
        x = functional.silu(self.norm3(self.conv3(x)))
        for block in self.resblocks:
            x = block(x)
        out: torch.Tensor = self.out_norm(self.proj(self.aspp(x)).flatten(2).transpose(1, 2))
        return out


class LayerShift(nn.Module):
    """The sum for a layer's input [B, P, D] by an embedding [B, P, E]."""

    def __init__(self, config: LLLiteConfig, inner_size: int) -> None:
        super().__init__()
        self.down = Linear(config.hidden_size, inner_size)
        self.mid = Linear(inner_size + config.embedding_dim, inner_size)
        self.cond_to_film = Linear(config.embedding_dim, 2 * inner_size)
        self.up = Linear(inner_size, config.hidden_size)
        self.depth_embed = nn.Parameter(torch.empty(config.embedding_dim))

    def forward(self, x: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        own = embedding + self.depth_embed.to(embedding)
        scale, shift = self.cond_to_film(own).chunk(2, dim=-1)
        hidden = self.mid(torch.cat([own, functional.silu(self.down(x))], dim=-1))
        out: torch.Tensor = self.up(functional.silu(hidden * (1 + scale) + shift))
        return out


class AnimaLLLite(nn.Module):
    """`lllite_conditioning1` makes an image's embedding, `shifted` a layer's input with it."""

    def __init__(self, config: LLLiteConfig) -> None:
        super().__init__()
        self.config = config
        self.lllite_conditioning1 = ImageEmbedder(config)
        for name, inner_size in config.modules:
            self.add_module(name, LayerShift(config, inner_size))

    def shifted(
        self, x: torch.Tensor, embedding: torch.Tensor, block_index: int, layer: str, strength: float
    ) -> torch.Tensor:
        """Return the input [B, P, D], or of a video [B, 1, h, w, D], of a layer of a block.

        Raises ValueError for an embedding of another batch or size.
        """
        name = f"{MODULE_PREFIX}{block_index}_{layer}"
        if name not in self._modules:
            return x
        tokens = x.flatten(1, 3) if x.ndim == 5 else x
        if tokens.shape[0] % embedding.shape[0] or tokens.shape[1] != embedding.shape[1]:
            raise ValueError(
                f"image: it does not fit the latent; got {list(embedding.shape[:2])} images and patches, expected a "
                f"part of {tokens.shape[0]} and {tokens.shape[1]}"
            )
        spread = embedding.repeat(tokens.shape[0] // embedding.shape[0], 1, 1)
        added: torch.Tensor = self.get_submodule(name)(tokens, spread) * strength
        return (tokens + added).view(x.shape)


LLLITE = Network(
    layouts=(behind_first(("",), MARK),),
    in_checkpoint=(),
    configure=lllite_config,
    build=AnimaLLLite,
    as_described=as_described,
)
