"""CLIP text encoders as networks of a family: where files have them, and their names in LoRA files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch

from darkroom.engine.adapters.lora_names import clip_text_keys
from darkroom.engine.families.base import Layout, Network, Shape, Shapes, Tensors
from darkroom.engine.families.layouts import behind_first, names_behind, saved_behind
from darkroom.engine.formats.weight_file import Item, Names, Part, Transposed
from darkroom.engine.layers.clip_text import Activation, ClipTextConfig, ClipTextModel, clip_text_config
from darkroom.engine.layers.open_clip_names import FUSED, TEXT_MARK, open_clip_text_names, text_tower_names

MARK = "text_model.embeddings.token_embedding.weight"
TOWER = "text_model."
PROJECTION = "text_projection.weight"
OPEN_CLIP_PROJECTION = "text_projection"


def clip_text_network(
    layouts: tuple[Layout, ...],
    in_checkpoint: tuple[Layout, ...],
    saved: Callable[[Tensors], Tensors],
    *,
    activation: Activation,
    sizes: Mapping[str, ClipTextConfig],
) -> Network:
    """Describe a CLIP text encoder. A file that has no projection of the pooled output gets the identity."""
    return Network(
        layouts=layouts,
        in_checkpoint=in_checkpoint,
        configure=partial(clip_text_config, activation=activation),
        build=ClipTextModel,
        saved=saved,
        defaults={PROJECTION: _identity},
        sizes=sizes,
    )


def _identity(shape: Shape) -> torch.Tensor:
    return torch.eye(shape[0])


def transformers_layout(prefixes: tuple[str, ...]) -> Layout:
    """Make a layout of the transformers library's names behind one of these prefixes."""
    return behind_first(prefixes, MARK)


def early_layout(prefix: str) -> Layout:
    """Make a layout of files that leave `text_model.` out, behind a prefix."""

    def layout(shapes: Shapes) -> Names | None:
        if prefix + MARK.removeprefix(TOWER) not in shapes:
            return None
        return {TOWER + name: key for name, key in names_behind(shapes, prefix).items()}

    return layout


def open_clip_layout(prefixes: tuple[str, ...]) -> Layout:
    """Make a layout of OpenCLIP's names behind one of these prefixes."""
    find = behind_first(prefixes, TEXT_MARK)

    def layout(shapes: Shapes) -> Names | None:
        behind = find(shapes)
        if behind is None:
            return None
        names: dict[str, Item] = {}
        for theirs, key in behind.items():
            if theirs == OPEN_CLIP_PROJECTION:
                names[PROJECTION] = Transposed(str(key))
            for ours, third in text_tower_names(theirs):
                names[ours] = key if third is None else Part(str(key), third, len(FUSED))
        return names

    return layout


def saved_as_open_clip(prefix: str, tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the weights under OpenCLIP's names behind a prefix, its projections joined."""
    left = dict(tensors)
    saved: dict[str, torch.Tensor] = {}
    for theirs, ours in open_clip_text_names(num_layers({name: tuple(item.shape) for name, item in left.items()})):
        found = [left.pop(name) for name in ours if name in left]
        if len(found) == len(ours):
            saved[prefix + theirs] = found[0] if len(found) == 1 else torch.cat(found)
    if PROJECTION in left:
        saved[prefix + OPEN_CLIP_PROJECTION] = left.pop(PROJECTION).T.contiguous()
    return saved | saved_behind(prefix, left)


def num_layers(shapes: Shapes) -> int:
    """Count the layers of an encoder, by which ComfyUI tells files of one from another."""
    start = f"{TOWER}encoder.layers."
    return 1 + max((int(name.split(".")[3]) for name in shapes if name.startswith(start)), default=-1)


def lora_keys(weight_names: Iterable[str], key: str, *, projection: tuple[str, ...] = ()) -> dict[str, str]:
    """Return a map from the names used in LoRA files to the weights of the only encoder of a set, called `key`."""
    return clip_text_keys(weight_names, f"{key}.transformer.", projection=projection)
