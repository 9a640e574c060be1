"""Weights cast without buffers, and left as they are stored for code that computes with them so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from darkroom.engine.memory.device import Device
from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.state import VramState
from darkroom.engine.memory.transfer_streams import TransferStreams
from tests.engine.memory.offload.test_packed_weights import WIDTH, X, network, patches
from tests.engine.memory.simulated import Card
from tests.engine.memory.simulated import network as mixed_network

MIXED_X = torch.linspace(-1, 1, 64).reshape(4, 16)


def weights_of(module: nn.Module) -> ModuleWeights:
    device = Device()
    return ModuleWeights("m", module, device=device, streams=TransferStreams(device, 0), compute_dtype=torch.float32)


def seen_by(layer: nn.Module, work: Callable[[], object]) -> torch.Tensor:
    """Return the weight that a layer has while it computes."""
    found: list[torch.Tensor] = []
    hook = layer.register_forward_pre_hook(lambda module, args: found.append(module.get_parameter("weight")))
    work()
    hook.remove()
    return found[0]


@pytest.mark.parametrize("kind", ["float8", "Q8_0", "kept"])
@pytest.mark.parametrize("num_streams", [0, 2])
def test_values_are_those_of_a_buffer_and_nothing_passes_one(kind: str, num_streams: int) -> None:
    module = mixed_network(0, dtype=torch.float8_e5m2) if kind == "kept" else network(kind)
    x = MIXED_X if kind == "kept" else X
    card = Card(1 << 24, streams=num_streams)
    handle = card.add("packed", module, compute_dtype=torch.float32)
    with handle.in_use(working_bytes=64) as used:
        plain = used(x)
        assert handle.can_have_fixed_addresses
        before = card.streams.num_streamed
        end = handle.cast_directly()
        assert torch.equal(used(x), plain) and card.streams.num_streamed == before
        is_fixed = handle.has_fixed_addresses
        end()
        assert is_fixed and not handle.has_fixed_addresses
        assert torch.equal(used(x), plain) and card.streams.num_streamed > before
    card.pool.check_integrity()


def test_offloaded_layers_are_streamed_as_ever_meanwhile() -> None:
    """Model memory may offload layers while others compute."""
    card = Card(1 << 24, VramState.NO_VRAM)
    module = network("Q8_0")
    handle = card.add("packed", module, compute_dtype=torch.float32)
    with handle.in_use(working_bytes=64) as used:
        plain = used(X)
        ends = [handle.cast_directly(), handle.use_as_stored({module[1]: {}})]
        assert handle.loaded_bytes < handle.size_bytes and not handle.can_have_fixed_addresses
        before = card.streams.num_streamed
        assert torch.equal(used(X), plain) and card.streams.num_streamed == before + 4
        assert seen_by(module[1], lambda: module[1](X)).dtype is torch.float32
        for end in ends:
            end()
    card.pool.check_integrity()


def test_weights_of_the_computed_type_have_fixed_addresses_as_they_are() -> None:
    weights = weights_of(mixed_network(0))
    weights.load()
    assert weights.layers.has_fixed_addresses and weights.layers.cast_bytes == 0
    assert weights_of(network("Q8_0")).layers.cast_bytes == (WIDTH + 1) * WIDTH * 4


def test_layers_that_are_patched_in_each_call_have_none() -> None:
    for kind, is_fixed in (("float8", True), ("Q8_0", False)):
        weights = weights_of(network(kind))
        weights.patches.patch(patches(1), "one")
        weights.load()
        end = weights.layers.cast_directly()
        assert weights.layers.has_fixed_addresses is is_fixed, "float8 is packed again, and needs no patch in the call"
        end()


def test_code_that_computes_with_stored_weights_gets_them_without_hooks() -> None:
    module = network("float8")
    weights = weights_of(module)
    weights.load()
    end = weights.layers.use_as_stored({module[1]: {}, module[2]: {}})
    assert not module[1]._forward_pre_hooks and not module[1]._forward_hooks
    assert module[1].weight.dtype is torch.float8_e4m3fn
    assert seen_by(module[0], lambda: module[0](X)).dtype is torch.float32
    end()
    assert seen_by(module[1], lambda: module[1](X)).dtype is torch.float32


@pytest.mark.parametrize("kind", ["float8", "Q8_0"])
def test_it_gets_cast_ones_while_others_patches_are_wanted_than_it_applies(kind: str) -> None:
    module = network(kind)
    weights = weights_of(module)
    weights.patches.patch(patches(1), "one")
    weights.load()
    plain = module(X)
    handled = {"2.weight": weights.patches.now[0]["2.weight"]} if kind == "Q8_0" else {}
    weights.layers.use_as_stored({module[2]: handled})
    assert not module[2]._forward_pre_hooks, "its patches are applied by its code, or are in the codes"
    weights.patches.patch(patches(2), "two")
    is_cast = bool(module[2]._forward_pre_hooks)
    assert is_cast is (kind == "Q8_0")
    weights.patches.patch(patches(1), "one again")
    if kind == "float8":
        return
    weights.patches.patch_hooks(patches(3), "hooks", keep=False)
    assert module[2]._forward_pre_hooks, "hooks' patches are none of its own"
    weights.patches.undo_hooks()
    weights.patches.patch({}, None)
    assert module[2]._forward_pre_hooks, "nor is it without patches"
    assert not torch.equal(module(X), plain)


def test_a_layer_without_weights_of_its_own_cannot_be_left_so() -> None:
    module: Any = network("float8")
    with pytest.raises(ValueError, match="m: got a layer whose weights cannot be left"):
        weights_of(module).layers.use_as_stored({nn.Linear(2, 2): {}})
