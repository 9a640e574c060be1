from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from engine.memory.model_pool import ModelPool
from engine.memory.offload import ModuleWeights
from engine.memory.plan import Occupant, plan_residency
from engine.memory.state import VramState


class FakeDevice:
    def __init__(self, total: int) -> None:
        self.total = total
        self.models: list[FakeModel] = []

    def free_bytes(self, device: str) -> int:
        return self.total - sum(model.loaded_bytes for model in self.models)

    def empty_cache(self, device: str) -> None:
        """Nothing is held back here."""


class FakeModel:
    load_device, offload_device = "gpu", "cpu"

    def __init__(self, device: FakeDevice, name: str, size_bytes: int) -> None:
        self.name, self.size_bytes, self.module = name, size_bytes, object()
        self.loaded_bytes = 0
        device.models.append(self)

    def load(self) -> None:
        self.loaded_bytes = self.size_bytes

    def unload(self) -> None:
        self.loaded_bytes = 0

    def patch(self, patches: Mapping[str, Sequence[Any]], patches_id: object) -> None:
        """No weights to patch."""

    def patch_hooks(self, patches: Mapping[str, Sequence[Any]], hooks_id: object, *, keep: bool) -> None:
        """No weights to patch."""

    def undo_hooks(self) -> None:
        """No weights to patch."""

    def original_weight(self, key: str) -> Any:
        raise KeyError(key)


def test_the_least_recently_used_model_makes_room() -> None:
    device = FakeDevice(100)
    pool = ModelPool(device, VramState.NORMAL_VRAM, reserve_bytes=0)
    models = [FakeModel(device, name, 40) for name in "abc"]
    handles = [pool.add(model) for model in models]
    for handle in handles:
        with handle.in_use(working_bytes=10):
            pool.check_integrity()
    assert [model.loaded_bytes for model in models] == [0, 40, 40]


def test_models_in_use_never_leave() -> None:
    device = FakeDevice(100)
    pool = ModelPool(device, VramState.NORMAL_VRAM, reserve_bytes=0)
    first, second = FakeModel(device, "a", 60), FakeModel(device, "b", 60)
    outer, inner = pool.add(first), pool.add(second)
    with outer.in_use(), inner.in_use():
        assert (first.loaded_bytes, second.loaded_bytes) == (60, 60)


def test_a_model_leaves_the_pool_with_its_last_handle() -> None:
    device = FakeDevice(100)
    pool = ModelPool(device, VramState.NORMAL_VRAM)
    handle = pool.add(FakeModel(device, "a", 10))
    assert pool.report().num_models == 1
    del handle
    gc.collect()
    assert pool.report().num_models == 0


def test_a_plan_evicts_no_more_than_needed() -> None:
    occupants = [Occupant(1, 50, 50, last_used=2), Occupant(2, 50, 50, last_used=1)]
    assert plan_residency(40, 10, 20, occupants).evict == (2,)
    assert plan_residency(40, 10, 60, occupants).evict == ()
    assert plan_residency(200, 0, 0, occupants).missing_bytes == 100


def test_kept_models_leave_last() -> None:
    occupants = [Occupant(1, 50, 50, last_used=1, is_kept=True), Occupant(2, 50, 50, last_used=2)]
    assert plan_residency(40, 0, 0, occupants).evict == (2,)
    assert plan_residency(90, 0, 0, occupants).evict == (2, 1)


def test_patches_are_undone_bit_for_bit() -> None:
    module = torch.nn.Linear(4, 4).half().requires_grad_(False)
    before = module.weight.clone()
    weights = ModuleWeights("m", module, load_device="cpu", offload_device="cpu")
    patch = {"weight": [(0.7, ("diff", (torch.randn(4, 4),)), 1.0, None, None)]}
    weights.patch(patch, "first")
    assert not torch.equal(module.weight, before)
    assert torch.equal(weights.original_weight("weight"), before)
    weights.patch({}, None)
    assert torch.equal(module.weight, before)
