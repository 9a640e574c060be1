"""Networks without memory: nothing is drawn for them, and the memory they get later is as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from darkroom.engine.families.base import ModelFamily
from darkroom.engine.families.registry import families
from darkroom.engine.formats.unfilled import give_memory, memory_for, unfilled

DEFAULT, *OTHERS = families()


class Recorded(TorchFunctionMode):
    """The names of the functions that come as far as torch."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.add(getattr(function, "__name__", ""))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "family",
    [DEFAULT, *(pytest.param(family, marks=pytest.mark.slow) for family in OTHERS)],
    ids=lambda family: family.name,
)
def test_nothing_is_drawn_for_the_networks_of_a_family(family: ModelFamily) -> None:
    configs = family.scales["small"]
    with Recorded() as recorded, unfilled():
        networks = [family.denoiser.build(configs.denoiser), family.vae.build(configs.vae)]
        networks += [part.network.build(configs.text[part.encoding.slot]) for part in family.text_of(configs)]
    assert all(weight.is_meta for network in networks for weight in network.parameters())
    assert "empty" in recorded.names
    assert recorded.names.isdisjoint({"normal_", "uniform_", "trunc_normal_", "empty_like"})


def test_without_the_block_weights_are_drawn() -> None:
    with Recorded() as recorded:
        nn.Embedding(2, 3)
    assert "normal_" in recorded.names


def test_a_tensor_with_memory_is_drawn_in_the_block_too() -> None:
    tensor = torch.zeros(100)
    with unfilled():
        tensor.normal_()
        made = nn.init.uniform_(tensor=torch.zeros(100, device="cpu"))
    assert len(set(tensor.tolist())) > 50 and len(set(made.tolist())) > 50


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.empty(2, 3, 4, 5, device="meta", dtype=torch.float16),
        lambda: torch.empty(2, 3, 4, 5, device="meta").contiguous(memory_format=torch.channels_last),
    ],
)
def test_memory_has_the_shape_type_and_layout_of_the_tensor(made: Callable[[], torch.Tensor]) -> None:
    tensor = made()
    given = memory_for(tensor, "cpu")
    assert given.device.type == "cpu"
    assert (given.shape, given.stride(), given.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)


def test_a_network_gets_memory_for_its_weights_and_buffers() -> None:
    with unfilled():
        network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm2d(3)).requires_grad_(False)
    give_memory(network, "cpu")
    tensors = [*network.parameters(), *network.buffers()]
    assert len(tensors) == 7 and not any(tensor.is_meta or tensor.requires_grad for tensor in tensors)
    assert len(network.state_dict()) == 7
