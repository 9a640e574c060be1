"""Networks that packs build themselves, wrapped in `comfy.model_patcher.ModelPatcher`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from darkroom.engine.comfy.pack_weights import PackNetworks
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.models.patching.module_patcher import ModulePatcher
from darkroom.engine.settings import EngineSettings, MemorySettings
from tests.engine.comfy.loading import loaded, write_pack

PACK = """
    import torch
    import comfy.model_management as management
    from comfy.model_patcher import ModelPatcher, PatcherInjection
    from comfy.patcher_extension import CallbacksMP

    class Own(ModelPatcher):
        def clone(self, *args, **kwargs):
            other = super().clone(*args, **kwargs)
            other.mark = getattr(self, "mark", 0) + 1
            return other

    class Probe:
        INPUT_TYPES = classmethod(lambda cls: {"required": {}})
        RETURN_TYPES = ("STRING",)
        FUNCTION = "probe"

        def probe(self):
            network = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Identity())
            torch.nn.init.eye_(network[0].weight)
            patcher = Own(network, load_device=management.get_torch_device(), offload_device=torch.device("cpu"))
            seen = []
            patcher.add_callback_with_key(
                CallbacksMP.ON_LOAD, "mine", lambda model, device, *rest: seen.append(("loaded", str(device), rest))
            )
            patcher.set_injections("mine", [
                PatcherInjection(
                    inject=lambda model: model.model.append(torch.nn.Identity()),
                    eject=lambda model: model.model.pop(-1),
                )
            ])
            clone = patcher.clone()
            taken = clone.add_patches({"0.weight": (torch.ones(2, 2),), "nothing": (torch.ones(1),)}, 0.5)
            clone.add_object_patch("1", torch.nn.Softplus())
            management.load_models_gpu([clone])
            ones = torch.ones(1, 2)
            clone.patch_model()
            inside = (len(network), [round(float(item), 3) for item in network(ones)[0]])
            clone.unpatch_model()
            outside = (len(network), [round(float(item), 3) for item in network(ones)[0]])
            network.append(torch.nn.Linear(2, 1, bias=False))
            torch.nn.init.ones_(network[2].weight)
            patcher.patch_model()
            more = (float(network(ones)), patcher.model_size())
            patcher.unpatch_model()
            return (repr((
                isinstance(patcher, ModelPatcher), clone.mark, clone.is_clone(patcher), taken, inside, outside, more,
                seen[0], clone.get_model_object("0") is network[0],
            )),)

    NODE_CLASS_MAPPINGS = {"PackProbe": Probe}
"""


def test_a_pack_wraps_a_network_of_its_own(tmp_path: Path) -> None:
    write_pack(tmp_path, "own", PACK)
    with loaded(tmp_path) as packs:
        found = packs.shown("PackProbe")
        packs.engine.memory.pool.check_integrity()
    patched = round(float(nn.functional.softplus(torch.tensor(2.0))), 3)
    expected = (
        True,
        1,
        True,
        ["0.weight"],
        (3, [patched, patched]),
        (2, [1.0, 1.0]),
        (2.0, 24),
        ("loaded", "cpu", (0, False, True)),
        True,
    )
    assert found == repr(expected)


def test_a_model_of_the_engine_is_an_instance_too(tmp_path: Path) -> None:
    source = """
        from comfy.model_patcher import ModelPatcher
        import comfy.sd

        class Probe:
            INPUT_TYPES = classmethod(lambda cls: {"required": {}})
            RETURN_TYPES = ("STRING",)
            FUNCTION = "probe"

            def probe(self):
                class Own(ModelPatcher):
                    pass

                return (f"{issubclass(type(self).base, ModelPatcher)} {issubclass(type(self).base, Own)}",)

        from darkroom.engine.models.model import Model
        Probe.base = Model
        NODE_CLASS_MAPPINGS = {"PackProbe": Probe}
    """
    write_pack(tmp_path, "own", source)
    with loaded(tmp_path) as packs:
        assert packs.shown("PackProbe") == "True False"


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64, bias=False)
        self.register_buffer("table", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out


@pytest.fixture
def memory() -> ModelMemory:
    return ModelMemory(EngineSettings(memory=MemorySettings(simulate_vram_gb=4)))


def test_weights_on_the_device_return_to_the_module_before_it_is_added_anew(memory: ModelMemory) -> None:
    module = Layers()
    original = module.layer.weight.detach().clone()
    weights = PackNetworks(memory).weights_of(module, memory.device.torch_name)
    model = ModulePatcher(weights)
    with model.in_use():
        assert model.loaded_size() == model.model_size()
    replaced = torch.full((3,), 7.0)
    module.table = replaced
    module.more = nn.Linear(64, 2)
    with model.in_use() as network:
        used: Any = network
        assert torch.equal(used.table.cpu(), replaced)
        assert torch.equal(used.layer.weight.cpu(), original)
        assert model.model_size() == (64 * 64 + 3 + 64 * 2 + 2) * 4
    memory.pool.check_integrity()
    assert len(memory.report().pool.models) == 1


def test_one_module_has_one_handle_which_ends_with_its_values(memory: ModelMemory) -> None:
    networks, module = PackNetworks(memory), Layers()
    first, second = networks.weights_of(module, None), networks.weights_of(module, "cpu")
    assert first is second
    with ModulePatcher(first).in_use():
        pass
    assert len(memory.report().pool.models) == 1
    del first, second
    assert not memory.report().pool.models
    memory.pool.after_run()
    assert not memory.report().pool.num_leaks


def test_strategies_are_told_how_its_weights_are_cast(memory: ModelMemory) -> None:
    module: Any = nn.Sequential(nn.Linear(64, 64)).to(torch.float8_e4m3fn).requires_grad_(False)
    module.manual_cast_dtype = None
    weights = PackNetworks(memory).weights_of(module, memory.device.torch_name)
    model = ModulePatcher(weights)
    model.set_model_compute_dtype(torch.float32)
    with model.in_use():
        assert weights.can_have_fixed_addresses and weights.cast_bytes == (64 + 1) * 64 * 4
        before = weights.has_fixed_addresses
        ends = weights.cast_directly(), weights.use_as_stored({module[0]: {}})
        after = weights.has_fixed_addresses
        for end in ends:
            end()
        assert (before, after) == (False, True)


def test_a_network_for_the_cpu_stays_there(memory: ModelMemory) -> None:
    weights = PackNetworks(memory).weights_of(Layers(), torch.device("cpu"))
    assert (weights.load_device, weights.offload_device) == ("cpu", "cpu")
    with ModulePatcher(weights).in_use() as network:
        assert network.layer.weight.device.type == "cpu"
