"""The work that each family declares, beside the operations of its full network at its default size.

Networks on the device `meta` compute nothing, but their operations are counted as they would run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily
from darkroom.engine.formats.unfilled import unfilled

NUM_WORDS: Final = 256
TOLERANCE: Final = 0.1
CELL_PX: Final = {  # of the latent: pixels a side; 8 for the others
    "ltx_video": 32, "ltx2": 32, "wan22": 16, "cascade": 42, "hunyuan_image": 32, "hunyuan_image_refiner": 16,
    "flux2": 16, "chroma_radiance": 1, "qwen_image21": 16, "hunyuan_video15": 16,
    "mage_flow": 16, "ernie_image": 16, "hidream_o1": 1, "z_image_pixel": 1,
}  # fmt: skip
WITH_FRAMES: Final = frozenset({
    "hunyuan_video", "wan", "wan22", "ltx_video", "ltx2", "mochi", "cosmos1", "cosmos_predict2", "qwen_image", "krea2",
    "hunyuan_image_refiner", "hunyuan_video15", "kandinsky5", "seedvr2", "cogvideox",
})  # fmt: skip
"""Families whose latents have an axis of frames, also for an image."""
LATENTS: Final = {
    "stable_audio": (1, 64, 1024), "stable_audio3": (1, 256, 650),
    "hunyuan3d": (1, 64, 3072), "ace_step": (1, 8, 16, 1292),
    "ace_step15": (1, 64, 3000), "minimax_music3": (1, 128, 10335),
    "trellis2": (1, 32, 16, 16, 16), "triposplat": (1, 8192, 16),
}  # fmt: skip
MORE_CHANNELS: Final = {  # of the image that they are given, or of a mask
    "svd": 4, "zero123": 4, "hunyuan_image_refiner": 64, "hunyuan_video15": 33, "kandinsky5": 17,
}  # fmt: skip
TEXT_WIDTHS: Final = {
    "ltx2": 7680, "ace_step": 768, "ace_step15": 1024, "aura_flow": 2048, "cascade": 1280, "flux2": 15360,
    "hunyuan3d": 1536, "krea2": 30720, "minimax_music3": 32768,
    "mage_flow": 2560, "ernie_image": 3072, "longcat_image": 3584, "hidream_o1": 1,
    "lumina2": 2304, "omnigen2": 2048, "qwen_image": 3584, "z_image": 2560, "hunyuan_image": 3584,
    "z_image_pixel": 2560,
    "kandinsky5": 3584, "kandinsky5_image": 3584, "hunyuan_video15": 3584,
    "hunyuan_image_refiner": 3584, "seedvr2": 5120, "sd15": 768, "zero123": 768, "svd": 1024, "sd2": 1024, "sdxl": 2048,
    "sdxl_refiner": 1280, "trellis2": 1024, "triposplat": 1280, "stable_audio": 768, "stable_audio3": 768,
    "cosmos1": 1024, "cosmos_predict2": 1024,
    "hunyuan_dit": 1024,
}  # fmt: skip
T5_WIDTH: Final = 4096
SLOW_TO_COUNT: Final = "hidream"  # its experts choose tokens, which shapes alone do not tell


def latent_of(family: ModelFamily) -> tuple[int, ...]:
    if family.name in LATENTS:
        return LATENTS[family.name]
    default, side_px = family.default, CELL_PX.get(family.name, 8)
    cells = [round(length / side_px / 2) * 2 for length in (default.height, default.width)]
    if family.name in WITH_FRAMES:
        cells.insert(0, ((default.frames or 1) - 1) // (default.frames_ratio or 1) + 1)
    channels = family.latent_format.latent_channels + MORE_CHANNELS.get(family.name, 0)
    return ((default.frames or 1) if family.name == "svd" else 1, channels, *cells)


def more_inputs(name: str, batch: int) -> dict[str, Any]:
    """Inputs of the network beside the latent, the time and the text."""
    empty = torch.empty
    if name in ("flux", "hunyuan_video"):
        return {"y": empty(1, 768), "guidance": empty(1)}
    if name in ("flux2", "chroma", "chroma_radiance", "hunyuan_image_refiner"):
        return {"guidance": empty(1)}
    if name == "hunyuan_dit":
        masks = {"text_embedding_mask": empty(1, 77), "text_embedding_mask_t5": empty(1, NUM_WORDS)}
        return {**masks, "encoder_hidden_states_t5": empty(1, NUM_WORDS, 2048)}
    if name == "cascade":
        return {"clip_text": empty(1, 77, 1280), "clip_text_pooled": empty(1, 1, 1280), "clip_img": empty(1, 1, 768)}
    if name == "stable_audio":
        return {"seconds_start": 0.0, "seconds_total": 47.0}
    if name == "stable_audio3":
        return {"seconds_total": 60.0, "local_add_cond": empty(1, 257, 650)}
    if name == "ace_step":
        return {"lyric_token_idx": torch.zeros(1, 200, dtype=torch.long)}
    if name == "minimax_music3":
        return {"conditioning_scale": empty(1, 1, 1)}
    if name == "ace_step15":
        codes = torch.zeros(1, 600, dtype=torch.long)
        return {"lyric_embed": empty(1, 200, 1024), "refer_audio": empty(1, 64, 3000), "audio_codes": codes}
    if name == "hidream_o1":
        turns = empty(1, NUM_WORDS + 64 * 64, 64)
        return {"input_ids": torch.zeros(1, NUM_WORDS, dtype=torch.long), "cosines": turns, "sines": turns}
    if name == "seedvr2":
        _, _, *cells = latent_of(registry.family_named(name))
        return {"condition": empty(1, 17, *cells)}
    if name == "triposplat":
        return {"ref_latents": [empty(1, 128, 64, 64)]}
    if name == "trellis2":
        return {"stage": "structure_model", "turns": empty(1, 16**3, 2, 64)}
    widths = {"kandinsky5": 768, "kandinsky5_image": 768, "sd3": 2048, "sdxl": 2816, "sdxl_refiner": 2560, "svd": 768}
    more = {"num_frames": batch} if name == "svd" else {}
    return {"y": empty(batch, widths[name]), **more} if name in widths else more


def measured_tflop(family: ModelFamily) -> float:
    with unfilled():
        network = family.denoiser.build(family.scales["full"].denoiser)
    latent = latent_of(family)
    words = 77 if family.name == "sd15" else NUM_WORDS
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        is_splat = family.name == "triposplat"  # whose latent has a camera, and whose text is an image's tokens
        words = 64 * 64 + 5 if is_splat else words
        text = (latent[0], words, TEXT_WIDTHS.get(family.name, T5_WIDTH))
        given = more_inputs(family.name, latent[0])
        pooled = given.pop("y", None)
        noisy = [torch.empty(*latent), torch.empty(1, 1, 5)] if is_splat else torch.empty(*latent)
        network(noisy, torch.empty(latent[0]), torch.empty(*text), pooled, None, {}, **given)
    return int(counter.get_total_flops()) / 1e12


COUNTED = [family for family in registry.families() if family.name != SLOW_TO_COUNT]
FAST = ("sd15", "z_image", "wan")


def each(families: Iterable[ModelFamily]) -> pytest.MarkDecorator:
    """Parametrise a test by families; of most it is slow."""
    shown = [pytest.param(item, marks=() if item.name in FAST else pytest.mark.slow, id=item.name) for item in families]
    return pytest.mark.parametrize("family", shown)


@each(COUNTED)
def test_the_declared_work_is_that_of_the_full_network(family: ModelFamily) -> None:
    assert family.default.tflop == pytest.approx(measured_tflop(family), rel=TOLERANCE)


@each(registry.families())
def test_the_declared_weights_are_those_of_the_full_network(family: ModelFamily) -> None:
    with unfilled():
        network = family.denoiser.build(family.scales["full"].denoiser)
    num_weights = sum(weight.numel() for weight in network.parameters())
    assert family.default.billions * 1e9 == pytest.approx(num_weights, rel=0.01)


def test_an_image_of_the_default_family_costs_one() -> None:
    assert registry.default_family().default.cost == pytest.approx(1.0)


def test_each_familys_cost_is_between_its_work_and_its_steps() -> None:
    """A small network costs its launches, a large one its operations, relative to the default family's."""
    unit = registry.default_family().default
    for family in registry.families():
        default = family.default
        passes = 1 if default.cfg == 1.0 else 2
        by_work = default.steps * passes * default.tflop / (unit.steps * 2 * unit.tflop)
        assert 0.9 * min(by_work, 0.5) < default.cost < max(1.1 * by_work, 2.0 * default.steps / unit.steps), (
            family.name
        )
