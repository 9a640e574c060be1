"""Models that are off-loaded, or not in use on a CPU, leave RAM when it is short and are read again from their file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.formats.weight_source import FileWeights
from darkroom.engine.memory.device import Device
from darkroom.engine.memory.model_pool import ModelPool
from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.plan import Limits
from darkroom.engine.memory.residency import Residency
from darkroom.engine.memory.simulated_device import SimulatedDevice
from darkroom.engine.memory.state import VramState
from darkroom.engine.memory.transfer_streams import PinnedMemory
from tests.engine.memory.simulated import network, patch

X = torch.linspace(-1, 1, 32).reshape(2, 16)
NUM_LAYERS = 4
SIZE = sum(weight.nbytes for weight in network(0, NUM_LAYERS).state_dict().values())


class Ram:
    """Free RAM; everything else is the test's."""

    def __init__(self) -> None:
        self.available_bytes = 1 << 40

    def __call__(self) -> tuple[int, int]:
        return self.available_bytes, 1 << 20


def read(folder: Path, seed: int, *, stored: torch.dtype, copies: bool) -> tuple[nn.Module, FileWeights]:
    """A network whose weights are in a file: as it computes with them, or to be read when they are needed."""
    module = network(seed, NUM_LAYERS)
    weights = {name: weight.detach() for name, weight in module.state_dict().items()}
    path = folder / f"{seed}-{stored}.safetensors"
    write_safetensors(path, {name: weight.to(stored) for name, weight in weights.items()})
    source = FileWeights(SafetensorsFile(path), {name: name for name in weights}, weights, copies=copies)
    found = dict(source.read(name for name in weights if copies or source.is_view(name)))
    for name in weights:
        owner, _, attribute = name.rpartition(".")
        tensor = found.get(name, torch.empty_like(weights[name], device="meta"))
        setattr(module.get_submodule(owner), attribute, nn.Parameter(tensor, requires_grad=False))
    return module, source


def add(pool: ModelPool, device: Device, folder: Path, seed: int, stored: torch.dtype) -> Residency:
    module, source = read(folder, seed, stored=stored, copies=not device.has_own_memory)
    return pool.add(ModuleWeights(f"model {seed}", module, device=device, source=source))


@pytest.mark.parametrize("stored", [torch.float16, torch.float32])
@pytest.mark.parametrize("on_card", [False, True])
def test_models_leave_ram_when_it_is_short_and_come_back_as_they_were(
    tmp_path: Path, stored: torch.dtype, on_card: bool
) -> None:
    ram = Ram()
    device = SimulatedDevice(3 * SIZE) if on_card else Device()
    state = VramState.NORMAL_VRAM if on_card else VramState.DISABLED
    pool = ModelPool(state, limits=Limits(0, 0), ram_bytes=ram)
    first, second = (add(pool, device, tmp_path, seed, stored) for seed in (0, 1))
    patches = patch(network(0, NUM_LAYERS), 1)
    results = []
    for round_number in range(3):
        with first.in_use() as module:
            results.append(module(X))
        with first.in_use(patches=patches, patches_id="lora") as module:
            results.append(module(X))
        pool.unload_all()
        ram.available_bytes = 0
        with second.in_use() as module:
            module(X)
        pool.check_integrity()
        assert first.ram_bytes == 0, f"round {round_number}"
        ram.available_bytes = 1 << 40
    assert all(torch.equal(result, results[index % 2]) for index, result in enumerate(results))
    expected = network(0, NUM_LAYERS)
    if stored is torch.float16:
        expected = expected.half().float()
    assert torch.equal(results[0], expected(X)) and not torch.equal(results[0], results[1])
    assert pool.report().num_dropped >= (0 if on_card and stored is torch.float32 else 3)


def test_the_least_recently_used_model_leaves_ram_first_and_one_in_use_never(tmp_path: Path) -> None:
    ram = Ram()
    pool = ModelPool(VramState.DISABLED, ram_bytes=ram)
    handles = [add(pool, Device(), tmp_path, seed, torch.float32) for seed in range(3)]
    for handle in handles:
        with handle.in_use():
            pass
    ram.available_bytes = (1 << 20) // 10 - 1  # a byte short of a tenth
    with handles[1].in_use():
        assert [handle.ram_bytes for handle in handles] == [0, SIZE, SIZE]
    pool.check_integrity()


def test_on_a_card_weights_that_lie_in_the_file_as_they_are_wanted_take_no_ram(tmp_path: Path) -> None:
    pool = ModelPool(VramState.NORMAL_VRAM, limits=Limits(0, 0))
    device = SimulatedDevice(2 * SIZE)
    handle = add(pool, device, tmp_path, 0, torch.float32)
    with handle.in_use() as module:
        assert torch.equal(module(X), network(0, NUM_LAYERS)(X))
    pool.unload_all()
    assert handle.ram_bytes == 0 == device.charged_bytes


@pytest.mark.parametrize("leaves_for_another", [False, True])
def test_what_leaves_a_card_while_ram_is_short_is_read_again_and_not_copied(
    tmp_path: Path, leaves_for_another: bool
) -> None:
    ram = Ram()
    pool = ModelPool(VramState.NORMAL_VRAM, limits=Limits(0, 0), ram_bytes=ram)
    device = SimulatedDevice(SIZE + SIZE // 2)
    first, second = (add(pool, device, tmp_path, seed, torch.float16) for seed in (0, 1))
    patches = patch(network(0, NUM_LAYERS), 1)
    results, taken = [], []
    for available in (1 << 40, 0, 0):
        with first.in_use(patches=patches, patches_id="lora") as module:
            results.append(module(X))
        ram.available_bytes = available
        if leaves_for_another:
            with second.in_use():
                assert 0 < first.loaded_bytes < SIZE
                taken.append(first.ram_bytes)
        pool.unload_all()
        taken.append(first.ram_bytes)
        pool.check_integrity()
        pool.drop_all()
        ram.available_bytes = 1 << 40
    num_roomy = 1 + leaves_for_another
    assert min(taken[:num_roomy]) > 0 and not any(taken[num_roomy:])
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("share", [1.0, 1.5, 3.0])
def test_patched_weights_that_give_way_to_hooks_in_a_use_have_their_originals_read(
    tmp_path: Path, share: float
) -> None:
    patches, hooks = patch(network(0, NUM_LAYERS), 2), patch(network(0, NUM_LAYERS), 1)
    results = []
    for budget in (9 * SIZE, int(share * SIZE) + 7000):
        device = SimulatedDevice(budget)
        pool = ModelPool(VramState.NORMAL_VRAM, limits=Limits(0, 0))
        handle = add(pool, device, tmp_path, 0, torch.float16)
        with handle.in_use(patches=patches, patches_id="lora") as module:
            was_whole = handle.loaded_bytes == SIZE
            handle.patch_hooks(hooks, "hook")
            results.append(module(X))
            if share == 1.0 and budget < 9 * SIZE:
                assert was_whole and handle.loaded_bytes < SIZE, "some of it has to give way"
        pool.check_integrity()
    assert torch.equal(*results)


def test_patched_copies_beside_the_originals_are_counted(tmp_path: Path) -> None:
    pool = ModelPool(VramState.DISABLED)
    handle = add(pool, Device(), tmp_path, 0, torch.float32)
    entries = patch(network(0, NUM_LAYERS), 1)
    beside = sum(weight.nbytes for name, weight in network(0, NUM_LAYERS).state_dict().items() if name in entries)
    with handle.in_use(patches=entries, patches_id="lora"):
        assert handle.ram_bytes == SIZE + beside
        handle.patch_hooks(entries, "hook", keep=True)
        assert handle.ram_bytes == SIZE + 2 * beside
        handle.patch_hooks({}, None)
        assert handle.ram_bytes == SIZE + 2 * beside, "they are remembered until the use ends"
    assert handle.ram_bytes == SIZE + beside
    pool.unload_all()
    assert handle.ram_bytes == SIZE


def test_on_a_card_originals_that_never_leave_it_take_no_ram(tmp_path: Path) -> None:
    device = SimulatedDevice(4 * SIZE)
    module, source = read(tmp_path, 0, stored=torch.float32, copies=False)
    pool = ModelPool(VramState.GPU_ONLY, limits=Limits(0, 0))
    handle = pool.add(ModuleWeights("model", module, device=device, source=source, rests_in_ram=False))
    with handle.in_use(patches=patch(network(0, NUM_LAYERS), 1), patches_id="lora"):
        assert handle.ram_bytes == 0
        assert device.charged_bytes == pool.report().device_bytes > SIZE


def test_layers_that_are_all_there_have_no_hooks(tmp_path: Path) -> None:
    pool = ModelPool(VramState.DISABLED)
    handle = add(pool, Device(), tmp_path, 0, torch.float32)
    with handle.in_use(patches=patch(network(0, NUM_LAYERS), 1), patches_id="lora") as module:
        assert not any(layer._forward_pre_hooks or layer._forward_hooks for layer in module.modules())


def test_a_layer_of_which_only_a_part_is_in_the_file_comes_back_whole(tmp_path: Path) -> None:
    ram = Ram()
    pool = ModelPool(VramState.DISABLED, ram_bytes=ram)
    module, source = read(tmp_path, 0, stored=torch.float32, copies=True)
    layer = module.get_submodule("0")
    assert isinstance(layer, nn.Linear)
    layer.register_buffer("extra", torch.ones(3))
    handle = pool.add(ModuleWeights("model", module, device=Device(), source=source))
    expected = module(X)
    pool.drop_all()
    pool.check_integrity()
    with handle.in_use() as used:
        assert torch.equal(used(X), expected) and torch.equal(layer.get_buffer("extra"), torch.ones(3))
    pool.check_integrity()


def test_copies_of_weights_that_the_file_has_as_views_are_counted_and_dropped(tmp_path: Path) -> None:
    device = SimulatedDevice(4 * SIZE)
    module, source = read(tmp_path, 0, stored=torch.float32, copies=False)
    weights = ModuleWeights(
        "model", module, device=device, source=source, pinned=PinnedMemory(device, 1 << 30, lambda: 1 << 40)
    )
    weights.load(0)
    assert weights.ram_bytes == weights.droppable_bytes > 0, "what is streamed is pinned"
    weights.drop()
    weights.load()
    assert weights.ram_bytes == 0
    weights.unload()
    weights.check_integrity()
    assert weights.ram_bytes == weights.drop() > 0, "what was offloaded to RAM is no view any more"
    assert weights.ram_bytes == 0
    weights.load()
    assert torch.equal(module(X), network(0, NUM_LAYERS)(X))
