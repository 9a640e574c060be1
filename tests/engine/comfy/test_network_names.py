"""Networks, their layers and their hooks, as packs find them under ComfyUI's names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from darkroom.engine.comfy.names.comfy import model_base
from darkroom.engine.comfy.names.comfy.ldm.modules import attention
from darkroom.engine.diffusion.model_sampling import DiscreteSchedule, EdmContinuous, EpsDiscrete, VDiscrete
from darkroom.engine.diffusion.model_sampling_variants import DistilledSchedule
from darkroom.engine.diffusion.model_type import ModelType, model_type_of
from darkroom.engine.families.registry import family_named
from tests.engine.comfy.loading import loaded, write_pack

PROBE = """
    import comfy.hooks, comfy.model_base, comfy_extras.nodes_hooks, comfy_extras.nodes_model_advanced
    from comfy.model_patcher import PatcherInjection

    class Probe:
        INPUT_TYPES = classmethod(lambda cls: {"required": {}})
        RETURN_TYPES = ("STRING",)
        FUNCTION = "probe"

        def probe(self):
            class Merged(comfy_extras.nodes_hooks.CreateHookModelAsLora):
                pass

            kind = comfy.model_base.ModelType.V_PREDICTION
            made = comfy.model_base.model_sampling(type("Config", (), {"sampling_settings": {"timesteps": 10}}), kind)
            new = [["c", {}]]
            hooks = comfy.hooks.HookGroup()
            one, = comfy.hooks.set_conds_props_and_combine(
                [[["a", {}]]], [new], hooks=hooks, timesteps_range=(0.25, 0.5)
            )
            default, = comfy.hooks.set_default_conds_and_combine([[]], [new])
            return (
                " ".join(map(str, (
                    comfy.model_base.SDXL.__name__ != comfy.model_base.SVD_img2vid.__name__,
                    made.num_timesteps,
                    issubclass(type(made), comfy.model_sampling.V_PREDICTION),
                    [entry[0] for entry in one],
                    one[1][1]["hooks"] is hooks,
                    one[1][1]["start_percent"],
                    default[0][1],
                    Merged.FUNCTION,
                ))),
            )

    import comfy.model_sampling
    NODE_CLASS_MAPPINGS = {"Probe": Probe}
"""


def test_a_pack_finds_kinds_of_networks_hooks_on_conditioning_and_the_nodes_of_hooks(tmp_path: Path) -> None:
    write_pack(tmp_path, "probe", PROBE)
    with loaded(tmp_path) as packs:
        assert not packs.reports["probe"].missing
        expected = "True 10 True ['a', 'c'] True 0.25 {'default': True} create_hook"
        assert packs.shown("Probe") == expected


@pytest.mark.parametrize(
    ("sampling", "kind"),
    [
        (EpsDiscrete(), ModelType.EPS),
        (VDiscrete(), ModelType.V_PREDICTION),
        (EdmContinuous(), ModelType.EDM),
    ],
)
def test_a_parameterisation_has_comfyuis_name(sampling: object, kind: ModelType) -> None:
    assert model_type_of(sampling) is kind


def test_betas_are_spaced_as_the_settings_say() -> None:
    def last_and_middle(kind: str) -> list[float]:
        settings = {"beta_schedule": kind, "linear_start": 0.01, "linear_end": 0.04, "timesteps": 3}
        schedule = DiscreteSchedule(SimpleNamespace(sampling_settings=settings))
        kept = 1 / (1 + schedule.sigmas.double() ** 2)  # [3], the cumulated share of the image
        return [round(float(1 - kept[1] / kept[0]), 5), round(float(1 - kept[2] / kept[1]), 5)]

    assert last_and_middle("linear") == [0.0225, 0.04]
    assert last_and_middle("sqrt_linear") == [0.025, 0.04]
    with pytest.raises(ValueError, match="beta_schedule: unknown"):
        last_and_middle("round")


def test_a_subclass_sets_how_many_timesteps_a_distilled_schedule_keeps() -> None:
    class Hundred(DistilledSchedule):
        original_timesteps = 100

    assert (len(Hundred().sigmas), Hundred().timestep(Hundred().sigma_max).item()) == (100, 999)


def test_layers_take_comfyuis_parameters_and_compute_attention() -> None:
    layer = attention.CrossAttention(query_dim=6, context_dim=4, heads=2, dim_head=3, operations=torch.nn)
    x, context = torch.rand(1, 5, 6), torch.rand(1, 7, 4)
    q, k, v = (part(y).view(1, -1, 2, 3).transpose(1, 2) for part, y in
               ((layer.to_q, x), (layer.to_k, context), (layer.to_v, context)))  # fmt: skip
    expected = torch.softmax(q @ k.transpose(-1, -2) / 3**0.5, dim=-1) @ v
    assert torch.allclose(layer(x, context), layer.to_out(expected.transpose(1, 2).reshape(1, 5, 6)), atol=1e-6)
    gated = attention.FeedForward(6, dim_out=3, mult=2, glu=True, operations=torch.nn)
    assert [tuple(weight.shape) for weight in gated.state_dict().values()] == [(24, 6), (24,), (3, 12), (3,)]
    assert gated(x).shape == (1, 5, 3)


def test_the_engines_own_layers_are_instances_of_comfyuis() -> None:
    from darkroom.engine.layers.unet_layers import CrossAttention, FeedForward

    assert isinstance(FeedForward(4), attention.FeedForward)
    assert isinstance(CrossAttention(4, 4, 2), attention.CrossAttention)
    assert not isinstance(FeedForward(4), attention.CrossAttention)


def test_a_wrapped_attention_function_gives_way_to_a_nodes_override_once() -> None:
    @attention.wrap_attn
    def attend(q: torch.Tensor, **options: Any) -> torch.Tensor:
        return q + 1

    def override(function: Any, q: torch.Tensor, **options: Any) -> torch.Tensor:
        called: torch.Tensor = attend(q, **options)
        return called * 10

    options = {"optimized_attention_override": override}
    assert attend(torch.ones(1)).item() == 2
    assert attend(torch.ones(1), transformer_options=options).item() == 20


TYPES = """
    import torch
    import comfy.model_management as management
    from comfy.k_diffusion.utils import FolderOfImages

    class Types:
        INPUT_TYPES = classmethod(lambda cls: {"required": {"folder": ("STRING",)}})
        RETURN_TYPES = ("STRING",)
        FUNCTION = "types"

        def types(self, folder):
            device = management.get_torch_device()
            casts = [management.unet_manual_cast(dtype, device) for dtype in (torch.float32, torch.float8_e4m3fn)]
            found = FolderOfImages(folder, transform=lambda image: image.size)
            return (f"{casts} {management.loaded_models()} {[item for item in found]}",)

    NODE_CLASS_MAPPINGS = {"Types": Types}
"""


def test_a_pack_finds_the_type_to_compute_in_and_the_images_of_a_folder(tmp_path: Path) -> None:
    images = tmp_path / "pictures" / "below"
    images.mkdir(parents=True)
    Image.new("L", (3, 2)).save(images / "a.PNG")
    (images / "note.txt").write_text("no image")
    write_pack(tmp_path, "types", TYPES)
    with loaded(tmp_path) as packs:
        assert packs.shown("Types", folder=str(tmp_path / "pictures")) == "[None, torch.float32] [] [((3, 2),)]"


@pytest.mark.parametrize(
    ("family", "general", "own"),
    [("sd15", "BaseModel", "SD15_instructpix2pix"), ("sdxl", "SDXL", "SDXL_instructpix2pix")],
)
def test_networks_that_edit_images_have_comfyuis_classes(family: str, general: str, own: str) -> None:
    found = family_named(family)
    edits = {name for name in found.variants if name.startswith("edit")}
    assert edits and edits == {name for name, kind in found.variant_types.items() if issubclass(kind, model_base.IP2P)}
    for kind in (found.variant_types[name] for name in edits):
        assert kind is getattr(model_base, own) and issubclass(kind, getattr(model_base, general))
