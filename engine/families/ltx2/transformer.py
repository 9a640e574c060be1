"""The transformer of LTX-2 (HaCohen et al. 2026, arXiv 2601.03233), of any size: a video and its audio in one network.

Every latent cell of a video, and every latent frame of its audio, is a token, and may have a noise level of its own.
Layers make the modulations of all blocks from the time. `B` batch, `C` channels, `F` latent frames, `h w` latent cells,
`T` tokens of the video, `L` of the audio, `D` hidden size. Module names are those of the original checkpoints.

`transformer_options` is the dictionary by which custom nodes reach inside (ComfyUI's): `patches_replace["dit"]` has
functions by `("double_block", index)`, called with the block's inputs and `{"original_block": ...}`. Of the blocks in
`stg_self_attn_blocks` tokens attend to nothing but themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.families.ltx2.blocks import (
    BASE_ROWS,
    CROSS_ROWS,
    GATE_ROWS,
    TEXT_ROWS,
    Ltx2Block,
    StreamInputs,
    Streams,
    as_arguments,
    as_function,
)
from darkroom.engine.families.ltx2.config import Ltx2Config
from darkroom.engine.families.ltx2.connector import connectors_of
from darkroom.engine.families.ltx2.positions import (
    audio_positions,
    in_seconds,
    reference_positions,
    rotations,
    video_positions,
)
from darkroom.engine.families.ltx_video.transformer import (
    DEFAULT_FRAME_RATE,
    TwoLayers,
    log_weights,
    score_mask,
    taken,
    video_of,
)
from darkroom.engine.layers.basic import Linear
from darkroom.engine.layers.transformer_layers import AdaptiveNorm
from darkroom.engine.layers.unet_layers import Options, timestep_embedding

TIME_DIM = 256  # of the sinusoids of the time
NORM_EPS = 1e-6
AUDIO_ROWS = 16  # of an audio's latent: frequencies


class TimeModulation(nn.Module):
    """Times [B, N] -> modulations [B, N, rows * D], and the embedded times [B, N, D]."""

    def __init__(self, hidden_size: int, rows: int) -> None:
        super().__init__()
        self.emb = nn.ModuleDict({"timestep_embedder": TwoLayers(TIME_DIM, hidden_size, nn.SiLU())})
        self.linear = Linear(hidden_size, rows * hidden_size)

    def forward(self, times: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        sinusoids = timestep_embedding(times.flatten(), TIME_DIM).to(dtype).view(*times.shape, -1)
        embedded = self.emb["timestep_embedder"](sinusoids)
        return self.linear(functional.silu(embedded)), embedded


class TextLinear(nn.Module):
    """A norm without weights, and a layer, of tokens of text."""

    def __init__(self, in_dim: int, hidden_size: int) -> None:
        super().__init__()
        self.factor = (hidden_size / in_dim) ** 0.5
        self.linear_1 = Linear(in_dim, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = functional.rms_norm(x, x.shape[-1:], eps=NORM_EPS)
        out: torch.Tensor = self.linear_1(normed * self.factor)
        return out


class StreamLayers(NamedTuple):
    """Layers that make the blocks' inputs of one stream, and the sizes of it.

    `modulation`, `cross`, `gate` and `text` are those of the stream's tokens, of attention to the other stream, of the
    gate of that, and of the stream's text (None for text that the time does not change). `projection` is that of its
    text. Positions are relative to `largest`.
    """

    modulation: nn.Module
    cross: nn.Module
    gate: nn.Module
    text: nn.Module | None
    projection: nn.Module
    largest: tuple[float, ...]
    hidden_size: int
    heads: int


def _text_projection(config: Ltx2Config, hidden_size: int) -> nn.Module:
    if config.text_projection == "two_layers":
        return TwoLayers(config.text_dim, hidden_size, nn.GELU(approximate="tanh"))
    return TextLinear(config.text_dim, hidden_size) if config.text_projection == "linear" else nn.Identity()


class Ltx2Transformer(nn.Module):
    """`forward([video [B, 128, F, h, w], audio [B, 8, L, 16]], timesteps, context [B, S, D])` -> a list of the same.

    A video alone, as a tensor or a list of one, gives one alone, in the same form. `timesteps` is [B], or a pair of the
    video's [B], [B, F] or [B, T], and the audio's [B] or [B, L]. `context` is text as the connectors leave it
    (`preprocess_text_embeds`), and `attention_mask` [B, S] 1 where it has tokens. `frame_rate` is that of the video, in
    frames a second. `keyframe_idxs` [B, 3, K, 2] are the positions of the last K tokens of the video, where those are
    frames given to the network, and `guide_weights` [B or 1, K] how much they weigh on the tokens of the video and
    these on them, 1 as any others. `kept_tokens` [B, N] are the indices of the video's tokens that there are: the
    result is 0 for the others, and the weights are those of the kept ones of the last K. `generated_keyframes` has the
    `first_latent_frame` and the `num_keyframes` of latent frames that are single frames of a video. `ref_audio`
    [B or 1, R, 128] are tokens of audio whose speaker the audio has.
    """

    def __init__(self, config: Ltx2Config) -> None:
        super().__init__()
        video, audio = config.hidden_size, config.audio_hidden_size
        rows = BASE_ROWS + (TEXT_ROWS if config.modulates_text else 0)
        self.config = config
        self.in_channels = config.in_channels
        self.patch_size = (1, 1, 1)
        self.compute_dtype: torch.dtype | None = None  # where its weights are kept in another type
        self.patchify_proj = Linear(config.in_channels, video)
        self.audio_patchify_proj = Linear(config.audio_channels, audio)
        self.adaln_single = TimeModulation(video, rows)
        self.audio_adaln_single = TimeModulation(audio, rows)
        self.prompt_adaln_single = TimeModulation(video, 2) if config.times_text else None
        self.audio_prompt_adaln_single = TimeModulation(audio, 2) if config.times_text else None
        self.av_ca_video_scale_shift_adaln_single = TimeModulation(video, CROSS_ROWS)
        self.av_ca_audio_scale_shift_adaln_single = TimeModulation(audio, CROSS_ROWS)
        self.av_ca_a2v_gate_adaln_single = TimeModulation(video, GATE_ROWS)
        self.av_ca_v2a_gate_adaln_single = TimeModulation(audio, GATE_ROWS)
        self.caption_projection = _text_projection(config, video)
        self.audio_caption_projection = _text_projection(config, audio)
        self.video_embeddings_connector, self.audio_embeddings_connector = connectors_of(config.connectors)
        self.keyframes_abs_pos_embedding = nn.Parameter(torch.empty(1, video)) if config.marks_keyframes else None
        self.transformer_blocks = nn.ModuleList(Ltx2Block(config) for _ in range(config.num_blocks))
        self.scale_shift_table = nn.Parameter(torch.empty(2, video))
        self.audio_scale_shift_table = nn.Parameter(torch.empty(2, audio))
        self.proj_out = Linear(video, config.in_channels)
        self.audio_proj_out = Linear(audio, config.audio_channels)
        self.adaptive_norm = AdaptiveNorm(eps=NORM_EPS)

    @property
    def dtype(self) -> torch.dtype:
        """Computation type."""
        return self.compute_dtype or self.patchify_proj.weight.dtype

    def preprocess_text_embeds(self, context: torch.Tensor, unprocessed: bool = False) -> torch.Tensor:
        """Return text [B, S, D] as the connectors leave it, of both streams; what they left before as it is.

        `unprocessed` is False for text of which its width tells whether connectors gave it.
        """
        config = self.config
        whole = config.hidden_size + config.audio_hidden_size
        is_done = context.shape[-1] in (whole, 2 * config.text_dim) and not unprocessed
        if is_done or self.video_embeddings_connector is None or self.audio_embeddings_connector is None:
            return context
        video = audio = context
        if context.shape[-1] == whole:
            video, audio = torch.split(context, [config.hidden_size, config.audio_hidden_size], dim=-1)
        if config.projects_first:
            video, audio = self.caption_projection(video), self.audio_caption_projection(audio)
        return torch.cat([self.video_embeddings_connector(video), self.audio_embeddings_connector(audio)], dim=-1)

    def forward(
        self,
        x: torch.Tensor | list[torch.Tensor],
        timesteps: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        context: torch.Tensor,
        y: torch.Tensor | None = None,
        control: object = None,
        transformer_options: Options | None = None,
        *,
        attention_mask: torch.Tensor | None = None,
        frame_rate: float = DEFAULT_FRAME_RATE,
        keyframe_idxs: torch.Tensor | None = None,
        guide_weights: torch.Tensor | None = None,
        kept_tokens: torch.Tensor | None = None,
        generated_keyframes: Mapping[str, int] | None = None,
        ref_audio: torch.Tensor | None = None,
        **kwargs: object,
    ) -> torch.Tensor | list[torch.Tensor]:
        options = {} if transformer_options is None else transformer_options
        streams = [x] if isinstance(x, torch.Tensor) else x
        latent, audio_latent = streams[0], streams[1] if len(streams) > 1 and streams[1].numel() else None
        times, audio_times = timesteps if isinstance(timesteps, tuple) else (timesteps, timesteps)
        times, audio_times = _scaled(times, self.config.time_scale), _scaled(audio_times, self.config.time_scale)
        vx, positions = self._video_tokens(latent, keyframe_idxs, kept_tokens, generated_keyframes)
        times = _kept(times, kept_tokens, latent.shape)
        ax, audio_at = self._audio_tokens(audio_latent, ref_audio, latent)
        num_references = ax.shape[1] - (0 if audio_latent is None else audio_latent.shape[2])
        if num_references:
            audio_times = _behind_references(audio_times, ax.shape[1], num_references)
        dtype = vx.dtype
        of_video, of_audio = context.tensor_split([self.config.context_sizes[0]], dim=-1)
        video, embedded = self._inputs(
            self._video_layers(), of_video, times, audio_times, in_seconds(positions, frame_rate), dtype
        )
        heard: tuple[StreamInputs, torch.Tensor] | None = None
        if audio_latent is not None:
            heard = self._inputs(self._audio_layers(), of_audio, audio_times, times, audio_at, dtype)
        vx, ax = self._blocks(
            (vx, ax), video, None if heard is None else heard[0], options,
            attention_mask=score_mask(attention_mask, dtype),
            self_attention_mask=None if guide_weights is None else log_weights(guide_weights, dtype),
        )  # fmt: skip
        cells = self.proj_out(self._modulated(vx, embedded, self.scale_shift_table))
        out = video_of(cells, kept_tokens, latent.shape)
        if heard is None:
            return out if isinstance(x, torch.Tensor) else [out]
        ax, audio_embedded = ax[:, num_references:], heard[1]
        audio_embedded = audio_embedded[:, num_references:] if audio_embedded.shape[1] > 1 else audio_embedded
        frames = self.audio_proj_out(self._modulated(ax, audio_embedded, self.audio_scale_shift_table))
        return [out, frames.view(*frames.shape[:2], -1, AUDIO_ROWS).transpose(1, 2)]

    # --- tokens ------------------------------------------------------------------------------------------------------

    def _video_tokens(
        self,
        latent: torch.Tensor,
        keyframe_idxs: torch.Tensor | None,
        kept: torch.Tensor | None,
        generated: Mapping[str, int] | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens of a video [B, T, D], and their positions [B, 3, T, 2]."""
        causal = self.config.starts_with_one_frame
        positions = video_positions(*latent.shape[2:], starts_with_one_frame=causal, device=latent.device)
        is_single = positions[0, :, 0] == 0  # [T]
        if generated is not None:
            numbers = torch.arange(latent.shape[2], device=latent.device) - generated["first_latent_frame"]
            is_generated = (numbers >= 0) & (numbers < generated["num_keyframes"])
            is_single = is_single | is_generated.repeat_interleave(math.prod(latent.shape[3:]))
        positions = positions.expand(latent.shape[0], -1, -1, -1)
        if keyframe_idxs is not None and keyframe_idxs.shape[2]:
            own = positions[:, :, : -keyframe_idxs.shape[2]]
            positions = torch.cat([own, keyframe_idxs.to(own.dtype).expand(own.shape[0], -1, -1, -1)], dim=2)
            is_single = functional.pad(is_single[: own.shape[2]], (0, keyframe_idxs.shape[2]))
        tokens = latent.flatten(2).transpose(1, 2)
        if kept is not None:
            tokens = taken(tokens, kept)
            positions = taken(positions.permute(0, 2, 1, 3).flatten(2), kept).view(*kept.shape, 3, 2).transpose(1, 2)
        vx = self.patchify_proj(tokens)
        if self.keyframes_abs_pos_embedding is not None:
            marked = is_single.expand(latent.shape[0], -1)
            marked = marked if kept is None else marked.gather(1, kept)
            vx = vx + marked[..., None].to(vx.dtype) * self.keyframes_abs_pos_embedding.to(vx)
        return vx, positions

    def _audio_tokens(
        self, latent: torch.Tensor | None, reference: torch.Tensor | None, like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens of audio [B, L, D], those of a reference first, and their positions [1, 1, L, 2]."""
        if latent is None:
            return like.new_zeros(like.shape[0], 0, self.config.audio_hidden_size), audio_positions(0, 0, like.device)[
                None
            ]
        tokens = latent.transpose(1, 2).flatten(2)  # [B, L, 128]
        positions = audio_positions(0, tokens.shape[1], latent.device)
        if reference is not None:
            given = reference.to(tokens).expand(tokens.shape[0], -1, -1)
            tokens = torch.cat([given, tokens], dim=1)
            positions = torch.cat([reference_positions(given.shape[1], latent.device), positions], dim=1)
        return self.audio_patchify_proj(tokens), positions[None]

    # --- what blocks get of each stream ------------------------------------------------------------------------------

    def _inputs(
        self,
        layers: StreamLayers,
        context: torch.Tensor,
        times: torch.Tensor,
        other_times: torch.Tensor,
        seconds: torch.Tensor,
        dtype: torch.dtype,
    ) -> tuple[StreamInputs, torch.Tensor]:
        """Return the blocks' inputs of a stream at positions `seconds` [B, A, T, 2], and its embedded times [B, N, D].

        `context` is the text of the stream, `other_times` are those of the other stream.
        """
        rotary = self.config.rotary
        vec, embedded = layers.modulation(times, dtype)
        tables = rotations(
            seconds, layers.largest, layers.hidden_size, layers.heads, dtype=dtype, is_double=rotary.is_double,
            is_middle=rotary.is_middle,
        )  # fmt: skip
        given = StreamInputs(
            context=context if self.config.projects_first else layers.projection(context),
            vec=vec,
            cross_vec=layers.cross(times, dtype)[0],
            cross_gate=layers.gate(self._gate_times(other_times), dtype)[0],
            text_vec=_text_vec(layers.text, times, dtype),
            tables=tables,
            cross_tables=self._cross_tables(seconds[:, :1], dtype),
        )
        return given, embedded

    def _video_layers(self) -> StreamLayers:
        return StreamLayers(
            modulation=self.adaln_single,
            cross=self.av_ca_video_scale_shift_adaln_single,
            gate=self.av_ca_a2v_gate_adaln_single,
            text=self.prompt_adaln_single,
            projection=self.caption_projection,
            largest=self.config.rotary.largest,
            hidden_size=self.config.hidden_size,
            heads=self.config.heads,
        )

    def _audio_layers(self) -> StreamLayers:
        return StreamLayers(
            modulation=self.audio_adaln_single,
            cross=self.av_ca_audio_scale_shift_adaln_single,
            gate=self.av_ca_v2a_gate_adaln_single,
            text=self.audio_prompt_adaln_single,
            projection=self.audio_caption_projection,
            largest=(self.config.rotary.largest_audio,),
            hidden_size=self.config.audio_hidden_size,
            heads=self.config.audio_heads,
        )

    def _gate_times(self, times: torch.Tensor) -> torch.Tensor:
        """Return the times [B, 1] of the gates of attention to a stream with times [B, N]: of its noisiest token."""
        return _noisiest(times) * (self.config.gate_time_scale / self.config.time_scale)

    def _cross_tables(self, seconds: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rotations of a stream's tokens [B, 1, T, 2] in attention between streams, by their middles."""
        config, rotary = self.config, self.config.rotary
        longest = max(rotary.largest[0], rotary.largest_audio)
        tables = rotations(
            seconds, (longest,), config.audio_hidden_size, config.audio_heads, dtype=dtype, is_double=rotary.is_double
        )
        assert isinstance(tables, tuple)
        return tables

    # --- blocks ------------------------------------------------------------------------------------------------------

    def _blocks(
        self, x: Streams, video: StreamInputs, audio: StreamInputs | None, options: Options, **masks: Any
    ) -> Streams:
        replaced = options.get("patches_replace", {}).get("dit", {})
        passing: Any = options.get("stg_self_attn_blocks", ())
        for index, block in enumerate(self.transformer_blocks):
            own = {**options, "stg_skip_self_attn": True} if index in passing else options
            replacement = replaced.get(("double_block", index))
            if replacement is None:
                x = block(x, video, audio, own, mask=masks["attention_mask"], guides=masks["self_attention_mask"])
            else:
                arguments = as_arguments(x, video, audio, own, **masks)
                x = replacement(arguments, {"original_block": as_function(block)})["img"]
        return x

    def _modulated(self, x: torch.Tensor, embedded: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Return the last norm of tokens [B, T, D], modulated by their embedded times [B, N, D]."""
        shift, scale = (table.to(x) + embedded.unsqueeze(2)).unbind(2)  # each [B, N, D]
        rows = scale.shape[1]
        if rows in (1, x.shape[1]):
            out: torch.Tensor = self.adaptive_norm(x, scale, shift)
            return out
        by_row = self.adaptive_norm(
            x.reshape(x.shape[0], rows, -1, x.shape[-1]), scale.unsqueeze(2), shift.unsqueeze(2)
        )
        joined: torch.Tensor = by_row.flatten(1, 2)
        return joined


def _scaled(times: torch.Tensor, scale: float) -> torch.Tensor:
    """Return times [B] or [B, N] as [B, N], scaled."""
    return (times if times.ndim == 2 else times.reshape(times.shape[0], -1)) * scale


def _noisiest(times: torch.Tensor) -> torch.Tensor:
    """Return the largest time [B, 1] of an item's tokens."""
    return times.amax(dim=1, keepdim=True)


def _text_vec(layer: nn.Module | None, times: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """Return the modulation of text [B, 1, 2 D] by a stream's largest time; None without a layer for it."""
    if layer is None:
        return None
    found: torch.Tensor = layer(_noisiest(times), dtype)[0]
    return found


def _kept(times: torch.Tensor, kept: torch.Tensor | None, shape: torch.Size) -> torch.Tensor:
    """Return the times of the tokens that there are of a latent [B, C, F, h, w]."""
    if kept is None or times.shape[1] == 1:
        return times
    num_tokens = math.prod(shape[2:])
    if times.shape[1] == num_tokens:
        return times.gather(1, kept)
    cells = math.prod(shape[3:])  # tokens of a latent frame, all of which are kept or left out
    return times.gather(1, kept[:, ::cells] // cells)


def _behind_references(times: torch.Tensor, num_tokens: int, num_references: int) -> torch.Tensor:
    """Return the times [B, L] of audio's tokens, 0 for those of the reference before them."""
    own = times.expand(-1, num_tokens - num_references)
    return functional.pad(own, (num_references, 0))
