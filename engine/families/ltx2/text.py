"""The text encoder of LTX-2: Gemma 3 12B, of which all layers are read, and the projection of its states.

Files of LTX-2 hold the projection, beside its transformer or alone; the language model is in another file.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from darkroom.engine.families.base import (
    Layout,
    Network,
    NotRecognised,
    Shapes,
    TextEncoder,
    TokenizerParts,
    Vocabulary,
)
from darkroom.engine.families.layouts import behind_first, names_behind, saved_behind
from darkroom.engine.families.ltx2.config import AUDIO_CONNECTOR, VIDEO_CONNECTOR, VIDEO_FIRST
from darkroom.engine.families.ltx2.text_projection import (
    SINGLE,
    VIDEO,
    TextProjection,
    TextProjectionConfig,
    text_projection_config,
)
from darkroom.engine.families.text.t5 import TOKENIZER, lora_keys
from darkroom.engine.families.transformer_files import PREFIXES
from darkroom.engine.formats.weight_file import Names
from darkroom.engine.layers.clip_vision import ClipVisionConfig
from darkroom.engine.layers.gemma_vision import TOKENS_PER_SIDE, GemmaConfig, GemmaModel
from darkroom.engine.layers.language_model import (
    EMBEDDING,
    GEMMA3,
    LanguageModelConfig,
    kind_of,
    language_model_config,
)
from darkroom.engine.layers.shapes import count_children
from darkroom.engine.text import sentence_pieces
from darkroom.engine.text.gemma_encoding import GemmaEncoder, GemmaEncoding
from darkroom.engine.text.gemma_tokens import GemmaTokenizer
from darkroom.engine.text.state_projection import NoTokenizer, ProjectionEncoding, StateProjection

SLOT, PROJECTION_SLOT = "gemma3_12b", "text_embedding_projection"
HIDDEN_SIZE, NUM_LAYERS = 3840, 48
GEMMA_PREFIX = f"text_encoders.{SLOT}.transformer."
GEMMA_PREFIXES = (GEMMA_PREFIX, f"{SLOT}.transformer.", "transformer.", "", "language_model.")
PUBLISHED = "model.language_model."  # Google's prefix, which stands for `model.`
PROJECTION_PREFIX = f"text_encoders.{PROJECTION_SLOT}.transformer."
PROJECTION_PREFIXES = (PROJECTION_PREFIX, f"{PROJECTION_SLOT}.", "")
VISION, PROJECTOR, VISION_HEADS = "vision_model.", "multi_modal_projector.", 16
SIGLIP = ClipVisionConfig(
    num_layers=27, width=1152, heads=VISION_HEADS, inner_width=4304, activation="gelu_tanh", image_px=896,
    projection_width=0, has_class_token=False,
)  # fmt: skip
LAST_LAYER = f"model.layers.{NUM_LAYERS - 1}.self_attn.q_norm.weight"


def fits_gemma(shapes: Shapes) -> bool:
    """Return True for a Gemma 3 of 48 layers, all of which have values of their own, as Gemma 4's have not."""
    try:
        is_gemma = kind_of(shapes) is GEMMA3
    except KeyError:
        return False
    return is_gemma and LAST_LAYER in shapes and "model.layers.5.self_attn.v_proj.weight" in shapes


def published_layout(shapes: Shapes) -> Names | None:
    """Return the names of a file in the layout in which Google publishes the model, else None."""
    if f"{PUBLISHED}embed_tokens.weight" not in shapes:
        return None
    return {f"model.{name}": theirs for name, theirs in names_behind(shapes, PUBLISHED).items()}


def with_images(layout: Layout) -> Layout:
    """Make a layout that also has the image encoder of files that name it as Google does."""

    def whole(shapes: Shapes) -> Names | None:
        names = layout(shapes)
        if names is None:
            return None
        return {**images_named(shapes), **names}

    return whole


def images_named(shapes: Shapes) -> dict[str, str]:
    """Return the names of the image encoder and its projector in a file with Google's names; none in others."""
    for prefix in ("model.", ""):
        tower = names_behind(shapes, f"{prefix}vision_tower.{VISION}")
        if tower:
            projector = names_behind(shapes, f"{prefix}{PROJECTOR}")
            own = {VISION + name: theirs for name, theirs in tower.items()}
            return own | {PROJECTOR + name: theirs for name, theirs in projector.items()}
    return {}


def gemma_config(shapes: Shapes) -> GemmaConfig:
    """Return the configuration of the networks with these tensors (names without prefix).

    Raises LookupError for a missing tensor, NotRecognised for an image encoder of another kind.
    """
    language = language_model_config(shapes, kind=GEMMA3)
    if f"{VISION}embeddings.patch_embedding.weight" not in shapes:
        return GemmaConfig(language, None)
    hidden_size, _, patch_px, _ = shapes[f"{VISION}embeddings.patch_embedding.weight"]
    num_patches = shapes[f"{VISION}embeddings.position_embedding.weight"][0]
    side = math.isqrt(num_patches)
    if side**2 != num_patches or side % TOKENS_PER_SIDE or hidden_size % VISION_HEADS:
        raise NotRecognised(f"a Gemma 3 whose image encoder has {num_patches} patches and {hidden_size} channels")
    vision = replace(
        SIGLIP,
        num_layers=count_children(shapes, f"{VISION}encoder.layers"),
        width=hidden_size,
        inner_width=shapes[f"{VISION}encoder.layers.0.mlp.fc1.weight"][0],
        patch_px=patch_px,
        image_px=side * patch_px,
    )
    return GemmaConfig(language, vision)


def projection_layout(shapes: Shapes) -> Names | None:
    """Return the names of the projection in a file, with the connectors of one without LTX-2's transformer."""
    for prefix in PROJECTION_PREFIXES:
        names = names_behind(shapes, prefix)
        if prefix and "weight" in names:
            names = {SINGLE + name: theirs for name, theirs in names.items()}
        if f"{SINGLE}weight" in names or f"{VIDEO}weight" in names:
            return {**names, **_connectors(shapes)}
    return None


def _connectors(shapes: Shapes) -> dict[str, str]:
    if any(prefix + VIDEO_FIRST in shapes for prefix in PREFIXES):
        return {}
    return {
        name: theirs
        for prefix in reversed(PREFIXES)
        for name, theirs in names_behind(shapes, prefix).items()
        if name.startswith((VIDEO_CONNECTOR, AUDIO_CONNECTOR))
    }


def _gemma_tokenizer(encoder: GemmaEncoder, parts: TokenizerParts) -> GemmaTokenizer:
    encoding = encoder.encoding
    assert encoder.vocabulary is not None
    return GemmaTokenizer(
        parts.find_embedding(encoding),
        slot=encoding.slot,
        vocabulary=partial(sentence_pieces.sentence_pieces, encoder.vocabulary),
        min_length=encoding.min_length,
    )


def _no_tokenizer(encoder: StateProjection, parts: TokenizerParts) -> NoTokenizer:
    return NoTokenizer(encoder.encoding.slot)


def _no_lora_keys(names: object) -> dict[str, str]:
    return {}


def _projection(num_layers: int, hidden_size: int, out_dim: int) -> TextProjectionConfig:
    return TextProjectionConfig(in_dim=(num_layers + 1) * hidden_size, out_dims=(out_dim,), biases=(False,))


GEMMA = TextEncoder(
    encoding=GemmaEncoding(SLOT, HIDDEN_SIZE),
    network=Network(
        layouts=(with_images(behind_first(GEMMA_PREFIXES, EMBEDDING)), with_images(published_layout)),
        in_checkpoint=(behind_first((GEMMA_PREFIX,), EMBEDDING),),
        configure=gemma_config,
        build=GemmaModel,
        saved=partial(saved_behind, GEMMA_PREFIX),
        sizes={
            "full": GemmaConfig(
                LanguageModelConfig(
                    kind=GEMMA3, num_layers=NUM_LAYERS, width=HIDDEN_SIZE, heads=16, key_heads=8, inner_width=15360,
                    vocabulary_size=262208, norms_queries=True, norms_outputs=True,
                ),
                SIGLIP,
            ),
            "small": GemmaConfig(
                LanguageModelConfig(
                    kind=GEMMA3, num_layers=NUM_LAYERS, width=16, heads=1, key_heads=1, inner_width=32,
                    vocabulary_size=512, norms_queries=True, norms_outputs=True,
                ),
                replace(SIGLIP, num_layers=1, width=32, inner_width=64, image_px=16 * SIGLIP.patch_px),
            ),
        },
    ),
    fits=fits_gemma,
    lora_keys=partial(lora_keys, key=SLOT, numbers=()),
    encoder_type=GemmaEncoder,
    tokenizer=_gemma_tokenizer,
    vocabulary=Vocabulary(
        names=(TOKENIZER,), in_checkpoint=f"text_encoders.{TOKENIZER}", random=sentence_pieces.byte_vocabulary
    ),
)  # fmt: skip

PROJECTION = TextEncoder(
    encoding=ProjectionEncoding(PROJECTION_SLOT, SLOT),
    network=Network(
        layouts=(projection_layout,),
        in_checkpoint=tuple(behind_first((PROJECTION_PREFIX,), f"{layer}weight") for layer in (SINGLE, VIDEO)),
        configure=text_projection_config,
        build=TextProjection,
        saved=partial(saved_behind, PROJECTION_PREFIX),
        sizes={
            "full": _projection(NUM_LAYERS, HIDDEN_SIZE, HIDDEN_SIZE),
            "small": _projection(NUM_LAYERS, 16, 64),
        },
    ),
    fits=lambda shapes: f"{SINGLE}weight" in shapes or f"{VIDEO}weight" in shapes,
    lora_keys=_no_lora_keys,
    encoder_type=StateProjection,
    tokenizer=_no_tokenizer,
)  # fmt: skip
