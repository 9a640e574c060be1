"""The transformer of MiniMax H3 (MiniMax 2026): a video and its stereo audio in one stream of tokens with the text.

Both are denoised together, each at its own noise level. Beside them the network sees images, videos and audio that it
is given: at a time of the video (guides) or by themselves (references). `B` batch, `S` tokens, `D` hidden size, `M`
noise levels, `t h w` latent frames, rows and columns, `T` latent frames of audio. Module names are those of the
original checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches_replace["dit"]` has
functions in place of blocks, by `("double_block", i)`. Their arguments have the tokens (`img`), the `layout`
(`Sequencing`) and what a block is called with; an `attention` that they add stands in place of the block's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.minimax_h3.layers import (
    DitBlock,
    FinalLayer,
    MiniMaxH3Config,
    Modulated,
    Rotation,
    TimeEmbedder,
    TokenRefiner,
)
from darkroom.engine.families.minimax_h3.layout import CELLS, Sequencing, Source, Stretch, from_flat
from darkroom.engine.families.minimax_h3.noise_levels import AUDIO_TIME, VIDEO_TIME, NoiseLevels, levels_of
from darkroom.engine.families.minimax_h3.sampling import shifted_again
from darkroom.engine.families.minimax_h3.tokens import audio_of, audio_tokens, video_of, video_tokens
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.patches import pad_to_patches
from darkroom.engine.layers.shapes import Shapes, count_children
from darkroom.engine.layers.unet_layers import Options

VIDEO_SHIFT, AUDIO_SHIFT = "minimax_h3_sigma_shift_video", "minimax_h3_sigma_shift_audio"  # transformer options
LEAST_SIGMA = 1e-6
TIMESTEP_FACTOR = 1000.0
MARK, AUDIO_MARK = "video_patch_proj.weight", "audio_patch_proj.weight"
CURVE = "adaln_t_table"
FLOAT32_ENDS = tuple(
    f".{layer}.{part}"
    for layer in ("video_patch_proj", "audio_patch_proj", "time_embedder.proj_in", "time_embedder.proj_out",
                  "final_layer.video_out", "final_layer.audio_out")
    for part in ("weight", "bias")
) + (".rope.inv_freq", f".{CURVE}")  # fmt: skip
CURVE_FLOAT32_ENDS = (*FLOAT32_ENDS, ".adaln_proj.linear.weight", ".adaln_proj.linear.bias")
BlockFunction = Callable[[dict[str, Any]], dict[str, torch.Tensor]]


def minimax_h3_config(shapes: Shapes) -> MiniMaxH3Config:
    """Return the configuration of the network with these tensors (names without prefix).

    Raises `NotRecognised` for one with an output for each of several stretches of noise levels.
    """
    columns, rows = shapes[MARK][1], shapes["final_layer.video_out.weight"][0]
    if rows > columns:
        raise NotRecognised(f"a MiniMax H3 network with a bank of {rows // columns} outputs (PDD)")
    block = "blocks.0"
    head_dim = shapes[f"{block}.attn.q_norm.weight"][0]
    curve_points, time_embed_dim = shapes.get(CURVE, (0, 0))
    embedder: dict[str, int] = {"time_embed_dim": time_embed_dim}
    if not curve_points:
        hidden, given = shapes["time_embedder.proj_in.weight"]
        embedder = {
            "time_input_dim": given, "time_hidden_size": hidden,
            "time_embed_dim": shapes["time_embedder.proj_out.weight"][0],
        }  # fmt: skip
    return MiniMaxH3Config(
        hidden_size=shapes[MARK][0],
        num_layers=count_children(shapes, "blocks"),
        num_refiner_layers=count_children(shapes, "token_refiner.blocks"),
        num_heads=shapes[f"{block}.attn.qkv_proj.weight"][0] // (3 * head_dim),
        head_dim=head_dim,
        intermediate_size=shapes[f"{block}.mlp.fc1.weight"][0] // 2,
        in_channels=columns // CELLS**2,
        audio_channels=shapes["final_layer.audio_out.weight"][0],
        text_dim=shapes["condition_proj.weight"][1],
        num_frequencies=shapes["rope.inv_freq"][0],
        curve_points=curve_points,
        gate_compress=f"{block}.attn.to_gate_compress.weight" in shapes,
        **embedder,
    )


class MiniMaxH3Transformer(nn.Module):
    """`forward([video [B, C, t, h, w], audio [B, C, 2, T]], timesteps [B], context [B, L, D])` -> the same two.

    `context` is the text as `refined_text` returns it. `stretches` are those of the sequence (`layout.flat`),
    `positions` [B, S, 3] those of its tokens, float32. `given_video` [B, n, 4 C] and `given_audio` [B, n, C] are the
    tokens that the network is given, in the order of the sequence, float32; `given_times` the least times at which it
    sees them. `video_levels` and `audio_levels` [B, K] are values of masks, with `video_level_of` and `audio_level_of`
    [n] as `noise_levels.Levels` has them. The sampler carries the audio `audio_scale` times as loud as a clean one; see
    `sampling.AudioVideoFlow`. Built without weights being drawn when a `torch.device("meta")` context is open.
    """

    def __init__(self, config: MiniMaxH3Config) -> None:
        super().__init__()
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = (1, CELLS, CELLS)
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        video_dim = config.in_channels * CELLS**2
        self.video_patch_proj = Linear(video_dim, config.hidden_size)
        self.audio_patch_proj = Linear(config.audio_channels, config.hidden_size)
        self.condition_proj = Linear(config.text_dim, config.hidden_size)
        if config.curve_points:
            self.adaln_t_table = nn.Parameter(torch.empty(config.curve_points, config.time_embed_dim))
        else:
            self.time_embedder = TimeEmbedder(config)
        self.rope = nn.ParameterDict({"inv_freq": nn.Parameter(torch.empty(config.num_frequencies))})
        self.token_refiner = TokenRefiner(config)
        self.blocks = nn.ModuleList(DitBlock(config) for _ in range(config.num_layers))
        self.final_layer = FinalLayer(config, video_dim)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.condition_proj.weight.dtype

    def refined_text(self, context: torch.Tensor, options: Options | None = None) -> torch.Tensor:
        """Return a text encoder's states [B, L, text_dim] as tokens [B, L, D]; tokens are returned as they are."""
        if context.shape[-1] == self.config.hidden_size != self.config.text_dim:
            return context
        refined: torch.Tensor = self.token_refiner(self.condition_proj(context), options)
        return refined

    def forward(
        self,
        x: Sequence[torch.Tensor],
        timesteps: torch.Tensor,
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        stretches: Sequence[int],
        positions: torch.Tensor,
        audio_scale: float = 1.0,
        given_video: torch.Tensor | None = None,
        given_audio: torch.Tensor | None = None,
        given_times: Sequence[float] = (VIDEO_TIME, AUDIO_TIME),
        video_levels: torch.Tensor | None = None,
        video_level_of: torch.Tensor | None = None,
        audio_levels: torch.Tensor | None = None,
        audio_level_of: torch.Tensor | None = None,
        **kwargs: object,
    ) -> list[torch.Tensor]:
        options = {} if transformer_options is None else transformer_options
        sigma, audio_sigma = self._sigmas(timesteps, options)
        video, carried = x
        audio, slope = carried, torch.ones_like(audio_sigma)
        if audio_scale != 1.0:
            audio = carried * _for_audio(audio_sigma / sigma).to(carried.dtype)
            slope = 1.0 + (audio_scale - 1.0) * audio_sigma
        masks = (levels_of(video_levels, video_level_of), levels_of(audio_levels, audio_level_of))
        velocities = self._velocities(
            video, audio, context, options, from_flat(stretches), positions,
            (given_video, given_audio), NoiseLevels(sigma, audio_sigma, given_times, masks),
        )  # fmt: skip
        if audio_scale != 1.0:  # of what the sampler carries
            velocities[1] = (1.0 - audio_scale) * audio + _for_audio(slope).to(audio.dtype) * velocities[1]
        return velocities

    def _sigmas(self, timesteps: torch.Tensor, options: Options) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the noise levels [B] of the video and of the audio, of which the latter has a shift of its own."""
        video_shift = float(options.get(VIDEO_SHIFT, self.config.sigma_shift_video))
        audio_shift = float(options.get(AUDIO_SHIFT, self.config.sigma_shift_audio))
        sigma = (timesteps / TIMESTEP_FACTOR).float().clamp(min=LEAST_SIGMA)
        return sigma, shifted_again(sigma, video_shift, audio_shift)

    def _velocities(
        self,
        video: torch.Tensor,
        audio: torch.Tensor,
        context: torch.Tensor,
        options: Options,
        stretches: Sequence[Stretch],
        positions: torch.Tensor,
        given: tuple[torch.Tensor | None, torch.Tensor | None],
        times: NoiseLevels,
    ) -> list[torch.Tensor]:
        """Return the velocities of the video and of the audio: their noise less what is clean."""
        whole = pad_to_patches(video, CELLS)
        tokens = {Source.VIDEO: video_tokens(whole.float()), Source.AUDIO: audio_tokens(audio.float())}
        tokens = {
            source: own if shown is None else torch.cat([shown.to(own), own], dim=1)
            for (source, own), shown in zip(tokens.items(), given, strict=True)
        }
        dtype = context.dtype
        h = _in_sequence(
            {
                Source.TEXT: self.refined_text(context, options),
                Source.VIDEO: self.video_patch_proj(tokens[Source.VIDEO]).to(dtype),
                Source.AUDIO: self.audio_patch_proj(tokens[Source.AUDIO]).to(dtype),
            },
            stretches,
        )
        embedded = self._embedded(times.all(), dtype)
        modulated = [Modulated(times.level_of(item), item.modality, item.num_tokens) for item in stretches]
        frames, rows, columns = video.shape[-3:]
        layout = Sequencing(stretches, (frames, rows, columns))
        h = self._through_blocks(h, embedded, modulated, self._rotation(positions, dtype), layout, options)
        num_audio, num_video = (item.num_tokens for item in stretches[-2:])
        made_video, made_audio = self.final_layer(
            h[:, -num_video:], h[:, -num_video - num_audio : -num_video], embedded,
            [modulated[-1].level, modulated[-2].level],
        )  # fmt: skip
        made = video_of(made_video, whole.shape)[..., : video.shape[-2], : video.shape[-1]]
        return [-made.to(video.dtype), -audio_of(made_audio).to(audio.dtype)]

    def _through_blocks(
        self,
        h: torch.Tensor,
        times: torch.Tensor,
        stretches: Sequence[Modulated],
        rotation: Rotation,
        layout: Sequencing,
        options: Options,
    ) -> torch.Tensor:
        """Return [B, S, D] after all blocks, or what nodes put in their place."""
        replaced = options.get("patches_replace", {}).get("dit", {})
        inputs = {
            "t_emb": times, "mod_segments": stretches, "rope_freqs": rotation, "layout": layout,
            "transformer_options": options,
        }  # fmt: skip
        for index, block in enumerate(self.blocks):
            replacement = replaced.get(("double_block", index))
            original = _as_function(block)
            given = {"img": h, **inputs}
            out = original(given) if replacement is None else replacement(given, {"original_block": original})
            h = out["img"]
        return h

    def _embedded(self, times: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return times [B, M] of 0..1 as the modulations read them [B, M, time_embed_dim].

        A table of a curve is interpolated linearly, in float32.
        """
        if not self.config.curve_points:
            embedded: torch.Tensor = self.time_embedder(times.flatten()).to(dtype)
            return embedded.view(*times.shape, -1)
        at = times.clamp(0.0, 1.0) * (self.config.curve_points - 1)
        below = at.floor().long().clamp(max=self.config.curve_points - 2)
        table = self.adaln_t_table.to(at)
        return torch.lerp(table[below], table[below + 1], (at - below)[..., None])

    def _rotation(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotation:
        """Return the rotation of pairs of channels: by time, then by row, then by column."""
        angles = (positions[..., None] * self.rope["inv_freq"].to(positions)).flatten(2)[:, :, None]  # [B, S, 1, pairs]
        return angles.cos().to(dtype), angles.sin().to(dtype)


def _as_function(block: nn.Module) -> BlockFunction:
    """Return a block in the form in which custom nodes call it."""

    def original(args: dict[str, Any]) -> dict[str, torch.Tensor]:
        out = block(
            args["img"], args["t_emb"], args["mod_segments"], args["rope_freqs"], args["transformer_options"],
            args.get("attention"),
        )  # fmt: skip
        return {"img": out}

    return original


def _in_sequence(tokens: dict[Source, torch.Tensor], stretches: Sequence[Stretch]) -> torch.Tensor:
    """Return tokens of all sources [B, n, D] in the order of stretches [B, S, D]."""
    lengths = {source: [item.num_tokens for item in stretches if item.source == source] for source in tokens}
    parts = {source: iter(torch.split(own, lengths[source], dim=1)) for source, own in tokens.items()}
    return torch.cat([next(parts[Source(item.source)]) for item in stretches], dim=1)


def _for_audio(factor: torch.Tensor) -> torch.Tensor:
    """Return factors [B] to multiply audio [B, C, 2, T] with."""
    return factor.view(-1, 1, 1, 1)
