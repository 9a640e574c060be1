"""SUPIR: its files, its adapters, what controls a UNet by an image, and what the node refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.sdxl.nodes.restoration import supir_apply
from darkroom.engine.families.sdxl.nodes.supir_patch import (
    HIGHEST_SIGMA,
    RestoringGuidance,
    SupirEnlargePatch,
    SupirJoinPatch,
    SupirPatch,
)
from darkroom.engine.families.sdxl.supir import (
    AttentionAdapter,
    AttentionSpec,
    ShiftAdapter,
    ShiftSpec,
    Supir,
    SupirConfig,
    adapters_of,
    block_adapters,
)
from darkroom.engine.families.sdxl.supir_files import SUPIR
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.unet import UnetConfig, UnetModel
from darkroom.engine.layers.unet_layers import Upsample
from darkroom.engine.layers.vae_kl import VaeConfig
from darkroom.engine.models.kinds.load_model_patch import load_model_patch
from darkroom.engine.models.load import LoadTypes

FAMILY = registry.family_named("sdxl")
SMALL: UnetConfig = FAMILY.scales["small"].denoiser
FULL: UnetConfig = FAMILY.scales["full"].denoiser
ENCODER = VaeConfig(base_channels=32, level_channels=(32, 32), blocks_per_level=1)
SIZE = 8  # cells of a latent


def control_of(unet: UnetConfig, encoder: VaeConfig | None = None) -> SupirConfig:
    half = UnetConfig(
        unet.in_channels, unet.model_channels, unet.model_channels, unet.input_blocks, unet.middle_block,
        output_blocks=(), head_channels=unet.head_channels, label_dim=unet.label_dim,
    )  # fmt: skip
    return SupirConfig(half, adapters_of(unet), 16, encoder)


def weighted(network: Any) -> Any:
    torch.manual_seed(0)
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.05)
    return network.requires_grad_(False)


def in_file(network: Supir, *, is_whole: bool) -> dict[str, torch.Tensor]:
    """The weights under the names of a file: of the published ones with the UNet's prefixes."""
    prefixes = {"denoise_encoder.": "first_stage_model.denoise_encoder."}
    if is_whole:
        prefixes |= {
            "control_model.": "model.control_model.", "project_modules.": "model.diffusion_model.project_modules.",
        }  # fmt: skip
    found = {}
    for name, weight in network.state_dict().items():
        prefix = next((own for own in prefixes if name.startswith(own)), "")
        found[prefixes.get(prefix, "") + name.removeprefix(prefix)] = weight
    return found | {f"{prefixes.get('control_model.', 'control_model.')}mask_LQ": torch.zeros(1)}


class _Held:
    """Stands for the patcher of the control's network, or of a MODEL."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.model_options: dict[str, Any] = {"transformer_options": {"patches": {}}}


def test_adapters_of_the_full_network_are_the_published_ones() -> None:
    adapters = adapters_of(FULL)
    shifts = [(spec.channels, spec.joined) for spec in adapters if isinstance(spec, ShiftSpec)]
    channels = [320] * 4 + [640] * 3 + [1280] * 3
    joined = [320] * 2 + [640] * 3 + [1280] * 4 + [0]
    assert shifts == list(zip(channels, joined, strict=True))
    attending = {index: spec for index, spec in enumerate(adapters) if isinstance(spec, AttentionSpec)}
    assert attending == {3: AttentionSpec(320, 640), 7: AttentionSpec(640, 1280)}
    found = block_adapters(adapters)
    assert [(item.feature, item.shift) for item in found] == list(
        zip(range(8, -1, -1), (10, 9, 8, 6, 5, 4, 2, 1, 0), strict=True)
    )
    assert {index: item.attention for index, item in enumerate(found) if item.attention is not None} == {2: 7, 5: 3}


@pytest.mark.parametrize("is_whole", [False, True])
def test_files_of_the_full_network_are_known_by_names_and_shapes(is_whole: bool) -> None:
    config = control_of(FULL, ENCODER)
    with unfilled():
        network = Supir(config)
    shapes = {name: tuple(weight.shape) for name, weight in in_file(network, is_whole=is_whole).items()}
    found = registry.recognise_model_patch(shapes)
    assert found is not None
    family, kind, names = found
    assert (family.name, kind) == ("sdxl", SUPIR)
    assert kind.configure(registry.shapes_under(names, shapes)) == config
    assert names.keys() == network.state_dict().keys()


@pytest.mark.parametrize("encoder", [None, ENCODER])
def test_a_control_is_loaded_from_its_file(tmp_path: Path, encoder: VaeConfig | None) -> None:
    network = weighted(Supir(control_of(SMALL, encoder)))
    path = tmp_path / "supir.safetensors"
    write_safetensors(path, in_file(network, is_whole=True), {})
    loaded: Any = load_model_patch(path, LoadTypes())
    assert loaded.config == network.config
    weights = loaded.state_dict()
    assert all(torch.equal(weights[name], item) for name, item in network.state_dict().items())


@pytest.mark.parametrize("lacking", ["project_modules.1.zero_mul.bias", "control_model.time_embed.0.weight"])
def test_a_file_that_lacks_a_weight_is_refused(tmp_path: Path, lacking: str) -> None:
    tensors = in_file(weighted(Supir(control_of(SMALL))), is_whole=False)
    del tensors[lacking]
    write_safetensors(tmp_path / "supir.safetensors", tensors, {})
    with pytest.raises(BadModelFile):
        load_model_patch(tmp_path / "supir.safetensors", LoadTypes())


@torch.no_grad()
def test_adapters_change_nothing_at_strength_0() -> None:
    feature, skip, before = (torch.randn(1, channels, 4, 4) for channels in (32, 32, 64))
    shift = weighted(ShiftAdapter(ShiftSpec(32, 32, 64), 8))
    torch.testing.assert_close(shift(feature, skip, before, 0.0), torch.cat([before, skip], dim=1))
    assert not torch.allclose(shift(feature, skip, before, 1.0), torch.cat([before, skip], dim=1))
    attending = weighted(AttentionAdapter(AttentionSpec(32, 64)))
    torch.testing.assert_close(attending(feature, before, 0.0), before)
    whole, half = attending(feature, before, 1.0), attending(feature, before, 0.5)
    torch.testing.assert_close(whole - before, 2 * (half - before))


class _Run:
    """A small UNet with the control, and one evaluation's inputs."""

    def __init__(self, first: float = 1.0, last: float = 1.0) -> None:
        self.unet = weighted(UnetModel(SMALL))
        held: Any = _Held(weighted(Supir(control_of(SMALL))))
        self.patch = SupirPatch(held, torch.randn(1, 4, SIZE, SIZE), first, last)
        self.patches: dict[str, list[Any]] = {
            "middle_block_after_patch": [self.patch],
            "output_block_patch": [SupirJoinPatch(self.patch)],
            "forward_timestep_embed_patch": [(Upsample, SupirEnlargePatch(self.patch))],
        }

    @torch.no_grad()
    def drawn(self, sigma: float, patches: dict[str, Any], size: int = SIZE) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        x, context = torch.randn(2, 4, size, size, generator=generator), torch.zeros(2, 3, SMALL.context_dim)
        options = {"patches": patches, "sigmas": torch.full((2,), sigma)}
        out: torch.Tensor = self.unet(
            x, torch.tensor([500.0] * 2), context, torch.zeros(2, SMALL.label_dim), transformer_options=options
        )
        return out


def test_a_control_weighs_by_the_noise_level() -> None:
    run = _Run(first=1.0, last=0.0)
    plain = run.drawn(1.0, {})
    strong, weak = run.drawn(2 * HIGHEST_SIGMA, run.patches), run.drawn(HIGHEST_SIGMA / 2, run.patches)
    assert not torch.allclose(strong, plain) and not torch.allclose(strong, weak)
    torch.testing.assert_close(run.drawn(HIGHEST_SIGMA, run.patches), strong)
    torch.testing.assert_close(run.drawn(0.0, run.patches), plain)
    constant = _Run(first=0.5, last=0.5)
    torch.testing.assert_close(constant.drawn(1.0, constant.patches), constant.drawn(9.0, constant.patches))


def test_a_latent_of_another_size_than_the_image_is_refused() -> None:
    run = _Run()
    with pytest.raises(
        ValueError, match=r"image: its latent has another size .* got \[8, 8\] cells, expected \[4, 4\]"
    ):
        run.drawn(1.0, run.patches, size=4)


def test_guidance_draws_to_the_image_by_the_noise_level() -> None:
    image = torch.ones(1, 4, 2, 2)
    guidance = RestoringGuidance(image, power=2.0, lowest=0.5)
    denoised = torch.zeros(2, 4, 2, 2)
    torch.testing.assert_close(guidance({"denoised": denoised, "sigma": torch.tensor([0.5, 0.5])}), denoised)
    at_highest = guidance({"denoised": denoised, "sigma": torch.full((2,), HIGHEST_SIGMA)})
    torch.testing.assert_close(at_highest, image.expand(2, -1, -1, -1))
    at_half = guidance({"denoised": denoised, "sigma": torch.full((2,), HIGHEST_SIGMA / 2)})
    torch.testing.assert_close(at_half, torch.full_like(denoised, 0.25))


def test_a_patch_behind_one_that_joins_the_skip_connection_is_refused() -> None:
    run = _Run()
    behind = {
        **run.patches,
        "output_block_patch": [*run.patches["output_block_patch"], lambda h, skip, options: (h, skip)],
    }
    with pytest.raises(ValueError, match="model: a patch of skip connections comes behind one that joins them"):
        run.drawn(1.0, behind)


def test_parts_that_do_not_fit_are_refused() -> None:
    with unfilled():
        unets = {name: UnetModel(config) for name, config in (("small", SMALL), ("full", FULL))}
        held: Any = _Held(Supir(control_of(SMALL)))
    vae: Any = SimpleNamespace(latent_dim=2, latent_channels=16)
    given: Any = {"context": None, "vae": vae, "image": torch.zeros(1, 16, 16, 3)}

    def model(name: str) -> Any:
        return _Held(SimpleNamespace(diffusion_model=unets[name]))

    def apply(model: Any, model_patch: Any) -> Any:
        return supir_apply(given["context"], model=model, model_patch=model_patch, vae=vae, image=given["image"])

    with pytest.raises(ValueError, match="model_patch: another kind"):
        apply(model("small"), _Held(torch.nn.Identity()))
    with pytest.raises(ValueError, match="model: its network is not the one that this SUPIR controls"):
        apply(model("full"), held)
    with pytest.raises(ValueError, match="vae: it is not Stable Diffusion XL's; got one of 16 channels, expected 4"):
        apply(model("small"), held)
    restoring = model("small")
    patch = SupirPatch(held, torch.zeros(1, 4, 2, 2), 1.0, 1.0)
    restoring.model_options["transformer_options"]["patches"]["middle_block_after_patch"] = [patch]
    with pytest.raises(ValueError, match="model: SUPIR restores one image"):
        apply(restoring, held)
