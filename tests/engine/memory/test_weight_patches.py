"""Patches go on, change and come off bit for bit, hooks above them, float8 below them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.weight_patches import calculate_weight, patched, rounded_at_random


def _module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).requires_grad_(False)


def _added(strength: float, value: torch.Tensor | None = None) -> tuple[Any, ...]:
    return (strength, ("diff", (torch.ones(4, 4) if value is None else value,)), 1.0, None, None)


def test_hooks_come_and_go_on_top_of_patches_and_everything_is_undone_bit_for_bit() -> None:
    module = _module()
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    weights = ModuleWeights("m", module)
    weights.patches.patch({"0.weight": [_added(0.5)]}, "base")
    patched_weight = module.state_dict()["0.weight"].clone()
    weights.patches.patch_hooks({"0.weight": [_added(0.3)], "1.weight": [_added(0.1)]}, "a", keep=True)
    hooked = module.state_dict()["0.weight"]
    torch.testing.assert_close(hooked, before["0.weight"] + 0.8)
    weights.patches.patch_hooks({}, None, keep=False)
    assert torch.equal(module.state_dict()["0.weight"], patched_weight)
    weights.patches.patch_hooks({"0.weight": [_added(0.3)], "1.weight": [_added(0.1)]}, "a", keep=True)
    assert module.state_dict()["0.weight"].data_ptr() == hooked.data_ptr(), "a remembered layer is not computed again"
    weights.unload()
    assert all(torch.equal(weight, before[name]) for name, weight in module.state_dict().items())
    weights.check_integrity()


def test_the_original_is_seen_through_both_layers() -> None:
    module = _module()
    before = module.state_dict()["1.weight"].clone()
    weights = ModuleWeights("m", module)
    weights.patches.patch({"0.weight": [_added(0.5)]}, "base")
    weights.patches.patch_hooks({"1.weight": [_added(1.0)]}, "a", keep=False)
    assert torch.equal(weights.values.original("1.weight"), before)
    with pytest.raises(KeyError):
        weights.values.original("2.weight")


def test_only_weights_whose_patches_changed_are_touched() -> None:
    module = _module()
    weights = ModuleWeights("m", module)
    first, second = _added(0.5), _added(0.25)
    weights.patches.patch({"0.weight": [first], "1.weight": [second]}, "one")
    kept = module.state_dict()["1.weight"].data_ptr()
    weights.patches.patch({"0.weight": [(0.7, *first[1:])], "1.weight": [second]}, "two")
    assert module.state_dict()["1.weight"].data_ptr() == kept
    torch.testing.assert_close(module.state_dict()["0.weight"], weights.values.original("0.weight") + 0.7)


class _FailsOnce:
    """A patch for which there is too little memory the first time."""

    def __init__(self) -> None:
        self.has_failed = False

    def calculate_weight(self, weight: torch.Tensor, *rest: Any) -> torch.Tensor:
        if not self.has_failed:
            self.has_failed = True
            raise torch.OutOfMemoryError("out of memory")
        return weight + 1


@pytest.mark.parametrize("before", [{}, {"0.weight": [_added(0.5)], "1.weight": [_added(0.5)]}])
def test_patches_of_which_one_failed_are_applied_by_the_next_call(before: dict[str, Any]) -> None:
    module = _module()
    originals = {name: weight.clone() for name, weight in module.state_dict().items()}
    weights = ModuleWeights("m", module)
    weights.patches.patch(before, "before")
    wanted = {"0.weight": [_added(0.25)], "1.weight": [(1.0, _FailsOnce(), 1.0, None, None)]}
    with pytest.raises(torch.OutOfMemoryError):
        weights.patches.patch(wanted, "wanted")
    weights.check_integrity()
    assert all(torch.equal(weight, originals[name]) for name, weight in module.state_dict().items())
    weights.patches.patch(wanted, "wanted")
    assert torch.equal(module.state_dict()["0.weight"], originals["0.weight"] + 0.25)
    assert torch.equal(module.state_dict()["1.weight"], originals["1.weight"] + 1)
    weights.check_integrity()


def test_a_module_may_round_its_patched_weights() -> None:
    module = _module()
    module.patched_dtype = torch.float16  # type: ignore[assignment]
    weights = ModuleWeights("m", module)
    weights.patches.patch({"0.weight": [_added(1 / 3)]}, "one")
    changed = module.state_dict()["0.weight"]
    assert changed.dtype is torch.float32
    assert torch.equal(changed, changed.half().float())


def test_another_models_weight_comes_with_its_own_patches() -> None:
    other = [(torch.full((2, 2), 4.0), lambda weight, **_: weight), (0.5, (torch.ones(2, 2),), 1.0, None, None)]
    merged = calculate_weight([(0.25, other, 0.75, None, None)], torch.full((2, 2), 8.0), "w")
    torch.testing.assert_close(merged, torch.full((2, 2), 0.75 * 8 + 0.25 * 4.5))


def test_a_model_as_lora_adds_what_it_is_above_the_original() -> None:
    patch = (0.5, ("model_as_lora", (torch.full((2, 2), 3.0),)), 1.0, None, None)
    changed = calculate_weight([patch], torch.full((2, 2), 10.0), "w", lambda key: torch.ones(2, 2))
    torch.testing.assert_close(changed, torch.full((2, 2), 11.0))


def test_an_offset_patches_a_part_and_a_patch_of_another_shape_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    part = (1.0, (torch.ones(1, 2),), 1.0, (0, 1, 1), None)
    misfit = (1.0, (torch.ones(3, 2),), 0.5, None, None)
    changed = calculate_weight([part, misfit], torch.zeros(2, 2), "w")
    assert changed.tolist() == [[0.0, 0.0], [0.5, 0.5]]
    assert "left out" in caplog.text


def test_an_unknown_kind_of_patch_is_refused() -> None:
    with pytest.raises(ValueError, match="no weight patch of kind 'swap'"):
        calculate_weight([(1.0, ("swap", (torch.ones(1),)), 1.0, None, None)], torch.zeros(1), "w")


ROUNDED_BY_COMFYUI = {  # 12 numbers from 0.1 to 0.9, under the key "w"
    torch.float8_e4m3fn: [0.09375, 0.1875, 0.25, 0.3125, 0.375, 0.4375, 0.5, 0.625, 0.6875, 0.75, 0.8125, 0.9375],
    torch.float8_e5m2: [0.09375, 0.1875, 0.25, 0.3125, 0.375, 0.4375, 0.5, 0.625, 0.625, 0.75, 0.875, 1.0],
}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_rounded_to_the_bits_that_comfyui_draws(dtype: torch.dtype) -> None:
    values = torch.linspace(0.1, 0.9, 12)
    assert rounded_at_random(values, dtype, "w").float().tolist() == ROUNDED_BY_COMFYUI[dtype]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_patch_smaller_than_float8_can_tell_is_there_in_the_mean_and_the_same_every_time(dtype: torch.dtype) -> None:
    weight = torch.cat([torch.full((10_000,), value) for value in (1.0, -1.0, 2.0**-9, 0.0)]).to(dtype)
    small = torch.cat([torch.full((10_000,), value) for value in (0.01, 0.01, 2.0**-11, 2.0**-12)])
    entries = [(1.0, ("diff", (small,)), 1.0, None, None)]
    once, again, other = (patched(entries, weight, key).float() for key in ("a", "a", "b"))
    assert torch.equal(once, again) and not torch.equal(once, other)
    wanted = weight.float() + small
    step = {torch.float8_e4m3fn: (0.125, 2.0**-9), torch.float8_e5m2: (0.25, 2.0**-11)}[dtype]  # above 1, near 0
    for part, values, exact in zip(range(4), once.view(4, -1), wanted.view(4, -1), strict=True):
        assert (values - exact).abs().max() <= step[part >= 2]
        assert abs(values.mean() - exact[0]) < step[part >= 2] / 50
    unchanged = patched([(0.0, ("diff", (small,)), 1.0, None, None)], weight, "a")
    moved = (unchanged.float() != weight.float()).float().mean()
    assert moved < 2e-3, "what float8 can tell stays as it is, but where float16 rounds a draw up to the next number"
    assert torch.equal(
        patched([(1e6, ("diff", (torch.ones(40_000),)), 1.0, None, None)], weight, "a").float().max(),
        torch.tensor(torch.finfo(dtype).max),
    )
