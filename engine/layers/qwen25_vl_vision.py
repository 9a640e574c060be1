"""The image encoder of Qwen2.5-VL (Bai et al. 2025, arXiv 2502.13923, section 2.1), of any width and depth.

Images of any size become patches of 14 pixels, four of which become one token of a language model. Most blocks attend
within windows of 8x8 patches, every eighth to the whole image. Places are rotations (Su et al. 2021, arXiv
2104.09864) by row and column. `P` patches, `D` width, `H` heads, `N` tokens (P / 4). Module names are those of the
original checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from darkroom.engine.layers.basic import Linear, linear
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.shapes import Shapes, count_children

PATCH_PX, FRAMES = 14, 2  # a side; a patch is of two frames, of an image twice the same
MERGED = 2  # patches a side that become one token
TOKEN_PX = PATCH_PX * MERGED
WINDOW = 4  # tokens a side
HEAD_WIDTH = 80
THETA = 10000.0
FULL_EVERY = 8  # the last of so many blocks attends to the whole image
SMALLEST_PX, LARGEST_PX = 3136, 12845056  # of an image's area
MEAN = (0.48145466, 0.4578275, 0.40821073)
DEVIATION = (0.26862954, 0.26130258, 0.27577711)
Colour = tuple[float, float, float]
Rotation = tuple[torch.Tensor, torch.Tensor]  # cosines and sines [P, 1, head's width] each

MARK = "patch_embed.proj.weight"


@dataclass(frozen=True, slots=True)
class Qwen25VlVisionConfig:
    """Configuration of the encoder. `out_width` is that of the language model's tokens."""

    width: int
    inner_width: int
    num_blocks: int
    out_width: int

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH


def qwen25_vl_vision_config(shapes: Shapes) -> Qwen25VlVisionConfig:
    """Return the configuration of the encoder with these tensors (names without prefix)."""
    return Qwen25VlVisionConfig(
        width=shapes[MARK][0],
        inner_width=shapes["blocks.0.mlp.gate_proj.weight"][0],
        num_blocks=count_children(shapes, "blocks"),
        out_width=shapes["merger.mlp.2.weight"][0],
    )


# --- pixels ----------------------------------------------------------------------------------------------------------


def seen_size(height: int, width: int, token_px: int = TOKEN_PX, *, smallest_px: int = SMALLEST_PX) -> tuple[int, int]:
    """Return the height and width in pixels, multiples of `token_px`, at which an image of that size is read.

    `smallest_px` is the area to which smaller images are enlarged.
    """
    rounded = [round(side / token_px) * token_px for side in (height, width)]
    if math.prod(rounded) > LARGEST_PX:
        shrink = math.sqrt(height * width / LARGEST_PX)
        rounded = [max(token_px, math.floor(side / shrink / token_px) * token_px) for side in (height, width)]
    elif math.prod(rounded) < smallest_px:
        grow = math.sqrt(smallest_px / (height * width))
        rounded = [math.ceil(side * grow / token_px) * token_px for side in (height, width)]
    return rounded[0], rounded[1]


def patches_of_image(
    image: torch.Tensor, patch_px: int = PATCH_PX, mean: Colour = MEAN, deviation: Colour = DEVIATION
) -> tuple[torch.Tensor, tuple[int, int]]:
    """Return the patches [P, 3 * 2 * p * p] of an image [H, W, 3] of 0..1, and their rows and columns.

    `p` are the pixels of a patch's side. The four patches of a token follow each other. A patch has an image twice, or
    both of two frames [2, H, W, 3] of a video.
    """
    frames = image if image.ndim == 4 else image[None]
    height, width = seen_size(frames.shape[1], frames.shape[2], patch_px * MERGED)
    pixels = functional.interpolate(frames.permute(0, 3, 1, 2), size=(height, width), mode="bilinear")
    means, deviations = (torch.tensor(item, device=pixels.device).view(3, 1, 1) for item in (mean, deviation))
    normalised = (pixels - means) / deviations
    rows, columns = height // patch_px, width // patch_px
    cells = normalised.reshape(-1, 3, rows // MERGED, MERGED, patch_px, columns // MERGED, MERGED, patch_px)
    patches = cells.permute(2, 5, 3, 6, 1, 0, 4, 7)  # [rows/2, columns/2, 2, 2, 3, 1 or 2, p, p]
    both = patches.expand(-1, -1, -1, -1, -1, FRAMES, -1, -1)
    return both.reshape(rows * columns, -1), (rows, columns)


# --- places ----------------------------------------------------------------------------------------------------------


def windows_of(rows: int, columns: int) -> list[torch.Tensor]:
    """Return the tokens of each window of an image of so many rows and columns of tokens, window by window."""
    tokens = torch.arange(rows * columns).view(rows, columns)
    bands = torch.split(tokens, WINDOW, dim=0)
    return [part.flatten() for band in bands for part in torch.split(band, WINDOW, dim=1)]


def in_order_of_tokens(cells: torch.Tensor) -> torch.Tensor:
    """Return the cells of an image [..., rows, columns] in the order of `patches_of_image`: [..., P]."""
    *outer, rows, columns = cells.shape
    parts = cells.reshape(*outer, rows // MERGED, MERGED, columns // MERGED, MERGED)
    return parts.transpose(-3, -2).reshape(*outer, -1)


def patch_rotation(rows: int, columns: int, head_width: int = HEAD_WIDTH) -> Rotation:
    """Return the rotation of the patches of an image, in the order of `patches_of_image`."""
    places = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"))  # [2, rows, columns]
    merged = in_order_of_tokens(places)  # [2, P]
    axis_width = head_width // 2
    frequencies = 1.0 / THETA ** (torch.arange(0, axis_width, 2, dtype=torch.float32) / axis_width)
    angles = (merged[..., None].float() * frequencies).transpose(0, 1).flatten(1)  # [P, head's width / 2]
    both = torch.cat([angles, angles], dim=-1)[:, None]
    return both.cos(), both.sin()


def rotated(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rotate the channels of `x` [P, H, W] in float32, each of the first half with its fellow in the second."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def grouped(windows: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the places of patches in groups [windows, patches] of windows of one size; windows follow each other."""
    unit = MERGED**2
    groups: dict[int, list[torch.Tensor]] = {}
    start = 0
    for window in windows:
        length = window.numel() * unit
        groups.setdefault(length, []).append(torch.arange(start, start + length))
        start += length
    return [torch.stack(items) for items in groups.values()]


# --- layers ----------------------------------------------------------------------------------------------------------


class PatchEmbedding(nn.Conv3d):
    """The convolution of patches that do not overlap, as a matrix product."""

    def __init__(self, width: int) -> None:
        kernel = (FRAMES, PATCH_PX, PATCH_PX)
        super().__init__(3, width, kernel, stride=kernel, bias=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(input, self.weight.flatten(1))


class WindowAttention(nn.Module):
    def __init__(self, config: Qwen25VlVisionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = Linear(config.width, config.width * 3)
        self.proj = Linear(config.width, config.width)

    def forward(self, x: torch.Tensor, rotation: Rotation, groups: list[torch.Tensor] | None) -> torch.Tensor:
        """Return [P, D]. Patches attend within the windows of `groups`, or to all (None)."""
        q, k, v = self.qkv(x).view(x.shape[0], 3, self.heads, -1).unbind(1)  # [P, H, 80] each
        q, k = (rotated(item, rotation).to(v) for item in (q, k))
        if groups is None:
            out = _attended(q[None], k[None], v[None])[0]
        else:
            out = torch.empty_like(v)
            for places in groups:
                out[places] = _attended(q[places], k[places], v[places])
        attended: torch.Tensor = self.proj(out.flatten(1))
        return attended


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute attention of windows [windows, P, H, 80] within each."""
    out = scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return out.transpose(1, 2)


class GatedFeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = Linear(width, inner), Linear(width, inner)
        self.down_proj = Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class VisionBlock(nn.Module):
    def __init__(self, config: Qwen25VlVisionConfig) -> None:
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(config.width), RmsNorm(config.width)
        self.attn = WindowAttention(config)
        self.mlp = GatedFeedForward(config.width, config.inner_width)

    def forward(self, x: torch.Tensor, rotation: Rotation, groups: list[torch.Tensor] | None) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), rotation, groups)
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class PatchMerger(nn.Module):
    """Four neighbouring patches -> one token of the language model."""

    def __init__(self, config: Qwen25VlVisionConfig) -> None:
        super().__init__()
        joined = config.width * MERGED**2
        self.ln_q = RmsNorm(config.width)
        self.mlp = nn.Sequential(Linear(joined, joined), nn.GELU(), Linear(joined, config.out_width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.mlp(self.ln_q(x).view(-1, x.shape[-1] * MERGED**2))
        return out


class Qwen25VlVision(nn.Module):
    """`forward(image [H, W, 3] of 0..1, dtype)` -> tokens `[N, out_width]` of that type, and their rows and columns.

    Blocks run on tokens window by window; the result is in the order of rows, as that of the paper's code.
    """

    def __init__(self, config: Qwen25VlVisionConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = nn.ModuleDict({"proj": PatchEmbedding(config.width)})
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.num_blocks))
        self.merger = PatchMerger(config)

    def forward(self, image: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, tuple[int, int]]:
        patches, (rows, columns) = patches_of_image(image.float())
        windows = windows_of(rows // MERGED, columns // MERGED)
        tokens, unit = torch.cat(windows), MERGED**2  # [N]
        order = (tokens[:, None] * unit + torch.arange(unit)).flatten()
        device = image.device
        cos, sin = (item[order].to(device) for item in patch_rotation(rows, columns))
        groups = [places.to(device) for places in grouped(windows)]
        x = self.patch_embed["proj"](patches[order.to(device)].to(dtype))
        for index, block in enumerate(self.blocks, start=1):
            x = block(x, (cos, sin), groups if index % FULL_EVERY else None)
        return self.merger(x)[tokens.argsort().to(device)], (rows // MERGED, columns // MERGED)
