"""Transformers as denoising networks of a family: their places in files, how they are recognised and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from darkroom.engine.families.base import Layout, Match, Network, Parameterisation, Shapes, TensorIndex, TensorReader
from darkroom.engine.families.layouts import behind_first, saved_behind
from darkroom.engine.formats.weight_file import shape_of
from darkroom.engine.settings import DtypePolicy

PREFIX = "model.diffusion_model."
PREFIXES = (PREFIX, "diffusion_model.", "")  # of files of the network alone


def transformer(
    mark: str,
    *,
    configure: Callable[[Shapes], Any],
    build: Callable[[Any], nn.Module],
    dtypes: DtypePolicy,
    prefixes: Sequence[str] = PREFIXES,
    in_checkpoint: Sequence[str] = (PREFIX,),
    other_layouts: tuple[Layout, ...] = (),
) -> Network:
    """Describe a network that files have behind the first of `prefixes` where the tensor `mark` is."""
    return Network(
        layouts=(behind_first(prefixes, mark), *other_layouts),
        in_checkpoint=(behind_first(in_checkpoint, mark),),
        configure=configure,
        build=build,
        saved=partial(saved_behind, PREFIX),
        dtypes=dtypes,
    )


def detect_by(
    network: Network, *, needs: Sequence[str] = (), lacks: Sequence[str] = ()
) -> Callable[[TensorIndex], Match | None]:
    """Return a detection of files in one of the network's layouts that have the tensors `needs` and not `lacks`."""

    def detect(index: TensorIndex) -> Match | None:
        found = (layout(index.shapes) for layout in network.layouts)
        names = next((names for names in found if names is not None), None)
        if names is None or any(name not in names for name in needs) or any(name in names for name in lacks):
            return None
        return Match(2, names)

    return detect


def with_variants(
    detect: Callable[[TensorIndex], Match | None], network: Network, variants: Mapping[int, str]
) -> Callable[[TensorIndex], Match | None]:
    """Return the detection with the variant by the channels that the network reads; None for other channels."""

    def with_variant(index: TensorIndex) -> Match | None:
        match = detect(index)
        if match is None:
            return None
        config = network.configure({ours: shape_of(theirs, index.shapes) for ours, theirs in match.names.items()})
        variant = variants.get(config.in_channels)
        return None if variant is None else replace(match, variant=variant)

    return with_variant


def always(parameterisation: Parameterisation) -> Callable[[Match, TensorReader], Parameterisation]:
    """Return the reading of a family whose networks are all parameterised alike."""
    return lambda match, file: parameterisation
