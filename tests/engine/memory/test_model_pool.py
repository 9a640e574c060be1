"""The pool on simulated devices: who leaves, who stays, and the same bits however little fits."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from darkroom.engine.errors import OutOfMemory
from darkroom.engine.memory.offload.layers import Layers
from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.relief import MemorySavings
from darkroom.engine.memory.residency import Residency
from darkroom.engine.memory.state import VramState
from tests.engine.memory.simulated import WIDTH, Card, network, patch

MIB = 1 << 20
X = torch.linspace(-1, 1, 32).reshape(2, 16)


def size_of(module: torch.nn.Module) -> int:
    return sum(weight.nbytes for weight in module.state_dict().values())


SIZE = size_of(network(0))


def test_the_least_recently_used_model_makes_room_and_only_as_much_as_needed() -> None:
    card = Card(int(2.5 * SIZE))
    first, second, third = (card.add(name, network(seed)) for seed, name in enumerate("abc"))
    for handle in (first, second, third):
        with handle.in_use():
            pass
        card.pool.check_integrity()
    assert 0 < first.loaded_bytes < SIZE
    assert (second.loaded_bytes, third.loaded_bytes) == (SIZE, SIZE)


def test_models_in_use_never_leave() -> None:
    card = Card(int(1.5 * SIZE))
    outer, inner = card.add("a", network(0)), card.add("b", network(1))
    with outer.in_use(), inner.in_use():
        assert outer.loaded_bytes == SIZE
        assert inner.loaded_bytes < SIZE
    card.pool.check_integrity()


def test_models_in_use_give_way_in_part_to_a_use_that_would_find_no_memory() -> None:
    card = Card(SIZE + 1000)
    outer, inner = card.add("a", network(0)), card.add("b", network(1))
    with outer.in_use(working_bytes=100) as first:
        assert outer.loaded_bytes == SIZE
        with inner.in_use(working_bytes=100) as second:
            assert torch.equal(second(X), network(1)(X)) and outer.loaded_bytes < SIZE
        assert torch.equal(first(X), network(0)(X))
    card.pool.check_integrity()
    assert card.device.num_refused == 0


def test_buffers_that_layers_took_outside_of_a_use_go_after_the_run() -> None:
    card = Card(4 * SIZE, VramState.NO_VRAM)
    handle = card.add("a", network(0))
    with handle.in_use() as module:
        pass
    assert torch.equal(module(X), network(0)(X)) and card.streams.buffers_bytes
    card.pool.after_run()
    card.pool.check_integrity()
    assert card.device.charged_bytes == 0


def test_kept_models_leave_last() -> None:
    card = Card(int(2.2 * SIZE))
    kept, other, third = (card.add(name, network(seed)) for seed, name in enumerate("abc"))
    kept.keep()
    for handle in (kept, other, third):
        with handle.in_use():
            pass
    assert kept.loaded_bytes == SIZE and other.loaded_bytes < SIZE
    card.pool.unload_all(also_kept=False)
    assert (kept.loaded_bytes, other.loaded_bytes, third.loaded_bytes) == (SIZE, 0, 0)


def test_a_model_leaves_the_pool_and_the_device_with_its_last_handle() -> None:
    card = Card(2 * SIZE)
    handle = card.add("a", network(0))
    with handle.in_use():
        pass
    assert card.pool.report().num_models == 1 and card.device.charged_bytes == SIZE
    del handle
    assert card.pool.report().num_models == 0 and card.device.charged_bytes == 0


class LetsOthersGo:
    """Layers that drop handles while the pool goes through its models, as Python's collector may at any time."""

    def __init__(self, layers: Layers, others: list[Residency]) -> None:
        self._layers, self._others = layers, others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layers, name)

    @property
    def working_bytes(self) -> int:
        return 0

    @working_bytes.setter
    def working_bytes(self, num_bytes: int) -> None:
        self._others.clear()


def test_handles_may_end_in_the_midst_of_a_step() -> None:
    card = Card(4 * SIZE)
    others = [card.add("b", network(1)), card.add("c", network(2))]
    with others[0].in_use():
        pass
    weights: Any = ModuleWeights("a", network(0), device=card.device, streams=card.streams)
    weights.layers = LetsOthersGo(weights.layers, others)
    handle = card.pool.add(weights)
    with handle.in_use():
        handle.begin_work(100)
    assert card.pool.report().num_models == 1 and card.device.charged_bytes == SIZE
    card.pool.check_integrity()


def test_a_model_whose_last_handle_ends_on_another_thread_goes_with_the_next_step() -> None:
    card = Card(4 * SIZE)
    handles = [card.add("a", network(0))]
    with handles[0].in_use():
        pass
    thread = threading.Thread(target=handles.clear)
    thread.start()
    thread.join()
    assert card.pool.report().num_models == 0
    card.pool.after_run()
    assert card.device.charged_bytes == 0


def test_without_smart_memory_everything_leaves_after_each_run() -> None:
    card = Card(2 * SIZE, smart_memory=False)
    handle = card.add("a", network(0))
    with handle.in_use():
        assert handle.loaded_bytes == SIZE
    card.pool.after_run()
    assert handle.loaded_bytes == 0 == card.device.charged_bytes


@pytest.mark.parametrize("share", [0.06, 0.3, 0.8, 1.0, 2.0])
def test_results_are_the_same_bits_however_much_is_on_the_device(share: float) -> None:
    plain = network(0)
    expected = plain(X)
    card = Card(int(share * SIZE) + 2000)
    handle = card.add("a", network(0))
    with handle.in_use(working_bytes=100) as module:
        for _ in range(2):
            assert torch.equal(module(X), expected)
        assert (handle.loaded_bytes == SIZE) == (share >= 1)
    card.pool.check_integrity()
    assert card.device.num_refused == 0
    assert card.device.most_charged_bytes <= card.device.budget_bytes


def test_patches_are_the_same_bits_there_and_on_the_way_and_are_undone_exactly() -> None:
    module = network(0)
    originals = {name: weight.clone() for name, weight in module.state_dict().items()}
    whole, part = Card(3 * SIZE), Card(SIZE // 3)
    results = []
    for card in (whole, part):
        handle = card.add("a", network(0))
        outcome = []
        for patches, name in ((patch(module, 1), "one"), (patch(module, 1, 0.7), "two"), (patch(module, 2), "three")):
            with handle.in_use(patches=patches, patches_id=name) as network_in_use:
                outcome.append(network_in_use(X))
                outcome.append(torch.cat([handle.current_weight(name).flatten() for name in originals]))
        with handle.in_use() as network_in_use:
            outcome.append(network_in_use(X))
            shown = network_in_use.state_dict()
            assert all(torch.equal(shown[name], weight) for name, weight in originals.items())
        results.append(outcome)
        card.pool.check_integrity()
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert not torch.equal(results[0][0], results[0][2])
    assert torch.equal(results[0][-1], module(X))


def test_hooks_act_on_blocks_that_are_away_as_on_those_that_are_there() -> None:
    module = network(0)
    results = []
    for budget in (4 * SIZE, SIZE // 3):
        handle = (card := Card(budget)).add("a", network(0))
        outcome = []
        with handle.in_use(patches=patch(module, 1), patches_id="base") as used:
            for hooks_id, hooks in (
                ("h", patch(module, 2)),
                (None, {}),
                ("h", patch(module, 2)),
                ("i", patch(module, 1)),
            ):
                handle.patch_hooks(hooks, hooks_id, keep=budget > SIZE)
                outcome.append(used(X))
        card.pool.check_integrity()
        results.append(outcome)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert torch.equal(results[0][0], results[0][2]) and not torch.equal(results[0][0], results[0][1])


@pytest.mark.parametrize("share", [1.0, 1.5, 2.0])
def test_hooks_find_room_where_idle_models_leave_or_are_put_on_the_way(share: float) -> None:
    hooks = patch(network(0), 1)
    with (plain := Card(9 * SIZE).add("a", network(0))).in_use() as module:
        plain.patch_hooks(hooks, "h")
        expected = module(X)
    patching = WIDTH * WIDTH * (3 * 4 + 2 * 4)
    card = Card(int(share * SIZE) + patching + 3000)
    other, handle = card.add("b", network(1)), card.add("a", network(0))
    with other.in_use():
        pass
    with handle.in_use(working_bytes=100) as module:
        handle.patch_hooks(hooks, "h")
        assert torch.equal(module(X), expected)
        handle.patch_hooks({}, None)
        assert torch.equal(module(X), network(0)(X))
    assert card.device.num_refused == 0 and other.loaded_bytes < SIZE
    card.pool.check_integrity()


def test_no_vram_keeps_nothing_that_can_be_brought() -> None:
    card = Card(4 * SIZE, VramState.NO_VRAM)
    handle = card.add("a", network(0))
    with handle.in_use() as module:
        assert handle.loaded_bytes == 0
        assert torch.equal(module(X), network(0)(X))
    assert card.streams.num_streamed == 60 and card.device.charged_bytes == 0


@pytest.mark.parametrize("state", [VramState.HIGH_VRAM, VramState.GPU_ONLY])
def test_high_states_load_whole_models_or_fail(state: VramState) -> None:
    card = Card(int(1.5 * SIZE), state)
    first, second = card.add("a", network(0), rests_in_ram=False), card.add("b", network(1), rests_in_ram=False)
    with first.in_use():
        pass
    with pytest.raises(OutOfMemory), second.in_use():
        pass
    assert first.loaded_bytes == SIZE
    card.pool.check_integrity()


def test_patched_weights_beside_originals_that_stay_find_room_where_others_leave() -> None:
    patches = patch(network(0), 1)
    beside = sum(network(0).state_dict()[name].nbytes for name in patches)
    card = Card(2 * SIZE + beside // 2 + 3000, VramState.HIGH_VRAM)
    stays, leaves = card.add("a", network(0), rests_in_ram=False), card.add("b", network(1))
    with stays.in_use(), leaves.in_use():
        pass
    with stays.in_use(patches=patches, patches_id="lora"):
        assert card.device.charged_bytes == SIZE + beside + leaves.loaded_bytes
    assert leaves.loaded_bytes < SIZE and card.device.num_refused == 0


def test_what_does_not_fit_fails_and_leaves_everything_as_it_was() -> None:
    card = Card(SIZE // 100)
    handle = card.add("a", network(0))
    with pytest.raises(OutOfMemory) as caught, handle.in_use() as module:
        module(X)
    assert caught.value.needed_bytes > caught.value.free_bytes
    card.pool.check_integrity()
    assert card.device.charged_bytes == 0


def test_working_memory_is_charged_at_each_block_and_refused_like_weights() -> None:
    card = Card(SIZE)
    handle = card.add("a", network(0))
    with handle.in_use() as module, pytest.raises(OutOfMemory):
        handle._resident.layers.working_bytes = 2 * SIZE
        module(X)
    card.pool.check_integrity()


def test_what_an_interrupted_node_did_for_want_of_memory_is_not_reported_of_the_next_run() -> None:
    card = Card(4 * SIZE)
    handle = card.add("a", network(0))
    with handle.in_use():
        handle.note_split()
    assert card.pool.notes
    card.pool.after_run()
    assert not card.pool.notes


def test_economy_moves_weights_off_the_device_for_the_next_use() -> None:
    card = Card(4 * SIZE)
    handle = card.add("a", network(0))
    loaded = []
    for share in (1.0, 0.5, 0.0):
        card.pool.memory_savings = MemorySavings(weights_share=share)
        with handle.in_use():
            loaded.append(handle.loaded_bytes)
    assert loaded[0] == SIZE and 0.4 * SIZE < loaded[1] <= 0.5 * SIZE and loaded[2] == 0


def test_weights_kept_as_float8_compute_as_if_they_had_been_cast_before() -> None:
    kept = network(0).to(torch.float8_e4m3fn)
    expected = network(0).to(torch.float8_e4m3fn).to(torch.float32)(X)
    for budget in (4 * SIZE, 3000):
        card = Card(budget)
        handle = card.add("a", kept, compute_dtype=torch.float32)
        with handle.in_use() as module:
            assert torch.equal(module(X), expected)
            assert {weight.dtype for weight in module.state_dict().values()} == {torch.float8_e4m3fn}
        card.pool.check_integrity()
        kept = network(0).to(torch.float8_e4m3fn)


def test_a_use_that_begins_larger_works_than_were_planned_does_not_raise_later_estimates() -> None:
    planned = 256 * MIB
    card = Card(4096 * MIB)
    handle = card.add("a", network(0))
    for _ in range(2):
        with handle.in_use(working_bytes=planned) as module:
            handle.begin_work(3 * planned)  # a batch of three, each as it was planned for
            module(X)
    assert card.device.peak_bytes() == SIZE + 3 * planned
    other = card.add("b", network(1))
    card.device.budget_bytes = 2 * SIZE + 2 * planned
    with other.in_use(working_bytes=planned):
        assert handle.loaded_bytes == SIZE


def test_the_peak_is_that_of_all_uses_and_not_of_the_last() -> None:
    card = Card(4 * SIZE)
    handle = card.add("a", network(0))
    for working_bytes in (2 * SIZE, 100):
        with handle.in_use(working_bytes=working_bytes) as module:
            module(X)
    assert card.pool.peak_bytes(card.device) == 3 * SIZE


def test_other_memory_is_given_back_before_a_model_is_evicted() -> None:
    card = Card(int(2.2 * SIZE))
    first, second = card.add("a", network(0)), card.add("b", network(1))
    held = [card.device.empty_bytes(int(1.1 * SIZE))]

    def give_back() -> bool:
        was_some = bool(held)
        held.clear()
        return was_some

    card.pool.before_eviction = give_back
    with first.in_use():
        assert held, "there was room"
    with second.in_use():
        assert not held
    assert (first.loaded_bytes, second.loaded_bytes) == (SIZE, SIZE)
