"""Layers that multiply their weights as they are stored, over model memory as it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from darkroom.engine.adapters.weight_adapters import LoraAdapter
from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.formats.quantised.comfy_quant import SCALE, Float8Packing, IntegerPacking, hadamard
from darkroom.engine.formats.quantised.gguf_packing import GgufPacking
from darkroom.engine.formats.quantised.packed_layers import PACKINGS
from darkroom.engine.formats.quantised.packing import Packing
from darkroom.engine.formats.quantised.scaled_float8 import ScaledFloat8Packing
from darkroom.engine.layers.basic import Conv2d, Linear
from darkroom.engine.memory.residency import Residency
from darkroom.engine.models.patching.module_patcher import ModulePatcher
from darkroom.engine.tuning.products.float8 import Float8Products
from darkroom.engine.tuning.products.fused import row_quantiser
from darkroom.engine.tuning.products.rows import quantise_rows
from darkroom.engine.tuning.products.stored import StoredProducts
from darkroom.engine.tuning.products.times import ProductTimes
from darkroom.engine.tuning.strategies.direct_casts import DirectCasts
from darkroom.engine.tuning.strategies.packed_products import PackedProducts
from darkroom.engine.tuning.strategy import SamplingUse, Strategy
from tests.engine.memory.simulated import Card
from tests.engine.tuning.products.test_float8 import reference
from tests.parity.quantised_models import random_blocks

INPUTS, OUTPUTS = 96, 64
ROTATION = 16
# Relative L2 of a layer's result against the unpacked weight's: what the activations lose.
MOST_ERROR = {"kept": 0.04, "scaled": 0.04, "comfy": 0.04, "int8": 0.015, "int8_rows": 0.015, "int8_rotated": 0.015}


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def linear(kind: str) -> Linear:
    """Return a linear layer stored so."""
    layer = Linear(INPUTS, OUTPUTS).requires_grad_(False)
    layer.bias.copy_(drawn(1, OUTPUTS))
    values, shape = drawn(0, OUTPUTS, INPUTS), torch.Size((OUTPUTS, INPUTS))
    packing: Packing | None = None
    if kind == "kept":
        codes = values.to(torch.float8_e4m3fn)
        layer.bias = nn.Parameter(layer.bias.to(torch.float8_e4m3fn), requires_grad=False)
    elif kind in ("scaled", "comfy"):
        packing = (ScaledFloat8Packing if kind == "scaled" else Float8Packing)(shape, scale=0.01)
        codes = (values * 100.0).to(torch.float8_e4m3fn)
    elif kind == "Q8_0":
        packing, codes = GgufPacking(shape), random_blocks("Q8_0", shape.numel() // 32, 0.2, "a").view(OUTPUTS, -1)
    else:
        if kind == "int8_rotated":
            values = torch.matmul(values.view(OUTPUTS, -1, ROTATION), hadamard(ROTATION)).view(shape)
        rows = quantise_rows(values, torch.int8)
        codes, scales = rows.codes, rows.scales
        if kind == "int8":
            scales = scales.amax()
        layer.register_buffer(SCALE, scales, persistent=False)
        packing = IntegerPacking(shape, (SCALE,), rotation=ROTATION if kind == "int8_rotated" else 0)
    layer.weight = nn.Parameter(codes, requires_grad=False)
    if packing is not None:
        setattr(layer, PACKINGS, {"weight": packing})
    return layer


class Model(nn.Module):
    """Stands for a denoiser: a network with one layer of the kind, and one that is always cast."""

    def __init__(self, kind: str, computed: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        point = Conv2d(INPUTS, INPUTS, 1).to(torch.float8_e5m2 if kind == "kept" else computed).requires_grad_(False)
        self.diffusion_model = nn.ModuleDict({"point": point, "layer": linear(kind)})
        self.compute_dtype = computed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.diffusion_model
        out: torch.Tensor = parts["layer"](parts["point"](x[..., None, None]).flatten(1))
        return out


class Loaded:
    """A model of that kind in the pool of a simulated card, and its patched value."""

    def __init__(self, kind: str, computed: torch.dtype = torch.float32) -> None:
        self.model = Model(kind, computed)
        self.card = Card(1 << 26, streams=2)
        self.handle: Residency = self.card.add("packed", self.model, compute_dtype=computed)
        self.patcher = ModulePatcher(self.handle)
        self.use = SamplingUse(self.patcher, self.model, {"transformer_options": {}})
        self.x = drawn(2, 5, INPUTS).to(computed)

    @property
    def layer(self) -> nn.Module:
        return self.model.diffusion_model["layer"]

    @contextmanager
    def applied(self, strategy: Strategy) -> Any:
        with torch.inference_mode():
            assert strategy.unfit(self.use) is None
            undo = strategy.apply(self.use)
            try:
                yield
            finally:
                undo()
        assert "forward" not in vars(self.layer)

    def computed(self) -> torch.Tensor:
        with torch.inference_mode():
            out: torch.Tensor = self.model(self.x)
        return out


def strategy(gains: bool = True) -> PackedProducts:
    turns = itertools.cycle((1.0, 2.0) if gains else (2.0, 1.0))
    return PackedProducts(
        StoredProducts(Float8Products(row_quantiser, reference)), ProductTimes(lambda work, rows: next(turns))
    )


def counted(layer: nn.Module, work: Callable[[], object]) -> list[torch.dtype]:
    """Return the types of a layer's weight in its calls."""
    found: list[torch.dtype] = []
    hook = layer.register_forward_hook(lambda module, args, out: found.append(module.get_parameter("weight").dtype))
    work()
    hook.remove()
    return found


@pytest.mark.parametrize("kind", MOST_ERROR)
@pytest.mark.parametrize("computed", [torch.float32, torch.bfloat16])
def test_results_are_near_those_of_unpacked_weights_and_bits_return(kind: str, computed: torch.dtype) -> None:
    loaded = Loaded(kind, computed)
    with loaded.patcher.in_use():
        plain = loaded.computed()
        stored = loaded.layer.get_parameter("weight").dtype
        with loaded.applied(strategy()):
            seen = counted(loaded.layer, loaded.computed)
            found = loaded.computed()
        assert seen == [stored], "nothing is unpacked"
        rounding = 0.004 if computed == torch.bfloat16 else 0.0
        assert 0.0 < relative_error(found.double(), plain.double()) < MOST_ERROR[kind] + rounding
        assert found.dtype == computed
        assert torch.equal(loaded.computed(), plain)
    loaded.card.pool.check_integrity()


@pytest.mark.parametrize("kind", ["kept", "int8_rows"])
def test_a_layer_of_which_unpacking_is_faster_stays_as_it_is(kind: str) -> None:
    loaded = Loaded(kind)
    with loaded.patcher.in_use():
        plain = loaded.computed()
        with loaded.applied(strategy(gains=False)):
            assert "forward" not in vars(loaded.layer)
            assert torch.equal(loaded.computed(), plain)


def test_few_rows_are_multiplied_unpacked_where_that_is_faster() -> None:
    loaded = Loaded("int8_rows")
    fewer = itertools.cycle((2.0, 1.0))
    many = itertools.cycle((1.0, 2.0))
    times = ProductTimes(lambda work, rows: next(many) if len(rows) >= 128 else next(fewer))
    with loaded.patcher.in_use():
        plain = loaded.computed()
        wide = loaded.x.repeat(60, 1)
        with loaded.applied(PackedProducts(times=times)), torch.inference_mode():
            assert torch.equal(loaded.computed(), plain), "five rows"
            assert not torch.equal(loaded.model(wide)[:5], plain), "three hundred"


def test_blocks_of_gguf_files_have_no_such_product() -> None:
    loaded = Loaded("Q8_0")
    with loaded.patcher.in_use():
        plain = loaded.computed()
        with loaded.applied(strategy()):
            assert torch.equal(loaded.computed(), plain)


def test_a_network_without_such_weights_has_no_use_for_it() -> None:
    loaded = Loaded("kept")
    loaded.model.diffusion_model["layer"] = Linear(INPUTS, OUTPUTS)
    assert strategy().unfit(loaded.use) == "no linear layer has a packed or float8 weight on the device"


# --- patches ---------------------------------------------------------------------------------------------------------


def lora(seed: int, **more: Any) -> LoraAdapter:
    return LoraAdapter(drawn(seed, OUTPUTS, 4) * 0.3, drawn(seed + 1, 4, INPUTS) * 0.3, alpha=2.0, **more)


KEY = "diffusion_model.layer.weight"


@pytest.mark.parametrize("kind", MOST_ERROR)
def test_a_lora_is_in_the_stored_weight_or_beside_the_product(kind: str) -> None:
    loaded = Loaded(kind)
    loaded.patcher.add_patches({KEY: lora(10)}, 0.8)
    loaded.patcher.add_patches({KEY: lora(20)}, -0.5)
    with loaded.patcher.in_use():
        plain = loaded.computed()
        with loaded.applied(strategy()):
            seen = counted(loaded.layer, loaded.computed)
            found = loaded.computed()
        assert seen == [loaded.layer.get_parameter("weight").dtype]
        assert relative_error(found, plain) < MOST_ERROR[kind]
        assert torch.equal(loaded.computed(), plain)


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param(("diff", (torch.ones(OUTPUTS, INPUTS),)), id="a whole difference"),
        pytest.param(lora(10, dora_scale=torch.ones(OUTPUTS, 1)), id="a learned length"),
        pytest.param(lora(10, reshape=[OUTPUTS, INPUTS]), id="another shape"),
    ],
)
def test_other_patches_of_a_weight_that_cannot_be_packed_again_are_applied_as_ever(patch: Any) -> None:
    loaded = Loaded("int8_rows")
    loaded.patcher.add_patches({KEY: patch}, 0.5)
    with loaded.patcher.in_use():
        plain = loaded.computed()
        with loaded.applied(strategy()):
            assert torch.equal(loaded.computed(), plain)


@pytest.mark.parametrize("kind", ["kept", "int8_rows", "comfy"])
def test_patches_that_come_meanwhile_are_not_lost(kind: str) -> None:
    """Another run of the same model may join with patches of its own."""
    loaded, other = Loaded(kind), Loaded(kind)
    patched = loaded.patcher.clone()
    patched.add_patches({KEY: lora(10)}, 0.8)
    with loaded.patcher.in_use(), loaded.applied(strategy()):
        first = loaded.computed()
        with patched.in_use():
            found = loaded.computed()
        assert torch.equal(loaded.computed(), first)
    other.patcher.add_patches({KEY: lora(10)}, 0.8)
    with other.patcher.in_use():
        assert relative_error(found, other.computed()) < MOST_ERROR[kind]


# --- addresses -------------------------------------------------------------------------------------------------------


def test_direct_casts_keep_the_bits_and_give_fixed_addresses() -> None:
    loaded = Loaded("kept")
    with loaded.patcher.in_use():
        plain = loaded.computed()
        with loaded.applied(DirectCasts()):
            assert loaded.patcher.weights.has_fixed_addresses
            assert torch.equal(loaded.computed(), plain)
        assert not loaded.patcher.weights.has_fixed_addresses


def test_a_network_that_casts_nothing_needs_no_direct_casts() -> None:
    network = ModulePatcher(Card(1 << 20).add("plain", nn.Linear(4, 4).requires_grad_(False)))
    assert DirectCasts().unfit(SamplingUse(network, network.model, {})) == "no weight is cast"
