"""Every network of ComfyUI is recognised with its configuration, or refused by its name: none is taken for another.

`comfyui_networks.json.xz` has the names and shapes of the tensors of a published network of each class in the list of
`comfy/supported_models.py` of ComfyUI 0.33.0, and of some that share a class, with the metadata by which a file is
known. They are facts about those files; ComfyUI's own detection gives each its class.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised, TensorIndex
from darkroom.engine.formats.unfilled import unfilled

PREFIXES = ("", "model.diffusion_model.")
# Class of the network -> family and variant, of those that the engine has.
HERE: Mapping[str, tuple[str, str]] = {
    "LotusD": ("sd2", "lotus"),
    "SD15": ("sd15", ""),
    "SD15_instructpix2pix": ("sd15", "edit"),
    "Stable_Zero123": ("zero123", ""),
    "SD20": ("sd2", ""),
    "SD21UnclipL": ("sd2", "unclip"),
    "SD21UnclipH": ("sd2", "unclip"),
    "SDXL": ("sdxl", ""),
    "SDXL_instructpix2pix": ("sdxl", "edit"),
    "SDXLRefiner": ("sdxl_refiner", ""),
    "SSD1B": ("sdxl", ""),
    "KOALA_700M": ("sdxl", ""),
    "KOALA_1B": ("sdxl", ""),
    "Segmind_Vega": ("sdxl", ""),
    "SD_X4Upscaler": ("sd2", "upscale"),
    "SVD_img2vid": ("svd", ""),
    "SV3D_u": ("svd", "orbit"),
    "SV3D_p": ("svd", "pose"),
    "Stable_Cascade_C": ("cascade", ""),
    "Stable_Cascade_B": ("cascade", "decoder"),
    "SD3": ("sd3", ""),
    "StableAudio": ("stable_audio", ""),
    "StableAudio3": ("stable_audio3", ""),
    "AuraFlow": ("aura_flow", ""),
    "PixArtAlpha": ("pixart", ""),
    "PixArtSigma": ("pixart", ""),
    "HunyuanDiT": ("hunyuan_dit", ""),
    "HunyuanDiT1": ("hunyuan_dit", ""),
    "Flux": ("flux", ""),
    "FluxInpaint": ("flux", "inpaint"),
    "FluxSchnell": ("flux", ""),
    "Flux2": ("flux2", ""),
    "Flux2 Klein 4B": ("flux2", ""),
    "Flux2 Klein 9B": ("flux2", ""),
    "GenmoMochi": ("mochi", ""),
    "LTXV": ("ltx_video", ""),
    "LTXV 13B": ("ltx_video", ""),
    "LTXAV": ("ltx2", ""),
    "HunyuanVideo": ("hunyuan_video", ""),
    "HunyuanVideoI2V": ("hunyuan_video", "image"),
    "HunyuanVideoSkyreelsI2V": ("hunyuan_video", "skyreels"),
    "HunyuanImage21": ("hunyuan_image", ""),
    "HunyuanVideo15": ("hunyuan_video15", ""),
    "HunyuanVideo15_SR_Distilled": ("hunyuan_video15", "super_resolution"),
    "HunyuanImage21Refiner": ("hunyuan_image_refiner", ""),
    "CosmosT2V": ("cosmos1", ""),
    "CosmosI2V": ("cosmos1", "image"),
    "CosmosT2IPredict2": ("cosmos_predict2", ""),
    "CosmosI2VPredict2": ("cosmos_predict2", "video"),
    "Anima": ("anima", ""),
    "Lumina2": ("lumina2", ""),
    "ZImage": ("z_image", ""),
    "MageFlow": ("mage_flow", ""),
    "LongCatImage": ("longcat_image", ""),
    "HiDreamO1": ("hidream_o1", ""),
    "ErnieImage": ("ernie_image", ""),
    "WAN21_T2V": ("wan", ""),
    "WAN21_T2V 1.3B": ("wan", ""),
    "WAN22_T2V": ("wan22", ""),
    "WAN21_I2V": ("wan", "image"),
    "WAN22_I2V": ("wan", "image"),
    "WAN21_FunControl2V": ("wan", "control"),
    "WAN21_Vace": ("wan", "vace"),
    "WAN21_Camera": ("wan", "camera"),
    "WAN22_Camera": ("wan", "camera"),
    "WAN22_S2V": ("wan", "sound"),
    "WAN21_HuMo": ("wan", "speech"),
    "WAN22_Animate": ("wan", "animate"),
    "WAN_Animate2": ("wan", "animate2"),
    "WAN21_CausalAR_T2V": ("wan", "causal"),
    "WAN21_FlowRVS": ("wan", "flow_rvs"),
    "WAN21_SCAIL": ("wan", "scail"),
    "WAN21_SCAIL2": ("wan", "scail2"),
    "WAN22_WanDancer": ("wan", "dancer"),
    "Hunyuan3Dv2mini": ("hunyuan3d", ""),
    "Hunyuan3Dv2": ("hunyuan3d", ""),
    "Trellis2": ("trellis2", ""),
    "TripoSplat": ("triposplat", ""),
    "HiDream": ("hidream", ""),
    "Chroma": ("chroma", ""),
    "ChromaRadiance": ("chroma_radiance", ""),
    "ZImagePixelSpace": ("z_image_pixel", ""),
    "ACEStep": ("ace_step", ""),
    "ACEStep15": ("ace_step15", ""),
    "MiniMaxMusic3": ("minimax_music3", ""),
    "Omnigen2": ("omnigen2", ""),
    "QwenImage": ("qwen_image", ""),
    "Krea2": ("krea2", ""),
    "MiniMaxH3": ("minimax_h3", ""),
    "Ideogram4": ("ideogram4", ""),
    "Kandinsky5": ("kandinsky5", ""),
    "Kandinsky5Image": ("kandinsky5_image", ""),
    "JoyImage": ("joyimage", ""),
    "Boogu": ("boogu", ""),
    "Lens": ("lens", ""),
    "CogVideoX_T2V": ("cogvideox", ""),
    "CogVideoX_I2V": ("cogvideox", "image"),
    "CogVideoX_Inpaint": ("cogvideox", "inpaint"),
    "PixelDiTT2I": ("pixeldit", ""),
    "PiD": ("pid", ""),
    "SeedVR2": ("seedvr2", ""),
    "SeedVR2 7B": ("seedvr2", "7b"),
}
# Class of the network -> name by which its files are refused.
REFUSED: Mapping[str, str] = {
    "Ovis-Image": "Ovis-Image",
    "NewBie": "NewBie",
    "Hunyuan3Dv2_1": "Hunyuan3D 2.1",
    "DepthAnything3": "Depth Anything 3",
}
# Tensors that files have beside those of the network, and those that it takes from elsewhere in the file.
READING = {"SAM3": "sam3", "SAM31": "sam3", "RT_DETR_v4": "rt_detr"}
"""Networks that read images and denoise nothing, with their family here."""

UNUSED = re.compile(r"projectors\..*|.*\.cross_attn\.(add_[qkv]_proj|to_add_out)\..*|motion_encoder\..*\.kernel")
ELSEWHERE = re.compile(r"conditioner\..*")


@cache
def networks() -> Mapping[str, TensorIndex]:
    """Return the tensors and the metadata of each network."""
    data = json.loads(lzma.decompress(Path(__file__).with_name("comfyui_networks.json.xz").read_bytes()))
    return {
        name: TensorIndex({key: tuple(shape) for key, shape in entry["tensors"].items()}, entry.get("metadata", {}))
        for name, entry in data.items()
    }


def behind(prefix: str, index: TensorIndex) -> TensorIndex:
    return TensorIndex({prefix + name: shape for name, shape in index.shapes.items()}, index.metadata)


def test_every_class_is_here_or_has_a_name() -> None:
    assert HERE.keys() | REFUSED.keys() | READING.keys() == networks().keys()
    assert len({name.partition(" ")[0] for name in networks()} - {"NewBie", "Ovis-Image", "WAN22_I2V"}) == 101


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", REFUSED)
def test_a_network_that_is_not_here_is_refused_by_its_name(name: str, prefix: str) -> None:
    with pytest.raises(NotRecognised) as refused:
        registry.recognise(behind(prefix, networks()[name]))
    assert refused.value.found == f"a network of {REFUSED[name]}, a family that this engine does not have"


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", READING)
def test_a_network_that_reads_images_is_built_whole(name: str, prefix: str) -> None:
    index = behind(prefix, networks()[name])
    found = registry.recognise_vision(index.shapes)
    assert found is not None
    family, names = found
    shapes = registry.shapes_under(names, index.shapes)
    with unfilled():
        network = family.network.build(family.network.configure(shapes))
    assert family.name == READING[name]
    assert {key: tuple(weight.shape) for key, weight in network.state_dict().items()} == shapes
    with pytest.raises(NotRecognised, match=f"{family.label}, which reads images and denoises nothing"):
        registry.recognise(index)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", HERE)
def test_a_network_that_is_here_has_its_family_and_variant(name: str, prefix: str) -> None:
    found = registry.recognise(behind(prefix, networks()[name]))
    assert (found.family.name, found.match.variant) == HERE[name]


@pytest.mark.parametrize("name", HERE)
def test_its_configuration_builds_the_network_of_the_file(name: str) -> None:
    index = networks()[name]
    found = registry.recognise(index)
    network = found.family.denoiser
    own = registry.shapes_under(found.match.names, index.shapes)
    with unfilled():
        built = network.build(network.as_described(network.configure(own), dict(index.metadata)))
    wanted = {key: tuple(tensor.shape) for key, tensor in built.state_dict().items() if not ELSEWHERE.fullmatch(key)}
    left = {key for key in own if key not in wanted}
    assert {key: own.get(key) for key in wanted} == wanted
    assert {key for key in left if not UNUSED.fullmatch(key)} == set()


@pytest.mark.parametrize("key", ["model_type", "causal_ar"])
@pytest.mark.parametrize(
    "config", ["", "[]", "{", "[" * 100_000, '{"transformer": 1}', '{"transformer": {"%s": "t2v"}}']
)
def test_other_metadata_do_not_change_what_a_file_is(config: str, key: str) -> None:
    index = TensorIndex(networks()["WAN21_T2V"].shapes, {"config": config.replace("%s", key)})
    assert registry.recognise(index).family.name == "wan"
