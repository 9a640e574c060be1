"""The transformer of Qwen-Image (Wu et al. 2025, arXiv 2508.02324), of any width and depth.

All blocks have two streams, one for the text and one for the image. Places are rotations (Su et al. 2021, arXiv
2104.09864) on three axes, index of the image, row and column, that are counted from the middle of the image; the
text continues on all axes where the longer side ends (section 3.2 of the paper). `B` batch, `C` channels, `h w` latent
cells, `T` tokens of text and image, `D` width, `H` heads. Module names are those of the original checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches_replace["dit"]` has
functions by `("double_block", index)`, called with the block's inputs and `{"original_block": ...}`;
`patches["double_block"]` functions of the streams behind each block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.flux.transformer import HEAD_WIDTH, TIME_FACTOR, TIME_WIDTH, reference_corners
from darkroom.engine.layers.attention import optimized_attention
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.block_calls import BlockFunction, Control
from darkroom.engine.layers.feed_forward import FeedForward
from darkroom.engine.layers.norms import RmsNorm
from darkroom.engine.layers.patches import PATCH, pad_to_patches, patches_of
from darkroom.engine.layers.rotary import rotations
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.sinusoids import sinusoids_scaled_last
from darkroom.engine.layers.transformer_layers import (
    AdaptiveNorm,
    GatedResidual,
    Modulator,
    ResidualNorm,
    RotaryHeads,
    Stretches,
)
from darkroom.engine.layers.unet_layers import Options

Streams = tuple[torch.Tensor, torch.Tensor]  # text and image, each [B, T, D]
TIME_ZERO_METHOD = "index_timestep_zero"  # of reference images: they are seen as if their time was 0
AT_ZERO = "__index_timestep_zero__"  # an empty tensor of files whose network sees them so by itself
CONTROLLED_BLOCKS = 60  # of the published network; a control's blocks are spread over them
MARK = "txt_norm.weight"
BLOCK = "transformer_blocks.0.img_mlp.net.0.proj.weight"
HINT = "controlnet_x_embedder.weight"
LAST = "proj_out.weight"
LAYERED = "time_text_embed.addition_t_embedding.weight"  # of networks that draw an image in layers
BEFORE_METHOD = "negative_index"  # of reference images of such a network: their indices count down from 0
NUM_KINDS = 2  # of latents that such a network tells apart; nodes give it the first one alone


@dataclass(frozen=True, slots=True)
class QwenImageConfig:
    """Configuration of the network. Channels are those of the latent; `hint_channels` those that a control sees.

    With `references_at_zero` reference images are seen as if their time was 0, unless a node says otherwise. With
    `draws_layers` the frames of a latent are an image and its layers.
    """

    width: int
    num_blocks: int
    context_dim: int
    in_channels: int = 16
    out_channels: int = 16
    inner_factor: int = 4
    hint_channels: int = 0
    references_at_zero: bool = False
    draws_layers: bool = False

    @property
    def heads(self) -> int:
        return self.width // HEAD_WIDTH


def qwen_image_config(shapes: Shapes) -> QwenImageConfig:
    """Return the configuration of the network, or of a control of it, with these tensors (names without prefix)."""
    width, in_width = shapes["img_in.weight"]
    in_channels = in_width // PATCH**2
    is_control = HINT in shapes
    return QwenImageConfig(
        width=width,
        num_blocks=count_children(shapes, "transformer_blocks"),
        context_dim=shapes[MARK][0],
        in_channels=in_channels,
        out_channels=in_channels if is_control else shapes[LAST][0] // PATCH**2,
        inner_factor=shapes[BLOCK][0] // width,
        hint_channels=shapes[HINT][1] // PATCH**2 if is_control else 0,
        references_at_zero=AT_ZERO in shapes,
        draws_layers=LAYERED in shapes,
    )


# --- places ----------------------------------------------------------------------------------------------------------


def centred_places(
    size: tuple[int, int], corner: tuple[int, int, int] = (0, 0, 0), *, device: torch.device
) -> torch.Tensor:
    """Return the places [rows * columns, 3] of the patches of an image of this height and width in cells.

    `corner` is an index, and a row and a column in cells by which the patches are moved.
    """
    rows, columns = (-(-side // PATCH) for side in size)
    index, row, column = corner[0], *((offset + PATCH // 2) // PATCH for offset in corner[1:])
    places = torch.empty(rows, columns, 3, device=device)
    places[..., 0] = index
    places[..., 1] = (torch.arange(rows, device=device) + row - rows // 2)[:, None]
    places[..., 2] = (torch.arange(columns, device=device) + column - columns // 2)[None, :]
    return places.flatten(0, 1)


def text_places(size: tuple[int, int], num_tokens: int, device: torch.device) -> torch.Tensor:
    """Return the places [num_tokens, 3] of a text beside an image of this height and width in cells."""
    first = max(-(-side // PATCH) // 2 for side in size)
    return torch.arange(first, first + num_tokens, dtype=torch.float32, device=device)[:, None].expand(-1, 3)


def frame_places(size: tuple[int, int, int], *, device: torch.device) -> torch.Tensor:
    """Return the places [frames * rows * columns, 3] of the patches of a latent of these frames, height and width."""
    frames = [centred_places(size[1:], (index, 0, 0), device=device) for index in range(size[0])]
    return torch.cat(frames)


def frame_patches(video: torch.Tensor) -> torch.Tensor:
    """Return the patches of a latent [B, C, F, h, w] of whole patches, frame by frame, as tokens [B, F * n, C * 4]."""
    tokens = patches_of(video.transpose(1, 2).flatten(0, 1))
    return tokens.view(video.shape[0], -1, tokens.shape[-1])


def image_of(video: torch.Tensor) -> torch.Tensor:
    """Return the only frame [B, C, h, w] of a latent [B, C, 1, h, w]. Raises ValueError for one of more frames."""
    if video.ndim == 4:
        return video
    if video.shape[2] != 1:
        raise ValueError(f"latent: the model draws images; got {video.shape[2]} latent frames, expected 1")
    return video.squeeze(2)


def _size_of(latent: torch.Tensor) -> tuple[int, int]:
    return latent.shape[-2], latent.shape[-1]


# --- layers ----------------------------------------------------------------------------------------------------------


class TimeEmbedder(nn.Module):
    """The sinusoids of the time [B] through two layers -> [B, D], with the kind of a latent of layers added."""

    def __init__(self, width: int, *, has_kinds: bool = False) -> None:
        super().__init__()
        self.addition_t_embedding = nn.Embedding(NUM_KINDS, width) if has_kinds else None
        layers = {"linear_1": Linear(TIME_WIDTH, width), "linear_2": Linear(width, width)}
        self.timestep_embedder = nn.ModuleDict(layers)

    def forward(self, times: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        sinusoids = sinusoids_scaled_last(times, TIME_WIDTH, TIME_FACTOR).to(dtype)
        first = functional.silu(self.timestep_embedder["linear_1"](sinusoids))
        out: torch.Tensor = self.timestep_embedder["linear_2"](first)
        if self.addition_t_embedding is None:
            return out
        kind: torch.Tensor = self.addition_t_embedding(torch.zeros(1, dtype=torch.long, device=times.device))
        return out + kind.to(out)


class JointAttention(nn.Module):
    """Self-attention over text and image together, each with projections of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.norm_q, self.norm_k = RmsNorm(HEAD_WIDTH), RmsNorm(HEAD_WIDTH)
        self.norm_added_q, self.norm_added_k = RmsNorm(HEAD_WIDTH), RmsNorm(HEAD_WIDTH)
        self.to_q, self.to_k, self.to_v = (Linear(width, width) for _ in range(3))
        self.add_q_proj, self.add_k_proj, self.add_v_proj = (Linear(width, width) for _ in range(3))
        self.to_out = nn.ModuleList([Linear(width, width)])
        self.to_add_out = Linear(width, width)
        self.rotary_heads = RotaryHeads(token_dim=1)

    def forward(self, txt: torch.Tensor, img: torch.Tensor, pe: torch.Tensor, options: Options | None) -> Streams:
        text_q, text_k = self._heads(self.add_q_proj(txt)), self._heads(self.add_k_proj(txt))
        image_q, image_k = self._heads(self.to_q(img)), self._heads(self.to_k(img))
        q, k = self.rotary_heads(
            [(text_q, self.norm_added_q), (image_q, self.norm_q)],
            [(text_k, self.norm_added_k), (image_k, self.norm_k)],
            pe,
        )
        v = torch.cat([self.add_v_proj(txt), self.to_v(img)], dim=1)
        attended = optimized_attention(q.flatten(2), k.flatten(2), v, self.heads, transformer_options=options)
        num_tokens = txt.shape[1]
        return self.to_add_out(attended[:, :num_tokens]), self.to_out[0](attended[:, num_tokens:])

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x` [B, T, D] as heads [B, T, H, 128]."""
        return x.view(*x.shape[:2], self.heads, HEAD_WIDTH)


class QwenImageBlock(nn.Module):
    def __init__(self, config: QwenImageConfig) -> None:
        super().__init__()
        width, inner = config.width, config.width * config.inner_factor
        self.img_mod, self.txt_mod = (nn.Sequential(nn.SiLU(), Linear(width, 6 * width)) for _ in range(2))
        self.img_mlp, self.txt_mlp = FeedForward(width, inner), FeedForward(width, inner)
        self.attn = JointAttention(width)
        self.adaptive_norm, self.residual = AdaptiveNorm(is_joined=True), GatedResidual(is_joined=True)
        self.residual_norm = ResidualNorm(GatedResidual(), self.adaptive_norm)

    def forward(
        self,
        txt: torch.Tensor,
        img: torch.Tensor,
        vec: torch.Tensor,
        pe: torch.Tensor,
        transformer_options: Options | None = None,
        num_drawn: int | None = None,
    ) -> Streams:
        """Return text and image [B, T, D] each. `vec` is [B, D], `pe` the rotations [B, T, 1, 64, 2, 2].

        With `num_drawn` only so many of the image's tokens, and the text, have the first time of `vec` [2 * B, D].
        The tokens behind them have the second one.
        """
        batch, num_tokens = img.shape[:2]
        lengths = (num_tokens,) if num_drawn is None else (num_drawn, num_tokens - num_drawn)
        tables = [part.chunk(6, dim=-1) for part in torch.split(self.img_mod(vec)[:, None], batch)]  # each [B, 1, D]
        img_shift, img_scale, img_gate, *img_second = (
            _of_stretches(lengths, [table[part] for table in tables]) for part in range(6)
        )
        txt_shift, txt_scale, txt_gate, *txt_second = self.txt_mod(vec[:batch])[:, None].chunk(6, dim=-1)
        text, image = self.attn(
            self.adaptive_norm(txt, txt_scale, txt_shift),
            self.adaptive_norm(img, img_scale, img_shift),
            pe,
            transformer_options,
        )
        img, normed = self.residual_norm(img, image, img_gate, img_second[1], img_second[0])
        img = self.residual(img, self.img_mlp(normed), img_second[2])
        txt, normed = self.residual_norm(txt, text, txt_gate, txt_second[1], txt_second[0])
        return self.residual(txt, self.txt_mlp(normed), txt_second[2]), img


def _of_stretches(lengths: tuple[int, ...], parts: Sequence[torch.Tensor]) -> Modulator:
    """Return the modulator of all tokens, or of stretches of these lengths in tokens."""
    return parts[0] if len(lengths) == 1 else Stretches(lengths, tuple(parts))


class LastNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = Linear(width, 2 * width)
        self.adaptive_norm = AdaptiveNorm(is_joined=True)

    def forward(self, x: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
        scale, shift = self.linear(functional.silu(vec))[:, None].chunk(2, dim=-1)
        out: torch.Tensor = self.adaptive_norm(x, scale, shift)
        return out


# --- networks --------------------------------------------------------------------------------------------------------


class QwenImageTrunk(nn.Module):
    """The layers that the network and its controls have in common: embeddings and blocks."""

    def __init__(self, config: QwenImageConfig) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = PATCH
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.time_text_embed = TimeEmbedder(config.width, has_kinds=config.draws_layers)
        self.txt_norm = RmsNorm(config.context_dim)
        self.img_in = Linear(config.in_channels * PATCH * PATCH, config.width)
        self.txt_in = Linear(config.context_dim, config.width)
        self.transformer_blocks = nn.ModuleList(QwenImageBlock(config) for _ in range(config.num_blocks))

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.txt_in.weight.dtype

    def text(self, context: torch.Tensor) -> torch.Tensor:
        """Return the embedded text [B, T, D] of tokens [B, T, context_dim]."""
        out: torch.Tensor = self.txt_in(self.txt_norm(context))
        return out


def turned(places: torch.Tensor, batch: int, like: torch.Tensor) -> torch.Tensor:
    """Return the rotations [B, T, 1, 64, 2, 2] at places [T, 3], in the type of `like`."""
    pe = rotations(places[None])  # [1, 1, T, 64, 2, 2]
    return pe.transpose(1, 2).to(like.dtype).expand(batch, -1, -1, -1, -1, -1)


def run_blocks(
    blocks: nn.ModuleList,
    streams: Streams,
    shared: Mapping[str, Any],
    x: torch.Tensor,
    control: Control | None,
) -> torch.Tensor:
    """Return the image's tokens [B, T, D] after all blocks.

    `streams` are text and image, `shared` the further inputs of each block, `x` the latent for patches of custom nodes.
    """
    txt, img = streams
    options = shared["transformer_options"]
    replaced = options.get("patches_replace", {}).get("dit", {})
    patches = options.get("patches", {}).get("double_block", ())
    additions = [] if control is None else control.get("input", [])
    for index, block in enumerate(blocks):
        replacement = replaced.get(("double_block", index))
        if replacement is None:
            txt, img = block(txt, img, **shared)
        else:
            out = replacement({"img": img, "txt": txt, **shared}, {"original_block": _as_function(block)})
            txt, img = out["txt"], out["img"]
        for patch in patches:
            out = patch({"img": img, "txt": txt, "x": x, "block_index": index, "transformer_options": options})
            txt, img = out["txt"], out["img"]
        addition = additions[index] if index < len(additions) else None
        if addition is not None:
            img = img + functional.pad(addition.to(img.dtype), (0, 0, 0, img.shape[1] - addition.shape[1]))
    return img


class QwenImageTransformer(QwenImageTrunk):
    """`forward(x [B, in, F, h, w], timesteps [B], context [B, T, context_dim])` -> `[B, out, F, h, w]`.

    Latents have one frame, but for a network that draws layers. `ref_latents` are reference images [B, in, 1, h, w],
    placed by `ref_latents_method` (`engine/families/flux/transformer.py::reference_corners`): `index` at indices of
    their own, `index_timestep_zero` too, as if their time was 0, `negative_index` at those before the image's, others
    beside each other; None is the network's own way. `control` holds a list `input` of additions to the image by block.
    Built without weights being drawn when a `torch.device("meta")` context is open.
    """

    def __init__(self, config: QwenImageConfig) -> None:
        super().__init__(config)
        if config.references_at_zero:
            self.register_buffer(AT_ZERO, torch.empty(0, device="cpu"))
        self.norm_out = LastNorm(config.width)
        self.proj_out = Linear(config.width, PATCH * PATCH * config.out_channels)

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: Control | None = None,
        transformer_options: Options | None = None,
        *,
        ref_latents: Sequence[torch.Tensor] = (),
        ref_latents_method: str | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        options = {} if transformer_options is None else transformer_options
        method = ref_latents_method or self._own_method()
        video = self._frames_of(x)
        padded = pad_to_patches(video, PATCH)
        tokens, places = self._with_references(padded, _size_of(video), ref_latents, method)
        img, txt = self.img_in(tokens), self.text(context)
        num_drawn = frame_patches(padded).shape[1]
        is_apart = method == TIME_ZERO_METHOD and bool(ref_latents)
        times = torch.cat([timesteps, torch.zeros_like(timesteps)]) if is_apart else timesteps
        vec = self.time_text_embed(times, img.dtype)
        all_places = torch.cat([text_places(_size_of(video), context.shape[1], x.device), places])
        pe = turned(all_places, x.shape[0], img)
        shared: dict[str, Any] = {"vec": vec, "pe": pe, "transformer_options": options}
        shared |= {"num_drawn": num_drawn} if is_apart else {}
        img = run_blocks(self.transformer_blocks, (txt, img), shared, x, control)
        drawn = self.proj_out(self.norm_out(img[:, :num_drawn], vec[: x.shape[0]]))
        return self._video(drawn, padded)[..., : x.shape[-2], : x.shape[-1]].reshape(
            x.shape[0], self.config.out_channels, *x.shape[2:]
        )

    def _own_method(self) -> str:
        """Return the way in which the network sees reference images by itself."""
        if self.config.draws_layers:
            return BEFORE_METHOD
        return TIME_ZERO_METHOD if self.config.references_at_zero else "index"

    def _frames_of(self, latent: torch.Tensor) -> torch.Tensor:
        """Return a latent as frames [B, C, F, h, w]. Raises ValueError for more of them than the network draws."""
        if self.config.draws_layers and latent.ndim == 5:
            return latent
        return image_of(latent).unsqueeze(2)

    def _with_references(
        self, padded: torch.Tensor, target: tuple[int, int], references: Sequence[torch.Tensor], method: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the patches of the image and of its references behind each other, and their places."""
        tokens, places = [frame_patches(padded)], [frame_places((padded.shape[2], *target), device=padded.device)]
        images = [self._frames_of(item) for item in references]
        sizes = [_size_of(item) for item in images]
        for item, size, corner in zip(images, sizes, _corners(sizes, target, method), strict=True):
            tokens.append(frame_patches(pad_to_patches(item, PATCH)))
            if item.shape[2] > 1:  # frames are counted from 0, whatever the way
                places.append(frame_places((item.shape[2], *size), device=padded.device))
            else:
                places.append(centred_places(size, corner, device=padded.device))
        return torch.cat(tokens, dim=1), torch.cat(places)

    def _video(self, tokens: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return the patches as a latent [B, C, F, h, w]."""
        frames, rows, columns = like.shape[2], like.shape[-2] // PATCH, like.shape[-1] // PATCH
        cells = tokens.view(-1, frames, rows, columns, self.config.out_channels, PATCH, PATCH)
        video = cells.permute(0, 4, 1, 2, 5, 3, 6)
        return video.reshape(-1, self.config.out_channels, frames, rows * PATCH, columns * PATCH)


def _corners(sizes: Sequence[tuple[int, int]], target: tuple[int, int], method: str) -> list[tuple[int, int, int]]:
    """Return index, row and column of each reference image of these sizes in cells."""
    if method == BEFORE_METHOD:
        return [(-number, 0, 0) for number in range(1, len(sizes) + 1)]
    return reference_corners(sizes, target, "index" if method in ("index", TIME_ZERO_METHOD) else "offset")


class QwenImageControlNet(QwenImageTrunk):
    """A control of the network: its blocks' outputs, each for a stretch of the network's blocks (InstantX 2025).

    `forward(x [B, in, 1, h, w], timesteps [B], context [B, T, context_dim], hint [B, hint, 1, h, w])` -> lists of
    additions by place.
    """

    def __init__(self, config: QwenImageConfig) -> None:
        super().__init__(config)
        self.controlnet_blocks = nn.ModuleList(Linear(config.width, config.width) for _ in range(config.num_blocks))
        self.controlnet_x_embedder = Linear(config.hint_channels * PATCH * PATCH, config.width)

    def forward(
        self, x: torch.Tensor, timesteps: torch.Tensor, context: torch.Tensor, hint: torch.Tensor, **kwargs: object
    ) -> dict[str, list[torch.Tensor]]:
        image = image_of(x)
        size = _size_of(image)
        seen = patches_of(pad_to_patches(image_of(hint), PATCH))
        img = self.img_in(patches_of(pad_to_patches(image, PATCH))) + self.controlnet_x_embedder(seen)
        txt = self.text(context)
        vec = self.time_text_embed(timesteps, img.dtype)
        places = torch.cat([text_places(size, context.shape[1], x.device), centred_places(size, device=x.device)])
        pe = turned(places, x.shape[0], img)
        repeats = math.ceil(CONTROLLED_BLOCKS / len(self.controlnet_blocks))
        additions: list[torch.Tensor] = []
        for block, last in zip(self.transformer_blocks, self.controlnet_blocks, strict=True):
            txt, img = block(txt, img, vec, pe)
            additions.extend([last(img)] * repeats)
        return {"input": additions[:CONTROLLED_BLOCKS]}


def _as_function(block: nn.Module) -> BlockFunction:
    """Return a block in the form in which custom nodes call it."""

    def original(args: dict[str, Any]) -> dict[str, torch.Tensor]:
        txt, img = block(**args)
        return {"img": img, "txt": txt}

    return original
