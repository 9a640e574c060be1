"""Weights that are kept as float8, int8 or in blocks are multiplied as they are stored, with quantised activations.

Plainly each is unpacked in each call of its layer, which reads and writes its values once more, and then multiplied at
the speed of the wider type. Which way is the faster one for which number of rows is measured for each shape of a layer;
a layer for which unpacking always is stays as it is. A LoRA on a weight that cannot be packed again is added beside the
product, by its two narrow matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from darkroom.engine.layers.basic import Linear
from darkroom.engine.tuning.products.stored import StoredProduct, StoredProducts, packing_of, plain_product
from darkroom.engine.tuning.products.times import ProductTimes, RowChoice
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import SamplingUse, Strategy, Undo, custom_code, replace_forwards, unchanged_layers

LINEAR_LAYERS = (Linear, nn.Linear)
WEIGHT = "weight"


@dataclass(frozen=True, slots=True)
class LowRank:
    """A difference of a weight [N, K]: `up` [N, r] times `down` [r, K] times `factor`."""

    up: torch.Tensor
    down: torch.Tensor
    factor: float


@dataclass(frozen=True, slots=True)
class Planned:
    """A layer that is to multiply its weight as it is stored, and the patches of it that are added beside."""

    product: StoredProduct
    choice: RowChoice
    key: str
    entries: tuple[Any, ...]
    low_rank: tuple[LowRank, ...]


class PackedProducts(Strategy):
    """Products of weights as they are stored."""

    name = "packed_products"
    quality = Quality.DRAFT
    makes_tensors = True
    about = "weights kept as float8, int8, MXFP8 or NVFP4 are multiplied as they are stored"
    is_size_sensitive = True
    conflicts = frozenset({"compiled_blocks"})

    def __init__(self, products: StoredProducts | None = None, times: ProductTimes | None = None) -> None:
        self._products = StoredProducts() if products is None else products
        self._times = ProductTimes() if times is None else times

    def unfit(self, use: SamplingUse) -> str | None:
        found = custom_code(use)
        if found is None and not _candidates(use):
            return "no linear layer has a packed or float8 weight on the device"
        return found

    def apply(self, use: SamplingUse) -> Undo:
        computed = use.denoiser.compute_dtype
        planned = self._planned(use, computed)
        # What is kept of another run is told apart by the patches, so that one of the weights stands for all of them.
        sources = [layer.get_parameter(WEIGHT) for _, layer in _candidates(use)[:1]]
        made = iter(use.evaluation.made.of(self.name, sources, lambda: _matrices(planned, computed)))
        forwards: list[tuple[nn.Module, Callable[..., torch.Tensor]]] = []
        for item in planned:
            pairs = [(next(made), next(made)) for _ in item.low_rank]
            beside = [(up, down) for up, down in pairs if up is not None and down is not None]
            forwards.append((item.product.layer, stored_forward(item.product, computed, item.choice, beside)))
        give_back = use.patcher.weights.use_as_stored(
            {item.product.layer: {item.key: item.entries} if item.entries else {} for item in planned}
        )
        restore = replace_forwards(forwards)

        def undo() -> None:
            restore()
            give_back()

        return undo

    def _planned(self, use: SamplingUse, computed: torch.dtype) -> list[Planned]:
        found: list[Planned] = []
        patches: Mapping[str, Sequence[Any]] = use.patcher.patches_of_layers()
        for name, layer in _candidates(use):
            product, key = self._products.of(layer, computed), f"{name}.{WEIGHT}"
            if product is None:
                continue
            entries = tuple(patches.get(key, ())) if _keeps_patches_apart(layer) else ()
            low_rank = low_rank_of(entries, product.shape)
            choice = None if low_rank is None else self._choice(product, computed)
            if choice and low_rank is not None:
                found.append(Planned(product, choice, key, entries, low_rank))
        return found

    def _choice(self, product: StoredProduct, computed: torch.dtype) -> RowChoice:
        like = torch.empty(0, product.shape[1], dtype=computed, device=product.layer.get_parameter(WEIGHT).device)
        return self._times.choice(
            (*product.key, computed),
            like,
            lambda rows: product.multiply(rows, bias_of(product.layer, computed)),
            lambda rows: plain_product(product, rows, bias_of(product.layer, computed)),
        )


def _candidates(use: SamplingUse) -> list[tuple[str, nn.Module]]:
    """Return the linear layers, with their names in the model, whose weight is on the device in a form of few bits."""
    unchanged = set(unchanged_layers(use, LINEAR_LAYERS))
    root: nn.Module = use.patcher.weights.module
    return [
        (name, layer)
        for name, layer in root.named_modules()
        if layer in unchanged
        and layer.get_parameter(WEIGHT).device.type == use.device.type
        and (packing_of(layer) is not None or layer.get_parameter(WEIGHT).itemsize == 1)
    ]


def _keeps_patches_apart(layer: nn.Module) -> bool:
    """Return True where patches are no part of the stored weight, since it cannot be packed again."""
    packing = packing_of(layer)
    return packing is not None and not packing.can_pack


def low_rank_of(entries: Sequence[Any], shape: tuple[int, int]) -> tuple[LowRank, ...] | None:
    """Return a weight's patches as differences of low rank; None where one of them is something else."""
    found: list[LowRank] = []
    for strength, adapter, strength_model, offset, function in entries:
        matrices = getattr(adapter, "matrices", None)
        if matrices is None or strength_model != 1.0 or offset is not None or function is not None:
            return None
        up, down = matrices
        if (up.shape[0], down.shape[1]) != shape:
            return None
        found.append(LowRank(up, down, strength * adapter.scale))
    return tuple(found)


def _matrices(planned: Sequence[Planned], computed: torch.dtype) -> list[torch.Tensor]:
    """Return the two matrices of each difference in turn, on the device of the weight, the factor in the first."""
    found: list[torch.Tensor] = []
    for item in planned:
        device = item.product.layer.get_parameter(WEIGHT).device
        for part in item.low_rank:
            found += [(part.up.to(device).float() * part.factor).to(computed), part.down.to(device, computed)]
    return found


def bias_of(layer: nn.Module, computed: torch.dtype) -> torch.Tensor | None:
    """Return a layer's bias, which may be stored as float8 too, in the type that it computes in."""
    return None if layer.bias is None else layer.get_parameter("bias").to(computed)


def stored_forward(
    product: StoredProduct,
    computed: torch.dtype,
    choice: RowChoice,
    beside: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the forward function of a linear layer that multiplies its weight as it is stored.

    `beside` are the two matrices, up and down, of differences that are added to the result. While model memory has put
    values in the weight's place (the layer is streamed, or other patches are wanted) it computes with them as ever.
    """
    layer, plain = product.layer, type(product.layer).forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        if layer.get_parameter(WEIGHT).dtype != product.dtype:
            out: torch.Tensor = plain(layer, x)
            return out
        bias, rows = bias_of(layer, x.dtype), x.reshape(-1, product.shape[1])  # [M, K]
        if x.dtype == computed and len(rows) and choice.at(len(rows)):
            found = product.multiply(rows, bias)
        else:
            found = plain_product(product, rows, bias)
        for up, down in beside:
            found = found + functional.linear(functional.linear(rows, down.to(x.dtype)), up.to(x.dtype))
        return found.view(*x.shape[:-1], product.shape[0])

    return forward
