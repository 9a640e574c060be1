"""TAESD in a VAE's place: two files of the folder of previews, named without their endings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.registry import families, tiny_autoencoders
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.models.kinds.tiny_autoencoder import TinyAutoencoder
from darkroom.engine.nodes.library.model.loaders import VaeFile
from tests.engine.nodes.small_store import small_store


class Environment:
    def __init__(self, *files: str) -> None:
        self.files = files

    def model_files(self, kind: str) -> list[str]:
        return list(self.files) if kind == "vae_approx" else [f"{kind}.safetensors"]

    def model_problem(self, kind: str, name: str) -> None:
        return None


def write_halves(models: Path, name: str) -> TinyAutoencoder:
    torch.manual_seed(0)
    latent_format = tiny_autoencoders()[name]
    channels = latent_format.latent_channels
    network = TinyAutoencoder(channels, scaled=latent_format.process_in, unscaled=latent_format.process_out)
    for half in ("encoder", "decoder"):
        weights = network.get_submodule(f"taesd_{half}").state_dict()
        write_safetensors(models / "vae_approx" / f"{name}_{half}.safetensors", dict(weights))
    return network.eval().requires_grad_(False)


def test_each_familys_is_known() -> None:
    names = {family.latent_format.taesd_decoder_name for family in families()} - {None}
    assert {f"{name}_decoder" for name in tiny_autoencoders()} == names


@pytest.mark.parametrize(
    ("name", "channels", "factor", "shift"),
    [
        ("taesd", 4, 0.18215, 0.0), ("taesdxl", 4, 0.13025, 0.0), ("taesd3", 16, 1.5305, 0.0609),
        ("taef1", 16, 0.3611, 0.1159),
    ],
)  # fmt: skip
def test_latents_are_scaled_as_the_family_does(
    name: str, channels: int, factor: float, shift: float, tmp_path: Path
) -> None:
    """The numbers are those of ComfyUI's VAELoader."""
    network = write_halves(tmp_path, name)
    vae = small_store(tmp_path).vae(name)
    assert (vae.latent_channels, vae.downscale_ratio) == (channels, 8)
    image = torch.rand(1, 16, 24, 3)
    latent = vae.encode(image)
    expected = network.taesd_encoder(image.movedim(-1, 1)) / factor + shift
    assert latent.shape == (1, channels, 2, 3) and torch.allclose(latent, expected, atol=1e-5)
    drawn = network.taesd_decoder((latent - shift) * factor).clamp(0, 1)
    assert torch.allclose(vae.decode(latent).movedim(-1, 1), drawn, atol=1e-5)
    assert vae.decode_tiled(latent, tile_x=8, tile_y=8, overlap=2).shape == (1, 16, 24, 3)


def test_it_is_offered_where_both_halves_are_there() -> None:
    marker = VaeFile("vae", also=("taesd", "taesdxl"))
    files = ("taesd_decoder.pth", "taesdxl_decoder.safetensors", "taesdxl_encoder.safetensors")
    assert marker.type_in(Environment(*files)) == ["vae.safetensors", "taesdxl"]  # type: ignore[arg-type]


def test_a_missing_half_and_a_decoder_of_other_channels_are_named(tmp_path: Path) -> None:
    write_halves(tmp_path, "taesd")
    (tmp_path / "vae_approx" / "taesd_encoder.safetensors").rename(tmp_path / "vae_approx" / "other.safetensors")
    with pytest.raises(BadModelFile, match="taesd_encoder"):
        small_store(tmp_path).vae("taesd")
    write_halves(tmp_path, "taesd")
    weights = {"1.weight": torch.zeros(64, 16, 3, 3)}
    write_safetensors(tmp_path / "vae_approx" / "taesd_decoder.safetensors", weights)
    with pytest.raises(BadModelFile, match="4 latent channels"):
        small_store(tmp_path).vae("taesd")
