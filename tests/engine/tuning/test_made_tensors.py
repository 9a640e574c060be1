"""Tensors that strategies make of weights: kept while the weights are the same, in little memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from darkroom.engine.tuning.made_tensors import KeptTensors, MadeTensors, fingerprint_of
from tests.engine.tuning import test_step_graph
from tests.engine.tuning.test_step_graph import TunedEngine, choose, latent, prompt_of

engines, made = test_step_graph.engines, test_step_graph.made  # fixtures

PLENTY = 1e9


def doubled(weight: torch.Tensor, num_made: list[int]) -> Callable[[], Sequence[torch.Tensor]]:
    def make() -> Sequence[torch.Tensor]:
        num_made.append(1)
        return [weight * 2]

    return make


@pytest.fixture
def layer() -> nn.Linear:
    return nn.Linear(4, 4).requires_grad_(False)


def test_tensors_are_made_once_for_the_same_weights(layer: nn.Linear) -> None:
    kept, count = KeptTensors(), list[int]()
    for _ in range(3):
        found = kept.take(layer, ("a",), "state")
        (tensor,) = found.of("a", [layer.weight], doubled(layer.weight, count))
        assert tensor is not None and torch.equal(tensor, layer.weight * 2)
        kept.keep(found, layer, ("a",), "state", PLENTY)
    assert len(count) == 1 and len(kept) == 1


def test_tensors_are_made_anew_of_weights_that_were_written_into(layer: nn.Linear) -> None:
    found, count, dropped = MadeTensors(), list[int](), list[object]()
    found.of("a", [layer.weight], doubled(layer.weight, count))
    was = found.identity
    was.when_dropped(self_test := object(), dropped.append)
    layer.weight[1, 2] += 1
    (tensor,) = found.of("a", [layer.weight], doubled(layer.weight, count))
    assert tensor is not None and torch.equal(tensor, layer.weight * 2) and len(count) == 2
    assert dropped == [was] and found.identity is not was and self_test is not None


@pytest.mark.parametrize("state", [("patches", 1), (None, 2)])
def test_tensors_of_weights_that_were_patched_or_moved_are_dropped(layer: nn.Linear, state: Any) -> None:
    kept, dropped = KeptTensors(), list[object]()
    found = kept.take(layer, ("a",), (None, 1))
    found.of("a", [layer.weight], doubled(layer.weight, []))
    found.identity.when_dropped(kept, dropped.append)
    kept.keep(found, layer, ("a",), (None, 1), PLENTY)
    assert kept.take(layer, ("a",), state) is not found and len(kept) == 0 and len(dropped) == 1


def test_tensors_are_kept_in_a_part_of_the_free_memory(layer: nn.Linear) -> None:
    kept = KeptTensors()
    for name in ("a", "b", "c"):
        found = kept.take(layer, (name,), "state")
        found.of(name, [layer.weight], doubled(layer.weight, []))
        kept.keep(found, layer, (name,), "state", 512)  # a quarter of what would be free: two of 64 bytes
    assert len(kept) == 2
    kept.keep(MadeTensors(), layer, ("d",), "state", 512)
    assert len(kept) == 2, "nothing is nothing to be kept"
    kept.release()
    assert kept.num_bytes == 0


def test_tensors_that_a_strategy_holds_itself_end_with_their_use(layer: nn.Linear) -> None:
    kept, dropped = KeptTensors(), list[object]()
    found = kept.take(layer, ("a", "b"), "state")
    found.of("a", [layer.weight], doubled(layer.weight, []))
    found.identity_with("a").when_dropped(kept, dropped.append)
    assert found.can_be_kept
    found.identity_with("b")
    kept.keep(found, layer, ("a", "b"), "state", PLENTY)
    assert len(kept) == 0 and len(dropped) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8])
def test_a_fingerprint_changes_with_one_value_of_any_type(dtype: torch.dtype) -> None:
    weight = torch.arange(16).view(4, 4).to(dtype)
    changed = weight.clone()
    changed[2, 2] = 3
    assert torch.equal(fingerprint_of([weight]), fingerprint_of([weight.clone()]))
    assert not torch.equal(fingerprint_of([weight]), fingerprint_of([changed]))


@pytest.mark.parametrize("names", [("cuda_graph", "fused_qkv"), ("cuda_graph", "step_graph", "fused_qkv")], ids=str)
def test_requests_share_one_graph_with_the_tensors_that_strategies_made(
    made: TunedEngine, names: tuple[str, ...]
) -> None:
    choose(made.tuned, *names)
    for seed in (30, 31, 32):
        latent(made.tuned, prompt_of(seed=seed))
    assert made.recorder.num_recorded == 1 and len(made.graphs) == 1
    made.tuned.tuner.release()
    assert len(made.graphs) == 0 and not len(made.tuned.tuner._networks._kept)


def test_what_is_kept_is_given_back_before_a_model_is_evicted(made: TunedEngine) -> None:
    choose(made.tuned, "cuda_graph", "fused_qkv")
    latent(made.tuned, prompt_of(seed=40))
    assert len(made.graphs) == 1
    made.tuned.memory.pool.before_eviction()
    assert len(made.graphs) == 0 and not len(made.tuned.tuner._networks._kept)
