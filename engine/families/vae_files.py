"""Autoencoders whose checkpoints have them behind `vae.`: where files have their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from darkroom.engine.families.base import Network, Shapes
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.settings import DtypeName, DtypePolicy

PREFIX = "vae."
PREFIXES = (PREFIX, "first_stage_model.", "")  # of files of the network alone


def vae_network(
    mark: str,
    configure: Callable[[Shapes], Any],
    build: Callable[[Any], nn.Module],
    prefers: tuple[DtypeName, ...],
    sizes: Mapping[str, Any],
) -> Network:
    """Describe the autoencoder of files with the tensor `mark`.

    `prefers` are the dtypes to compute in, best first, and `sizes` those of `Network`.
    """
    return Network(
        layouts=(behind_first(PREFIXES, mark),),
        in_checkpoint=(behind_first((PREFIX,), mark),),
        configure=configure,
        build=build,
        saved=partial(saved_behind, PREFIX),
        dtypes=DtypePolicy(prefers=prefers),
        sizes=sizes,
    )
