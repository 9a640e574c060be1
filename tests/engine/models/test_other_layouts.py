"""Checkpoints in the layout of diffusers, pickled ones, and the layouts of upscalers, to the same networks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.registry import default_family
from darkroom.engine.families.sd15.unet_files import PREFIX
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.layers.diffusers_names import VAE_ATTENTION, unet_names
from darkroom.engine.models.kinds.load_upscaler import load_upscaler
from darkroom.engine.models.kinds.upscaler import RrdbConfig, RrdbNet
from darkroom.engine.models.load import LoadTypes, load_checkpoint, load_unet
from tests.tiny_checkpoint import make_tiny_checkpoint


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("layouts"))


def test_a_unet_in_diffusers_layout_has_the_same_weights(tiny: Path, tmp_path: Path) -> None:
    file = SafetensorsFile(tiny)
    theirs = {
        name: file.tensor(PREFIX + ours)
        for name, ours in unet_names(default_family().scales["small"].denoiser).items()
        if PREFIX + ours in file.tensors
    }
    write_safetensors(tmp_path / "unet.safetensors", theirs)
    unet = load_unet(tmp_path / "unet.safetensors", LoadTypes()).unet
    single = load_checkpoint(tiny, LoadTypes()).unet
    assert unet.config == single.config
    assert all(torch.equal(weight, single.state_dict()[name]) for name, weight in unet.state_dict().items())


def test_a_vae_of_diffusers_names_its_attention_otherwise() -> None:
    assert {VAE_ATTENTION[name] for name in ("to_q", "query")} == {"q"}


def test_a_pickled_checkpoint_loads_to_the_same_weights(tiny: Path, tmp_path: Path) -> None:
    file = SafetensorsFile(tiny)
    torch.save({"state_dict": {name: file.tensor(name) for name in file.tensors}}, tmp_path / "tiny.ckpt")
    pickled, single = (load_checkpoint(path, LoadTypes()) for path in (tmp_path / "tiny.ckpt", tiny))
    for part in ("unet", "text_encoder", "vae"):
        ours, theirs = (getattr(loaded, part).state_dict() for loaded in (pickled, single))
        assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {"a": Path("/")}}, tmp_path / "bad.ckpt")
    with pytest.raises(BadModelFile, match="more than weights"):
        load_checkpoint(tmp_path / "bad.ckpt", LoadTypes())


def test_every_layout_of_an_upscaler_is_the_same_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = RrdbNet(RrdbConfig(3, 3, 8, 4, num_blocks=1, num_doublings=2))
    new = {name.replace("conv_ups.0", "conv_up1").replace("conv_ups.1", "conv_up2"): weight
           for name, weight in network.state_dict().items()}  # fmt: skip
    places = {"conv_first": "0", "conv_up1": "3", "conv_up2": "6", "conv_hr": "8", "conv_last": "10"}
    old = {}
    for name, weight in new.items():
        layer, _, kind = name.rpartition(".")
        if layer in places:
            old[f"model.{places[layer]}.{kind}"] = weight
        elif layer == "conv_body":
            old[f"model.1.sub.1.{kind}"] = weight
        else:
            _, block, dense, conv = layer.split(".")
            old[f"model.1.sub.{block}.{dense.upper()}.{conv}.0.{kind}"] = weight
    image = torch.rand(1, 3, 6, 5)
    for number, tensors in enumerate((new, old, {f"params_ema.{name}": weight for name, weight in new.items()})):
        path = tmp_path / f"{number}.pth"
        torch.save(tensors, path)
        loaded = load_upscaler(path)
        assert loaded.scale == 4
        torch.testing.assert_close(loaded(image), network(image))


@pytest.mark.parametrize("side", [(32, 30), (31, 33), (3, 5), (1, 2)])
def test_an_image_is_padded_to_four_pixels_before_pixels_become_channels(side: tuple[int, int]) -> None:
    torch.manual_seed(0)
    network = RrdbNet(RrdbConfig(3, 3, 8, 4, num_blocks=1, num_doublings=2, shuffle=2)).requires_grad_(False)
    image = torch.rand(1, 3, *side)
    height, width = (size - size % -4 for size in side)
    rows = [_reflected(index, side[0]) for index in range(height)]
    columns = [_reflected(index, side[1]) for index in range(width)]
    padded = image[:, :, rows][:, :, :, columns]
    expected = network(padded)[:, :, : side[0] * 2, : side[1] * 2]
    assert network.scale == 2
    torch.testing.assert_close(network(image), expected)


def _reflected(index: int, size: int) -> int:
    """Return the pixel that stands at an index behind the edge: reflected, then the last one reflected again."""
    return index if index < size else max(0, 2 * (size - 1) - index)
