"""Packs that put functions of their own in the place of ComfyUI's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.comfy.replaceable_names import REPLACEABLE
from darkroom.engine.nodes.legacy_node import ClassNode
from tests.engine.comfy.loading import Loaded, loaded, write_pack
from tests.tiny_checkpoint import make_tiny_checkpoint

BLUR = "comfy_extras.nodes_sag.create_blur_map"  # of one node's guidance
OF_FILES = {"comfy.utils.load_torch_file", BLUR}  # not of all sampling: see test_controls.py
KEEP = """
    class Keep:
        INPUT_TYPES = classmethod(lambda cls: {"required": {"latent": ("LATENT",)}})
        RETURN_TYPES = ()
        FUNCTION = "go"
        OUTPUT_NODE = True

        def go(self, latent):
            return {"ui": {"kept": latent["samples"].flatten().tolist()}}

    NODE_CLASS_MAPPINGS = {"Keep": Keep}
"""

WRAP = """
    import importlib

    def wrap(full, calls):
        module_name, _, name = full.rpartition(".")
        module = importlib.import_module(module_name)
        original = getattr(module, name)
        if isinstance(original, type):
            class Wrapped(original):
                def __init__(self, *args, **kwargs):
                    calls.append(full)
                    super().__init__(*args, **kwargs)
        else:
            def Wrapped(*args, **kwargs):
                calls.append(full)
                return original(*args, **kwargs)
        setattr(module, name, Wrapped)

    import comfy.sample
    comfy.sample.calls_of_{name} = []
    for full in {names!r}:
        wrap(full, comfy.sample.calls_of_{name})
    NODE_CLASS_MAPPINGS = {{}}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "models"
    make_tiny_checkpoint(folder / "checkpoints")
    return folder


@pytest.fixture
def base(tmp_path: Path, models: Path) -> Path:
    (tmp_path / "models").symlink_to(models)
    write_pack(tmp_path, "keep.py", KEEP)
    return tmp_path


def wrapping(name: str, names: list[str]) -> str:
    return WRAP.format(name=name, names=names)


def graph(**changes: Any) -> dict[str, Any]:
    """A latent by KSampler, and from it one by SamplerCustom, with a mask over it."""
    sampled = {
        "model": ["1", 0], "positive": ["2", 0], "negative": ["3", 0], "seed": 7, "steps": 2, "cfg": 5.0,
        "sampler_name": "euler", "scheduler": "karras", "denoise": 1.0, "latent_image": ["4", 0],
    }  # fmt: skip
    custom = {
        "model": ["1", 0], "add_noise": True, "noise_seed": 3, "cfg": 2.0, "positive": ["2", 0], "negative": ["3", 0],
        "sampler": ["6", 0], "sigmas": ["7", 0], "latent_image": ["9", 0],
    }  # fmt: skip
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "tiny.safetensors"}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": "a fox"}},
        "3": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": ""}},
        "4": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "5": {"class_type": "KSampler", "inputs": {**sampled, **changes}},
        "6": {"class_type": "KSamplerSelect", "inputs": {"sampler_name": "dpmpp_2m"}},
        "7": {
            "class_type": "BasicScheduler",
            "inputs": {"model": ["1", 0], "scheduler": "normal", "steps": 2, "denoise": 0.5},
        },
        "8": {"class_type": "SolidMask", "inputs": {"value": 1.0, "width": 64, "height": 64}},
        "9": {"class_type": "SetLatentNoiseMask", "inputs": {"samples": ["5", 0], "mask": ["8", 0]}},
        "10": {"class_type": "SamplerCustom", "inputs": custom},
        "11": {"class_type": "Keep", "inputs": {"latent": ["10", 0]}},
        "12": {"class_type": "Keep", "inputs": {"latent": ["5", 0]}},
    }


def drawn(made: Loaded, **changes: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the results of KSampler and SamplerCustom."""
    result = made.run(graph(**changes))
    assert result.status == "success", made.events[-1]
    return torch.tensor(result.outputs["12"]["kept"]), torch.tensor(result.outputs["11"]["kept"])


def test_every_name_that_may_be_replaced_is_called_and_changes_nothing_by_itself(base: Path, tmp_path: Path) -> None:
    with loaded(base) as made:
        plain = drawn(made)
    names = sorted((REPLACEABLE | {"comfy.k_diffusion.sampling.sample_euler"}) - OF_FILES)
    write_pack(base, "wraps_all.py", wrapping("all", names))
    with loaded(base) as made:
        import comfy.sample  # served while packs are loaded

        assert made.reports["wraps_all"].error is None
        wrapped = drawn(made)
        assert set(comfy.sample.calls_of_all) == set(names)
    assert all(torch.equal(*pair) for pair in zip(plain, wrapped, strict=True))


def test_the_blur_of_self_attention_guidance_is_a_packs(base: Path) -> None:
    write_pack(base, "blurs.py", wrapping("blurs", [BLUR]))
    guided = {
        "class_type": "SelfAttentionGuidance",
        "inputs": {"model": ["1", 0], "scale": 0.5, "blur_sigma": 2.0},
    }
    with loaded(base) as made:
        import comfy.sample  # served while packs are loaded

        empty = {"class_type": "EmptyLatentImage", "inputs": {"width": 128, "height": 128, "batch_size": 1}}
        result = made.run({**graph(model=["13", 0]), "4": empty, "13": guided})
        assert result.status == "success", made.events[-1]
        assert comfy.sample.calls_of_blurs == [BLUR] * 2


def test_functions_that_only_choose_a_device_may_be_replaced_in_vain(base: Path) -> None:
    source = """
        import comfy.model_management as mm
        import comfy.model_patcher
        mm.get_torch_device = lambda: "cpu"
        comfy.model_patcher.ModelPatcherDynamic._load_list = None
        NODE_CLASS_MAPPINGS = {}
    """
    write_pack(base, "places.py", source)
    with loaded(base) as made:
        assert made.reports["places"].error is None
        assert set(made.reports["places"].missing) == {
            "comfy.model_patcher.ModelPatcherDynamic",
            "replacing comfy.model_management.get_torch_device",
            "replacing comfy.model_patcher.ModelPatcherDynamic._load_list",
        }
        drawn(made)


def test_conditions_of_a_step_join_as_the_engine_joins_them(base: Path) -> None:
    source = """
        import comfy.samplers

        original = comfy.samplers.get_area_and_mult
        seen = comfy.samplers.seen = []

        def get_area_and_mult(conds, x_in, timestep_in):
            part = original(conds, x_in, timestep_in)
            joined = comfy.samplers.cond_cat([part.conditioning, part.conditioning])
            seen.append((
                part.input_x.shape == part.mult.shape, part.mult.min().item(),
                comfy.samplers.can_concat_cond(part, part), joined["c_crossattn"].shape[0],
            ))
            return part

        comfy.samplers.get_area_and_mult = get_area_and_mult
        NODE_CLASS_MAPPINGS = {}
    """
    write_pack(base, "joins.py", source)
    with loaded(base) as made:
        import comfy.samplers  # served while packs are loaded

        drawn(made)
        assert set(comfy.samplers.seen) == {(True, 1.0, True, 2)}


def test_the_documentation_lists_every_name_that_may_be_replaced() -> None:
    told = Path(__file__).parents[3].joinpath("docs", "custom_nodes.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", told, flags=re.MULTILINE)
    listed = {f"{module}.{name}" for module, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert listed == REPLACEABLE


def test_two_packs_wrap_one_another(base: Path) -> None:
    """Two samplers of two steps each: four evaluations."""
    for name in ("first", "second"):
        write_pack(base, f"{name}.py", wrapping(name, ["comfy.samplers.sampling_function"]))
    with loaded(base) as made:
        import comfy.sample  # served while packs are loaded

        drawn(made)
        assert len(comfy.sample.calls_of_first) == len(comfy.sample.calls_of_second) == 4


def test_what_takes_a_functions_place_decides_until_the_function_is_put_back(base: Path) -> None:
    source = """
        import comfy.samplers
        original = comfy.samplers.cfg_function
        comfy.samplers.cfg_function = lambda model, cond_pred, *args, **kwargs: cond_pred
        comfy.samplers.put_back = lambda: setattr(comfy.samplers, "cfg_function", original)
        NODE_CLASS_MAPPINGS = {}
    """
    write_pack(base, "unguided.py", source)
    with loaded(base) as made:
        import comfy.samplers  # served while packs are loaded

        unguided = drawn(made)[0]
        assert torch.equal(unguided, drawn(made, cfg=9.0)[0])
        comfy.samplers.put_back()
        assert not torch.equal(unguided, drawn(made, cfg=9.5)[0])


def test_a_sampler_and_a_schedule_that_a_pack_adds_are_offered_and_used(base: Path) -> None:
    source = """
        import torch
        from comfy.samplers import KSampler, SCHEDULER_HANDLERS, SCHEDULER_NAMES, SchedulerHandler, k_diffusion_sampling

        def sample_mine(model, x, sigmas, extra_args=None, callback=None, disable=None):
            assert sigmas.tolist() == [4.0, 0.0], sigmas
            return torch.full_like(x, 2.0)

        KSampler.SAMPLERS.insert(KSampler.SAMPLERS.index("uni_pc_bh2") + 1, "mine")
        setattr(k_diffusion_sampling, "sample_mine", sample_mine)
        SCHEDULER_HANDLERS["my_levels"] = SchedulerHandler(lambda levels, steps: torch.tensor([4.0, 0.0]))
        SCHEDULER_NAMES.append("my_levels")
        NODE_CLASS_MAPPINGS = {}
    """
    write_pack(base, "adds.py", source)
    with loaded(base) as made:
        assert made.reports["adds"].error is None
        latent = drawn(made, sampler_name="mine", scheduler="my_levels")[0]
        assert torch.allclose(latent * 0.18215, torch.tensor(2.0))
        offered = made.engine.catalogue["KSampler"].spec(made.engine.environment)
        assert [item.type[-1] for item in offered.inputs if item.name == "scheduler"] == ["my_levels"]


def test_a_sampler_of_bounds_is_given_bounds(base: Path) -> None:
    source = """
        import torch
        import comfy.k_diffusion.sampling as sampling

        original = sampling.sample_dpm_fast

        def sample_dpm_fast(model, x, sigma_min, sigma_max, n, **kwargs):
            assert 0 < sigma_min < sigma_max and n == 2
            return original(model, x, sigma_min, sigma_max, n, **kwargs)

        NODE_CLASS_MAPPINGS = {}
    """
    write_pack(base, "bounds.py", source + "    sampling.sample_dpm_fast = sample_dpm_fast\n")
    with loaded(base) as made:
        wrapped = drawn(made, sampler_name="dpm_fast")[0]
    (base / "custom_nodes" / "bounds.py").unlink()
    with loaded(base) as made:
        assert torch.allclose(wrapped, drawn(made, sampler_name="dpm_fast")[0], atol=1e-6)


def test_a_method_put_into_a_built_in_class_is_what_prompts_run(base: Path) -> None:
    source = """
        import nodes
        original = nodes.EmptyLatentImage.generate

        def generate(self, width, height, batch_size=1):
            return original(self, width * 2, height, batch_size)

        nodes.EmptyLatentImage.generate = generate
        NODE_CLASS_MAPPINGS = {}
    """
    write_pack(base, "doubles.py", source)
    with loaded(base) as made:
        assert len(drawn(made)[0]) == 4 * 8 * 16
        assert "EmptyLatentImage" in made.engine.catalogue


def test_a_class_put_into_the_table_takes_a_built_in_nodes_place_and_may_call_it(base: Path) -> None:
    source = """
        import nodes

        class Halved(nodes.EmptyLatentImage):
            def generate(self, width, height, batch_size=1):
                return super().generate(width // 2, height, batch_size)

        nodes.NODE_CLASS_MAPPINGS["EmptyLatentImage"] = Halved
        NODE_CLASS_MAPPINGS = {}
    """
    write_pack(base, "halves.py", source)
    with loaded(base) as made:
        import nodes  # served while packs are loaded

        assert len(drawn(made)[0]) == 4 * 8 * 4
        nodes.NODE_CLASS_MAPPINGS["EmptyLatentImage"] = nodes.EmptyLatentImage
        assert not isinstance(made.engine.catalogue["EmptyLatentImage"], ClassNode)
        del nodes.NODE_CLASS_MAPPINGS["SaveImage"]
        assert "SaveImage" not in made.engine.catalogue
