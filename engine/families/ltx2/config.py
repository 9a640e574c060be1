"""The configuration of LTX-2's transformer: what shapes of tensors show of it, and what a file's metadata say.

Versions differ in how they read text. LTX-2 (HaCohen et al. 2026, arXiv 2601.03233) projects what its connectors give;
LTX-2.3 has connectors of the streams' own widths, gated attention, and text that is modulated by the time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.ltx_video.vae_files import METADATA
from darkroom.engine.layers.shapes import Shapes, count_children

HEADS = 32
CONNECTOR_HEAD_DIM = 128
FIRST_BLOCK = "transformer_blocks.0."
VIDEO_FIRST, AUDIO_FIRST = "patchify_proj.weight", "audio_patchify_proj.weight"
CAPTION, AUDIO_CAPTION = "caption_projection.", "audio_caption_projection."
VIDEO_CONNECTOR, AUDIO_CONNECTOR = "video_embeddings_connector.", "audio_embeddings_connector."
KEYFRAME_MARKER = "keyframes_abs_pos_embedding"

TextProjection = Literal["none", "linear", "two_layers"]


@dataclass(frozen=True, slots=True)
class ConnectorConfig:
    """Configuration of a connector, which turns tokens of a language model to tokens of one stream's text."""

    heads: int
    head_dim: int
    num_blocks: int = 2
    num_registers: int = 128
    is_gated: bool = False
    has_ff_bias: bool = True
    splits_rotation: bool = True

    @property
    def hidden_size(self) -> int:
        return self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class RotaryConfig:
    """Settings of the angles that positions become.

    `splits_heads`: channel n of a head turns with channel n + W / 2, else neighbours turn together. `is_double`:
    frequencies are computed in float64. `is_middle`: a token is where its middle is, else where it begins.
    `largest` are the seconds, rows and columns [pixels] that positions are relative to, `largest_audio` the seconds of
    audio.
    """

    splits_heads: bool = True
    is_double: bool = True
    is_middle: bool = True
    largest: tuple[float, ...] = (20, 2048, 2048)
    largest_audio: float = 20


@dataclass(frozen=True, slots=True)
class Ltx2Config:
    """Configuration of the network, with the published one where shapes do not tell.

    `text_dim` is the width of tokens that the projections of text read, where there are any, and `text_projection`
    their kind; with `projects_first` they come before the connectors. `modulates_text`: attention over text has
    adaptive norms, with `times_text` from the time too. Without connectors it reads what those of a text encoder gave.
    """

    num_blocks: int
    heads: int = HEADS
    head_dim: int = 128
    audio_heads: int = HEADS
    audio_head_dim: int = 64
    in_channels: int = 128
    audio_channels: int = 128
    text_dim: int = 3840
    text_projection: TextProjection = "two_layers"
    projects_first: bool = False
    connectors: tuple[ConnectorConfig, ConnectorConfig] | None = (ConnectorConfig(30, 128), ConnectorConfig(30, 128))
    is_gated: bool = False
    modulates_text: bool = False
    times_text: bool = False
    has_ff_bias: bool = True
    has_audio_ff_bias: bool = True
    marks_keyframes: bool = False
    starts_with_one_frame: bool = True
    time_scale: float = 1000.0
    gate_time_scale: float = 1000.0
    rotary: RotaryConfig = RotaryConfig()

    @property
    def hidden_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def audio_hidden_size(self) -> int:
        return self.audio_heads * self.audio_head_dim

    @property
    def context_sizes(self) -> tuple[int, int]:
        """Widths of the tokens of text that the blocks' inputs are made of: of video and of audio."""
        if self.projects_first:
            return self.hidden_size, self.audio_hidden_size
        return self.text_dim, self.text_dim

    @property
    def text_widths(self) -> tuple[int, ...]:
        """Widths of tokens of text that the network takes: as connectors read them, and as they leave them."""
        read = (self.text_dim,) if self.connectors is not None else ()
        return (*read, sum(self.context_sizes))


def ltx2_config(shapes: Shapes) -> Ltx2Config:
    """Return the configuration of the network with these tensors (names without prefix)."""
    hidden, audio_hidden = shapes[VIDEO_FIRST][0], shapes[AUDIO_FIRST][0]
    gate = shapes.get(f"{FIRST_BLOCK}attn1.to_gate_logits.weight")
    audio_gate = shapes.get(f"{FIRST_BLOCK}audio_attn1.to_gate_logits.weight")
    heads, audio_heads = gate[0] if gate else HEADS, audio_gate[0] if audio_gate else HEADS
    has_two = f"{CAPTION}linear_2.weight" in shapes
    has_linear = f"{CAPTION}linear_1.weight" in shapes
    connectors = None
    if f"{VIDEO_CONNECTOR}learnable_registers" in shapes:
        connectors = connector_config(shapes, VIDEO_CONNECTOR), connector_config(shapes, AUDIO_CONNECTOR)
    return Ltx2Config(
        num_blocks=count_children(shapes, "transformer_blocks"),
        heads=heads,
        head_dim=hidden // heads,
        audio_heads=audio_heads,
        audio_head_dim=audio_hidden // audio_heads,
        in_channels=shapes[VIDEO_FIRST][1],
        audio_channels=shapes[AUDIO_FIRST][1],
        text_dim=shapes[f"{CAPTION}linear_1.weight"][1] if has_linear else hidden + audio_hidden,
        text_projection="two_layers" if has_two else "linear" if has_linear else "none",
        projects_first=not has_two,
        connectors=connectors,
        is_gated=gate is not None,
        modulates_text=f"{FIRST_BLOCK}prompt_scale_shift_table" in shapes,
        times_text="prompt_adaln_single.linear.weight" in shapes,
        has_ff_bias=f"{FIRST_BLOCK}ff.net.2.bias" in shapes,
        has_audio_ff_bias=f"{FIRST_BLOCK}audio_ff.net.2.bias" in shapes,
        marks_keyframes=KEYFRAME_MARKER in shapes,
    )


def connector_config(shapes: Shapes, prefix: str) -> ConnectorConfig:
    num_registers, hidden_size = shapes[f"{prefix}learnable_registers"]
    first = f"{prefix}transformer_1d_blocks.0."
    gate = shapes.get(f"{first}attn1.to_gate_logits.weight")
    heads = gate[0] if gate else max(1, hidden_size // CONNECTOR_HEAD_DIM)
    return ConnectorConfig(
        heads=heads,
        head_dim=hidden_size // heads,
        num_blocks=count_children(shapes, f"{prefix}transformer_1d_blocks"),
        num_registers=num_registers,
        is_gated=gate is not None,
        has_ff_bias=f"{first}ff.net.2.bias" in shapes,
    )


def as_described(config: Ltx2Config, metadata: Mapping[str, str]) -> Ltx2Config:
    """Return the configuration with what a file's metadata say that shapes do not; as it is without a description.

    Raises `NotRecognised` for metadata that do not describe the network.
    """
    try:
        described: dict[str, Any] = json.loads(metadata.get(METADATA, "{}")).get("transformer") or {}
        return _described(config, described) if described else config
    except (ValueError, AttributeError, TypeError, ZeroDivisionError) as error:
        raise NotRecognised(
            f"a network of videos with audio with metadata that do not describe it ({error})"
        ) from error


def _described(config: Ltx2Config, described: Mapping[str, Any]) -> Ltx2Config:
    heads = int(described.get("num_attention_heads", config.heads))
    audio_heads = int(described.get("audio_num_attention_heads", config.audio_heads))
    is_split = described.get("rope_type", "interleaved") == "split"
    connectors = config.connectors
    if connectors is not None:
        connectors = (
            _described_connector(connectors[0], described, "connector_"),
            _described_connector(connectors[1], described, "audio_connector_", "connector_"),
        )
    return replace(
        config,
        heads=heads,
        head_dim=config.hidden_size // heads,
        audio_heads=audio_heads,
        audio_head_dim=config.audio_hidden_size // audio_heads,
        connectors=connectors,
        starts_with_one_frame=bool(described.get("causal_temporal_positioning", False)),
        time_scale=float(described.get("timestep_scale_multiplier", 1000.0)),
        gate_time_scale=float(described.get("av_ca_timestep_scale_multiplier", 1.0)),
        rotary=RotaryConfig(
            splits_heads=is_split,
            is_double=described.get("frequencies_precision", "float32") == "float64",
            is_middle=bool(described.get("use_middle_indices_grid", False)),
            largest=tuple(float(item) for item in described.get("positional_embedding_max_pos", (20, 2048, 2048))),
            largest_audio=float(described.get("audio_positional_embedding_max_pos", (20,))[0]),
        ),
    )


def _described_connector(config: ConnectorConfig, described: Mapping[str, Any], *prefixes: str) -> ConnectorConfig:
    """Return a connector's configuration with the heads that the first of the prefixes names."""
    named = (described.get(f"{prefix}num_attention_heads") for prefix in prefixes)
    heads = int(next((item for item in named if item is not None), config.heads))
    is_split = described.get("rope_type", "split") == "split"
    return replace(config, heads=heads, head_dim=config.hidden_size // heads, splits_rotation=is_split)


def description(config: Ltx2Config) -> dict[str, dict[str, object]]:
    """Return the metadata of a file with a network of this configuration."""
    rotary = config.rotary
    described: dict[str, Any] = {
        "_class_name": "AVTransformer3DModel",
        "num_layers": config.num_blocks,
        "num_attention_heads": config.heads,
        "attention_head_dim": config.head_dim,
        "cross_attention_dim": config.hidden_size,
        "in_channels": config.in_channels,
        "audio_num_attention_heads": config.audio_heads,
        "audio_attention_head_dim": config.audio_head_dim,
        "audio_cross_attention_dim": config.audio_hidden_size,
        "audio_in_channels": config.audio_channels,
        "apply_gated_attention": config.is_gated,
        "cross_attention_adaln": config.modulates_text,
        "use_prompt_adaln_single": config.times_text,
        "ff_bias": config.has_ff_bias,
        "audio_ff_bias": config.has_audio_ff_bias,
        "caption_channels": config.text_dim,
        "caption_proj_before_connector": config.projects_first,
        "caption_projection_first_linear": config.text_projection != "none",
        "causal_temporal_positioning": config.starts_with_one_frame,
        "timestep_scale_multiplier": config.time_scale,
        "av_ca_timestep_scale_multiplier": config.gate_time_scale,
        "rope_type": "split" if rotary.splits_heads else "interleaved",
        "frequencies_precision": "float64" if rotary.is_double else "float32",
        "use_middle_indices_grid": rotary.is_middle,
        "positional_embedding_max_pos": list(rotary.largest),
        "audio_positional_embedding_max_pos": [rotary.largest_audio],
    }
    if config.connectors is not None:
        for prefix, connector in zip(("", "audio_"), config.connectors, strict=True):
            described[f"{prefix}connector_num_attention_heads"] = connector.heads
            described[f"{prefix}connector_attention_head_dim"] = connector.head_dim
        described["connector_num_layers"] = config.connectors[0].num_blocks
        described["connector_apply_gated_attention"] = config.connectors[0].is_gated
    return {METADATA: {"transformer": described}}
