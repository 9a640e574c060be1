"""The transformer of HunyuanDiT (Li et al. 2024, arXiv 2405.08748), of any width and depth.

Blocks of self-attention and attention to the text. Those of the second half see what those of the first half gave, in
reverse order (long skip connections: Bao et al. 2022, arXiv 2209.12152). Places are rotations (Su et al. 2021, arXiv
2104.09864) by column and row. `B` batch, `C` channels, `h w` latent cells, `T` tokens, `D` width, `H` heads. Module
names are those of the original checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from darkroom.engine.families.sd3.transformer import Embedder
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.layers.block_calls import BlockFunction, Control
from darkroom.engine.layers.patches import PATCH, image_channels_last, pad_to_patches, tokens_of
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.transformer_layers import AdaptiveNorm, GatedResidual, Gelu, ResidualNorm, RotaryHeads
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

NORM_EPS = 1e-6
TIME_WIDTH = NUMBER_WIDTH = 256  # of the sinusoids of the time, and of a number of the size
NUM_NUMBERS = 6  # height and width of the image, of the one wished for, and two of a cut
POOL_HEADS = 8
TRAINED_PATCHES = 32  # a side, of the grid to which places are scaled
BlockArguments = Mapping[str, Any]
MARK = "mlp_t5.0.weight"
FIRST = "x_embedder.proj.weight"
STYLE = "style_embedder.weight"
NUM_SECOND = "pooler.positional_embedding"
HEAD = "blocks.0.attn1.q_norm.weight"


@dataclass(frozen=True, slots=True)
class HunyuanDitConfig:
    """Configuration of the network. Texts come from two encoders, of `context_dim` and of `second_dim`.

    `num_first` and `num_second` are the numbers of their tokens that are replaced where they are padding.
    `has_sizes`: the network was trained with the size of its images, and a style.
    """

    width: int
    num_blocks: int
    heads: int
    inner_width: int
    context_dim: int = 1024
    second_dim: int = 2048
    pooled_dim: int = 1024
    num_first: int = 77
    num_second: int = 256
    in_channels: int = 4
    out_channels: int = 8
    has_sizes: bool = False


def hunyuan_dit_config(shapes: Shapes) -> HunyuanDitConfig:
    """Return the configuration of the network with these tensors (names without prefix).

    Raises LookupError for a missing tensor.
    """
    width, in_channels = shapes[FIRST][:2]
    num_tokens, context_dim = shapes["text_embedding_padding"]
    num_second = shapes[NUM_SECOND][0] - 1
    last = shapes.get("final_layer.linear.weight", (PATCH * PATCH * 2 * in_channels,))[0]
    return HunyuanDitConfig(
        width=width,
        num_blocks=count_children(shapes, "blocks"),
        heads=width // shapes[HEAD][0],
        inner_width=shapes["blocks.0.mlp.fc1.weight"][0],
        context_dim=context_dim,
        second_dim=shapes[MARK][1],
        pooled_dim=shapes["pooler.c_proj.weight"][0],
        num_first=num_tokens - num_second,
        num_second=num_second,
        in_channels=in_channels,
        out_channels=last // PATCH**2,
        has_sizes=STYLE in shapes,
    )


def grid_places(rows: int, columns: int, device: torch.device | None = None) -> torch.Tensor:
    """Return the places [1, T, 2] (column, row) of patches, scaled to fit into the grid of training and centred."""
    if rows > columns:
        height, width = TRAINED_PATCHES, round(TRAINED_PATCHES / rows * columns)
    else:
        height, width = round(TRAINED_PATCHES / columns * rows), TRAINED_PATCHES
    top, left = round((TRAINED_PATCHES - height) / 2.0), round((TRAINED_PATCHES - width) / 2.0)

    def along(start: int, length: int, count: int) -> torch.Tensor:
        steps = torch.arange(count, dtype=torch.float64, device=device) * (length / count) + start
        return steps.float()

    down, across = along(top, height, rows), along(left, width, columns)
    places = torch.stack([across.expand(rows, -1), down[:, None].expand(-1, columns)], dim=-1)
    return places.flatten(0, 1)[None]


class NormedAttention(nn.Module):
    """Parts of both kinds of attention: norms of queries and keys, and the layer behind."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_norm, self.k_norm = (nn.LayerNorm(width // heads, eps=NORM_EPS) for _ in range(2))
        self.out_proj = Linear(width, width)
        self.rotary_heads = RotaryHeads()

    def attended(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options | None = None
    ) -> torch.Tensor:
        """Compute attention of heads [B, H, T, D / H] -> [B, T, D]."""
        out: torch.Tensor = self.out_proj(
            optimized_attention(q, k, v, self.heads, skip_reshape=True, transformer_options=options)
        )
        return out


class SelfAttention(NormedAttention):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.Wqkv = Linear(width, 3 * width)

    def forward(self, x: torch.Tensor, pe: torch.Tensor) -> torch.Tensor:
        q, k, v = self.Wqkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.rotary_heads([(q, self.q_norm)], [(k, self.k_norm)], pe)
        return self.attended(q, k, v)


class TextAttention(NormedAttention):
    def __init__(self, width: int, context_dim: int, heads: int) -> None:
        super().__init__(width, heads)
        self.q_proj, self.kv_proj = Linear(width, width), Linear(context_dim, 2 * width)

    def forward(self, x: torch.Tensor, text: torch.Tensor, pe: torch.Tensor) -> torch.Tensor:
        q = self.q_proj(x).view(*x.shape[:2], self.heads, -1).transpose(1, 2)
        k, v = self.kv_proj(text).view(*text.shape[:2], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.attended(self.rotary_heads.plain([(q, self.q_norm)], pe), self.k_norm(k), v)


class FeedForward(nn.Module):
    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = Linear(width, inner_width), Linear(inner_width, width)
        self.activation = Gelu("tanh")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc2(self.activation(self.fc1(x)))
        return out


class HunyuanDitBlock(nn.Module):
    """A block, with a layer that reads an earlier one's output where it is of the second half."""

    def __init__(self, config: HunyuanDitConfig, *, has_skip: bool) -> None:
        super().__init__()
        width = config.width
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width, eps=NORM_EPS) for _ in range(3))
        self.attn1 = SelfAttention(width, config.heads)
        self.attn2 = TextAttention(width, config.context_dim, config.heads)
        self.mlp = FeedForward(width, config.inner_width)
        self.default_modulation = nn.Sequential(nn.SiLU(), Linear(width, width))
        self.adaptive_norm, self.residual = AdaptiveNorm("none"), GatedResidual()
        self.residual_norm = ResidualNorm(self.residual, self.adaptive_norm)
        self.has_skip = has_skip
        if has_skip:
            self.skip_norm = nn.LayerNorm(2 * width, eps=NORM_EPS)
            self.skip_linear = Linear(2 * width, width)

    def forward(
        self,
        x: torch.Tensor,
        vec: torch.Tensor,
        text: torch.Tensor,
        pe: torch.Tensor,
        skip: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if self.has_skip and skip is not None:
            x = self.skip_linear(self.skip_norm(torch.cat([x, skip], dim=-1)))
        normed = self.adaptive_norm(x, None, self.default_modulation(vec)[:, None], self.norm1)
        x, normed = self.residual_norm(x, self.attn1(normed, pe), None, None, norm=self.norm3)
        x, normed = self.residual_norm(x, self.attn2(normed, text, pe), None, None, norm=self.norm2)
        out: torch.Tensor = self.residual(x, self.mlp(normed))
        return out


class TextPool(nn.Module):
    """One vector [B, out] of the second encoder's tokens [B, T, D], by attention of their mean."""

    def __init__(self, config: HunyuanDitConfig) -> None:
        super().__init__()
        width = config.second_dim
        self.positional_embedding = nn.Parameter(torch.empty(config.num_second + 1, width))
        self.q_proj, self.k_proj, self.v_proj = (Linear(width, width) for _ in range(3))
        self.c_proj = Linear(width, config.pooled_dim)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        text = text[:, : self.positional_embedding.shape[0] - 1]
        x = torch.cat([text.mean(dim=1, keepdim=True), text], dim=1) + self.positional_embedding.to(text.dtype)
        pooled = optimized_attention(self.q_proj(x[:, :1]), self.k_proj(x), self.v_proj(x), POOL_HEADS)
        out: torch.Tensor = self.c_proj(pooled)
        return out[:, 0]


class PatchEmbedder(nn.Module):
    def __init__(self, config: HunyuanDitConfig) -> None:
        super().__init__()
        self.proj = Conv2d(config.in_channels, config.width, PATCH, stride=PATCH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the patches of a latent [B, C, h, w] as tokens [B, T, D]."""
        out: torch.Tensor = self.proj(pad_to_patches(x, PATCH))
        return tokens_of(out)


class HunyuanDitFinalLayer(nn.Module):
    def __init__(self, config: HunyuanDitConfig) -> None:
        super().__init__()
        self.linear = Linear(config.width, PATCH * PATCH * config.out_channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(config.width, 2 * config.width))
        self.adaptive_norm = AdaptiveNorm(eps=NORM_EPS)

    def forward(self, x: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
        shift, scale = self.adaLN_modulation(vec)[:, None].chunk(2, dim=-1)
        out: torch.Tensor = self.linear(self.adaptive_norm(x, scale, shift))
        return out


class HunyuanDitTrunk(nn.Module):
    """The layers before the blocks, which networks that steer such a transformer have as well."""

    def __init__(self, config: HunyuanDitConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = PATCH
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.mlp_t5 = nn.Sequential(
            Linear(config.second_dim, 4 * config.second_dim),
            nn.SiLU(),
            Linear(4 * config.second_dim, config.context_dim),
        )
        self.text_embedding_padding = nn.Parameter(
            torch.empty(config.num_first + config.num_second, config.context_dim)
        )
        self.pooler = TextPool(config)
        self.x_embedder = PatchEmbedder(config)
        self.t_embedder = Embedder(TIME_WIDTH, config.width)
        label_dim = config.pooled_dim
        if config.has_sizes:
            self.style_embedder = nn.Embedding(1, config.width)
            label_dim += NUM_NUMBERS * NUMBER_WIDTH + config.width
        self.extra_embedder = nn.Sequential(
            Linear(label_dim, 4 * config.width), nn.SiLU(), Linear(4 * config.width, config.width)
        )

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.x_embedder.proj.weight.dtype

    def rotations_of(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rotations of a latent's patches."""
        rows, columns = (-(-size // PATCH) for size in x.shape[-2:])
        axis = self.config.width // self.config.heads // 2
        return rotations(grid_places(rows, columns, x.device), (axis, axis))

    def text(
        self, first: torch.Tensor, first_mask: torch.Tensor, second: torch.Tensor, second_mask: torch.Tensor
    ) -> torch.Tensor:
        """Return the tokens of both encoders behind each other, padding replaced by learned tokens.

        Raises ValueError for fewer tokens than that.
        """
        padding = self.text_embedding_padding.to(first.dtype)
        num_first = self.config.num_first
        parts = (
            (first, first_mask, padding[:num_first]),
            (self.mlp_t5(second), second_mask, padding[num_first:]),
        )
        return torch.cat([_with_padding(*part) for part in parts], dim=1)

    def vector(
        self, timesteps: torch.Tensor, second: torch.Tensor, sizes: torch.Tensor | None, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the vector [B, D] that modulates the blocks, of the time, the text and the sizes [B, 6]."""
        labels = self.pooler(second)
        if self.config.has_sizes:
            assert sizes is not None
            numbers = timestep_embedding(sizes.flatten(), NUMBER_WIDTH).to(dtype).view(labels.shape[0], -1)
            style = self.style_embedder.weight.to(dtype).expand(labels.shape[0], -1)
            labels = torch.cat([labels, numbers, style], dim=1)
        time: torch.Tensor = self.t_embedder(timestep_embedding(timesteps, TIME_WIDTH).to(dtype))
        extra: torch.Tensor = self.extra_embedder(labels)
        return time + extra


class HunyuanDitTransformer(HunyuanDitTrunk):
    """`forward(x [B, C, h, w], timesteps [B], context [B, T, D])` -> `[B, C, h, w]`.

    `text_embedding_mask` [B, T] is 0 for padding of the first encoder's tokens. `encoder_hidden_states_t5` [B, T, D]
    are those of the second one, `text_embedding_mask_t5` their mask. `image_meta_size` [B, 6] are the numbers of the
    size. `control` holds a list `output` of additions to what blocks of the second half see, the last for the first of
    them. Built without weights being drawn when a `torch.device("meta")` context is open.
    """

    is_wrapped = False

    def __init__(self, config: HunyuanDitConfig) -> None:
        super().__init__(config)
        middle = config.num_blocks // 2
        self.blocks = nn.ModuleList(
            HunyuanDitBlock(config, has_skip=index > middle) for index in range(config.num_blocks)
        )
        self.final_layer = HunyuanDitFinalLayer(config)

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: Control | None = None,
        transformer_options: Options | None = None,
        *,
        text_embedding_mask: torch.Tensor,
        encoder_hidden_states_t5: torch.Tensor,
        text_embedding_mask_t5: torch.Tensor,
        image_meta_size: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        text = self.text(context, text_embedding_mask, encoder_hidden_states_t5, text_embedding_mask_t5)
        vec = self.vector(timesteps, encoder_hidden_states_t5, image_meta_size, x.dtype)
        out = self._blocks(self.x_embedder(x), vec, text, self.rotations_of(x), control, options)
        drawn = self.final_layer(out, vec)
        height, width = x.shape[-2:]
        rows, columns = -(-height // PATCH), -(-width // PATCH)
        latent = image_channels_last(drawn, rows * PATCH, columns * PATCH)
        return latent[:, : self.config.in_channels, :height, :width]  # without the learned variance

    def _blocks(
        self,
        x: torch.Tensor,
        vec: torch.Tensor,
        text: torch.Tensor,
        pe: torch.Tensor,
        control: Control | None,
        options: Options,
    ) -> torch.Tensor:
        """Return the tokens after all blocks, or after what custom nodes have put in their places.

        Raises ValueError for another number of additions than blocks that see earlier ones.
        """
        replaced = options.get("patches_replace", {}).get("dit", {})
        middle = self.config.num_blocks // 2
        additions = list((control or {}).get("output", []))
        if additions and len(additions) != self.config.num_blocks - middle - 1:
            raise ValueError(
                f"control_net: it has another number of blocks than the model; got {len(additions)}, expected "
                f"{self.config.num_blocks - middle - 1}"
            )
        skips: list[torch.Tensor] = []
        for index, block in enumerate(self.blocks):
            skip = None
            if index > middle:
                skip = skips.pop()
                addition = additions.pop() if additions else None
                skip = skip if addition is None else skip + addition.to(x.dtype)
            run = _block_function(block)
            args = {"img": x, "txt": text, "vec": vec, "pe": pe, "skip": skip}
            replacement = replaced.get(("double_block", index))
            x = (run(args) if replacement is None else replacement(args, {"original_block": run}))["img"]
            if index < middle - 1:
                skips.append(x)
        return x


def _with_padding(text: torch.Tensor, mask: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    """Return tokens [B, T, D] whose last ones are `padding` [N, D] where the mask [B, T] is 0."""
    count = padding.shape[0]
    if text.shape[1] < count or mask.shape[1] < count:
        raise ValueError(f"conditioning: too few tokens of text; got {text.shape[1]}, expected at least {count}")
    replaced = torch.where(mask[:, -count:, None].bool(), text[:, -count:], padding)
    return torch.cat([text[:, :-count], replaced], dim=1)


def _block_function(block: nn.Module) -> BlockFunction:
    """Return a block in the form in which custom nodes call it."""

    def original(args: BlockArguments) -> dict[str, torch.Tensor]:
        return {"img": block(args["img"], args["vec"], args["txt"], args["pe"], args["skip"])}

    return original
