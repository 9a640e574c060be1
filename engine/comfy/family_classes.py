"""Classes of ComfyUI's by which packs tell kinds of models apart: this engine's values of that kind are instances.

ComfyUI has a class for each kind of configuration (`comfy.supported_models`), of network (`comfy.model_base`) and of
text encoders; this engine has one, with the family as a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from darkroom.engine.comfy.missing_symbol import not_supported
from darkroom.engine.text.clip_encoding import TextEncoderSet

Kind = tuple[str, str]  # family and variant
ReadKind = Callable[[object], Kind | None]

# Class of a configuration -> the class that it extends, and the families (or `family:variant`) that it stands for.
CONFIGURATIONS: Mapping[str, tuple[str, str]] = {
    "SD15": ("BASE", "sd15: sd15:inpaint"),
    "SD15_instructpix2pix": ("SD15", "sd15:edit"),
    "SD20": ("BASE", "sd2: sd2:inpaint sd2:depth sd2:pose"),
    "SD21UnclipL": ("SD20", "sd2:unclip"),
    "SD21UnclipH": ("SD20", "sd2:unclip"),
    "LotusD": ("SD20", "sd2:lotus"),
    "SD_X4Upscaler": ("SD20", "sd2:upscale"),
    "SDXLRefiner": ("BASE", "sdxl_refiner"),
    "SDXL": ("BASE", "sdxl: sdxl:inpaint"),
    "SDXL_instructpix2pix": ("SDXL", "sdxl:edit sdxl:edit_scaled"),
    "SVD_img2vid": ("BASE", "svd:"),
    "SV3D_u": ("SVD_img2vid", "svd:orbit"),
    "SV3D_p": ("SV3D_u", "svd:pose"),
    "Stable_Zero123": ("BASE", "zero123"),
    "Stable_Cascade_C": ("BASE", "cascade:"),
    "Stable_Cascade_B": ("Stable_Cascade_C", "cascade:decoder"),
    "SD3": ("BASE", "sd3"),
    "StableAudio": ("BASE", "stable_audio"),
    "StableAudio3": ("StableAudio", "stable_audio3"),
    "AuraFlow": ("BASE", "aura_flow"),
    "PixArtAlpha": ("BASE", "pixart"),
    "PixelDiTT2I": ("BASE", "pixeldit"),
    "PiD": ("PixelDiTT2I", "pid"),
    "HunyuanDiT": ("BASE", "hunyuan_dit"),
    "Flux": ("BASE", "flux:"),
    "FluxInpaint": ("Flux", "flux:inpaint"),
    "Flux2": ("Flux", "flux2"),
    "Lens": ("BASE", "lens"),
    "GenmoMochi": ("BASE", "mochi"),
    "LTXV": ("BASE", "ltx_video"),
    "LTXAV": ("LTXV", "ltx2"),
    "MiniMaxH3": ("BASE", "minimax_h3"),
    "HunyuanVideo": ("BASE", "hunyuan_video:"),
    "HunyuanVideoI2V": ("HunyuanVideo", "hunyuan_video:image"),
    "HunyuanVideoSkyreelsI2V": ("HunyuanVideo", "hunyuan_video:skyreels"),
    "HunyuanImage21": ("HunyuanVideo", "hunyuan_image"),
    "HunyuanImage21Refiner": ("HunyuanVideo", "hunyuan_image_refiner"),
    "HunyuanVideo15": ("HunyuanVideo", "hunyuan_video15:"),
    "HunyuanVideo15_SR_Distilled": ("HunyuanVideo", "hunyuan_video15:super_resolution"),
    "CosmosT2V": ("BASE", "cosmos1:"),
    "CosmosI2V": ("CosmosT2V", "cosmos1:image"),
    "CosmosT2IPredict2": ("BASE", "cosmos_predict2:"),
    "CosmosI2VPredict2": ("CosmosT2IPredict2", "cosmos_predict2:video"),
    "Anima": ("BASE", "anima"),
    "Lumina2": ("BASE", "lumina2"),
    "ZImage": ("Lumina2", "z_image"),
    "ZImagePixelSpace": ("ZImage", "z_image_pixel"),
    "WAN21_T2V": ("BASE", "wan:"),
    "WAN21_I2V": ("WAN21_T2V", "wan:image"),
    "WAN21_FunControl2V": ("WAN21_T2V", "wan:control"),
    "WAN21_Vace": ("WAN21_T2V", "wan:vace"),
    "WAN21_Camera": ("WAN21_T2V", "wan:camera"),
    "WAN22_S2V": ("WAN21_T2V", "wan:sound"),
    "WAN21_HuMo": ("WAN21_T2V", "wan:speech"),
    "WAN22_Animate": ("WAN21_T2V", "wan:animate"),
    "WAN_Animate2": ("WAN21_T2V", "wan:animate2"),
    "WAN21_CausalAR_T2V": ("WAN21_T2V", "wan:causal"),
    "WAN21_FlowRVS": ("WAN21_T2V", "wan:flow_rvs"),
    "WAN21_SCAIL": ("WAN21_T2V", "wan:scail"),
    "WAN21_SCAIL2": ("WAN21_T2V", "wan:scail2"),
    "WAN22_WanDancer": ("WAN21_T2V", "wan:dancer"),
    "WAN22_T2V": ("WAN21_T2V", "wan22"),
    "Hunyuan3Dv2": ("BASE", "hunyuan3d"),
    "Trellis2": ("BASE", "trellis2"),
    "SeedVR2": ("BASE", "seedvr2"),
    "HiDream": ("BASE", "hidream"),
    "HiDreamO1": ("BASE", "hidream_o1"),
    "Chroma": ("BASE", "chroma"),
    "ChromaRadiance": ("Chroma", "chroma_radiance"),
    "ACEStep": ("BASE", "ace_step"),
    "ACEStep15": ("BASE", "ace_step15"),
    "Omnigen2": ("BASE", "omnigen2"),
    "Boogu": ("Omnigen2", "boogu"),
    "QwenImage": ("BASE", "qwen_image"),
    "MageFlow": ("BASE", "mage_flow"),
    "JoyImage": ("BASE", "joyimage"),
    "Ideogram4": ("BASE", "ideogram4"),
    "Krea2": ("BASE", "krea2"),
    "LongCatImage": ("BASE", "longcat_image"),
    "ErnieImage": ("BASE", "ernie_image"),
    "MiniMaxMusic3": ("BASE", "minimax_music3"),
    "CogVideoX_T2V": ("BASE", "cogvideox:"),
    "CogVideoX_I2V": ("CogVideoX_T2V", "cogvideox:image"),
    "CogVideoX_Inpaint": ("CogVideoX_T2V", "cogvideox:inpaint"),
    "Kandinsky5": ("BASE", "kandinsky5"),
    "Kandinsky5Image": ("Kandinsky5", "kandinsky5_image"),
}
# Networks that are of one class here and have one of their own there, and those that extend such a one there.
NETWORKS: Mapping[str, tuple[str, str]] = {
    "Flux": ("BaseModel", "flux"),
    "LongCatImage": ("Flux", "longcat_image"),
    "Flux2": ("Flux", "flux2"),
    "Chroma": ("Flux", "chroma"),
    "ChromaRadiance": ("Chroma", "chroma_radiance"),
    "SD3": ("BaseModel", "sd3"),
    "AuraFlow": ("BaseModel", "aura_flow"),
    "HiDream": ("BaseModel", "hidream"),
    "Lumina2": ("BaseModel", "lumina2 z_image"),
    "ZImagePixelSpace": ("Lumina2", "z_image_pixel"),
    "QwenImage": ("BaseModel", "qwen_image"),
    "MageFlow": ("QwenImage", "mage_flow"),
    "Omnigen2": ("BaseModel", "omnigen2"),
    "Boogu": ("Omnigen2", "boogu"),
}


class FamilyClass(type):
    """Metaclass of such a class. It cannot be called, and a class that a pack derives from it has no instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        own: Any = vars(cls)
        if "entries" not in own:
            return False
        kind = own["read_kind"](instance)
        if kind is None:
            return False
        return not own["entries"] or any(entry in (kind[0], f"{kind[0]}:{kind[1]}") for entry in own["entries"])

    def __call__(cls, *args: object, **kwargs: object) -> object:
        """Raise `NotSupported`: a network of a configuration is loaded from a file."""
        raise not_supported(f"{cls.__module__}.{cls.__name__}()")


def family_classes(
    module: str, table: Mapping[str, tuple[str, str]], base: type, read_kind: ReadKind
) -> dict[str, type]:
    """Return the classes of a table by name; those that are not extended there extend `base`.

    `read_kind` gives family and variant of a value, None for one of another type.
    """
    made: dict[str, type] = {}
    for name, (parent, _) in table.items():
        entries = frozenset(_entries(name, table))
        members = {"__module__": module, "entries": entries, "read_kind": staticmethod(read_kind)}
        made[name] = FamilyClass(name, (made.get(parent, base),), members)
    return made


def text_classes(module: str, families: Mapping[str, str]) -> dict[str, type]:
    """Return classes of sets of text encoders by name, each for the families named."""

    def read_kind(value: object) -> Kind | None:
        return (getattr(value.family, "name", ""), "") if isinstance(value, TextEncoderSet) else None

    return family_classes(module, {name: ("", entries) for name, entries in families.items()}, object, read_kind)


def _entries(name: str, table: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the families of a class and of the classes that extend it."""
    own = table[name][1].split()
    return own + [entry for other, (parent, _) in table.items() if parent == name for entry in _entries(other, table)]
