"""One use of a model within another: patches, hooks and memory are the outer one's again afterwards."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.errors import OutOfMemory
from tests.engine.memory.simulated import Card, network, patch

X = torch.linspace(-1, 1, 32).reshape(2, 16)
SIZE = sum(weight.nbytes for weight in network(0).state_dict().values())


def test_a_nested_use_with_other_patches_gives_the_outer_ones_back() -> None:
    card = Card(3 * SIZE)
    module = network(0)
    handle = card.add("a", network(0))
    with handle.in_use(patches=patch(module, 1), patches_id="outer") as outer:
        expected = outer(X)
        with handle.in_use(patches=patch(module, 2), patches_id="inner") as inner:
            assert not torch.equal(inner(X), expected)
        assert torch.equal(outer(X), expected)


def test_a_nested_use_gives_the_hooks_of_the_outer_one_back() -> None:
    card = Card(9 * SIZE)
    module = network(0)
    handle = card.add("a", network(0))
    with handle.in_use() as outer:
        handle.patch_hooks(patch(module, 1), "hook")
        expected = outer(X)
        with handle.in_use(patches=patch(module, 2), patches_id="inner") as inner:
            assert torch.equal(inner(X), _patched(2))
        assert torch.equal(outer(X), expected) and torch.equal(expected, _patched(1))
    with handle.in_use() as again:
        assert torch.equal(again(X), module(X))


def test_a_nested_use_that_finds_no_memory_leaves_the_outer_one_its_patches() -> None:
    card = Card(9 * SIZE)
    handle = card.add("a", network(0))
    with handle.in_use(patches=patch(network(0), 1), patches_id="outer") as outer:
        expected = outer(X)
        card.device.budget_bytes = 1000
        with (
            pytest.raises(OutOfMemory),
            handle.in_use(patches=patch(network(0), 2), patches_id="inner", working_bytes=SIZE),
        ):
            pass
        card.device.budget_bytes = 9 * SIZE
        assert torch.equal(outer(X), expected)


def test_a_model_that_comes_along_carries_its_own_patches_and_not_those_of_its_last_use() -> None:
    card = Card(9 * SIZE)
    main, other = card.add("a", network(1)), card.add("b", network(0))
    with other.in_use(patches=patch(network(0), 1), patches_id="last"):
        pass
    for patches, expected in (({}, network(0)(X)), (patch(network(0), 2), _patched(2))):
        other.prepare(patches=patches, patches_id=("now", len(patches)))
        with main.in_use(together_with=[other]):
            assert torch.equal(other.module(X), expected)


def _patched(seed: int) -> torch.Tensor:
    with Card(9 * SIZE).add("a", network(0)).in_use(patches=patch(network(0), seed), patches_id=seed) as module:
        result: torch.Tensor = module(X)
        return result
