"""Names that a request and the settings use for tuning: qualities, and strategies."""

from __future__ import annotations

from typing import Final, Literal

QualityName = Literal["exact", "same", "close", "draft"]
QUALITIES: Final[tuple[QualityName, ...]] = ("exact", "same", "close", "draft")
DEFAULT_QUALITY: Final[QualityName] = "same"

STRATEGIES: Final = (
    "zero_blocks",
    "direct_casts",
    "cuda_graph",
    "step_graph",
    "prompt_cache",
    "threads",
    "winograd_convolutions",
    "cudnn_benchmark",
    "fused_qkv",
    "fused_geglu",
    "fused_rotary",
    "fused_modulation",
    "fused_activations",
    "attention_kernels",
    "nhwc_group_norm",
    "compiled_blocks",
    "half_vae",
    "nhwc_vae",
    "fp16_accumulation",
    "vae_graph",
    "bfloat16_layers",
    "step_cache",
    "token_merging",
    "packed_products",
    "int8_linear",
    "fp8_linear",
)
"""In the order in which they are measured."""

RETIRED: Final = ("host_sigmas", "channels_last", "joined_embeddings")
"""Strategies of earlier versions: the plain path has become them, or no machine gained by them.

A setting may still name them."""


def read_choice(text: str) -> tuple[str, ...] | None:
    """Parse the setting `TUNING`: None for `auto`, () for `off`, else the names. Raises ValueError for others."""
    given = text.strip().lower()
    if given in ("", "auto"):
        return None
    if given == "off":
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    unknown = [name for name in names if name not in (*STRATEGIES, *RETIRED)]
    if unknown or not names:
        got = unknown[0] if unknown else text
        raise ValueError(
            f"unknown strategy; got {got!r}, expected auto, off or a comma list of {', '.join(STRATEGIES)}"
        )
    return tuple(name for name in names if name not in RETIRED)
