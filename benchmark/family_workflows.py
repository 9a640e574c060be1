"""Workflows that sample with any family's small checkpoint, from a prompt or from an image.

They need the engine's own packages alone, so that a machine with little else can run them.
"""

from __future__ import annotations

from typing import Any

from benchmark.small_models import node
from darkroom.engine.families.base import ModelFamily
from darkroom.engine.formats.unfilled import unfilled

# The conditioning of families that take an image in place of a prompt, by name.
BY_IMAGE = {
    "svd": node(
        "SVD_img2vid_Conditioning", clip_vision=["1", 1], init_image=["2", 0], vae=["1", 2], width=64, height=64,
        video_frames=1, motion_bucket_id=127, fps=6, augmentation_level=0.0,
    ),
    "zero123": node(
        "StableZero123_Conditioning", clip_vision=["1", 1], init_image=["2", 0], vae=["1", 2], width=64, height=64,
        batch_size=1, elevation=10.0, azimuth=30.0,
    ),
    "hunyuan3d": node("Hunyuan3Dv2Conditioning", clip_vision_output=["4", 0]),
    "seedvr2": node("SeedVR2Conditioning", model=["1", 0], vae_conditioning=["5", 0]),
    "trellis2": node("Trellis2Conditioning", clip_vision_model=["1", 1], image=["2", 0]),
    "triposplat": node("TripoSplatConditioning", clip_vision=["1", 1], vae=["6", 2], image=["2", 0]),
}  # fmt: skip
# Nodes of families that restore the image they are given: at their size, and as a latent.
RESTORING = {
    "2": node("EmptyImage", width=64, height=64, batch_size=1, color=0x3366AA),
    "4": node("SeedVR2Preprocess", resized_images=["2", 0]),
    "5": node("VAEEncode", pixels=["4", 0], vae=["1", 2]),
}
# Nodes of families that decode the latent of another: an empty one, with the texts.
DECODING = {
    "6": node("EmptySD3LatentImage", width=16, height=16, batch_size=1),
    **{
        number: node("PiDConditioning", positive=[text, 0], latent=["6", 0], latent_format="flux", degrade_sigma=0.0)
        for number, text in (("7", "3"), ("8", "4"))
    },
}
# Nodes of families whose latents become shapes, not images: the empty latent, and what saves the shape.
OF_SHAPES = {
    "hunyuan3d": {
        "4": node("CLIPVisionEncode", clip_vision=["1", 1], image=["2", 0], crop="center"),
        "5": node("EmptyLatentHunyuan3Dv2", resolution=32, batch_size=1),
        "10": node("VAEDecodeHunyuan3D", samples=["9", 0], vae=["1", 2], num_chunks=1000, octree_resolution=16),
    },
    "trellis2": {
        "5": node("EmptyTrellis2LatentStructure", batch_size=1),
        "10": node("VaeDecodeStructureTrellis2", samples=["9", 0], vae=["1", 2], resolution="32"),
    },
}
SAVED_SHAPE = {
    "11": node("VoxelToMeshBasic", voxel=["10", 0], threshold=-1.0),
    "21": node("SaveGLB", mesh=["11", 0], filename_prefix="shape"),
}

# Nodes of families whose latents become Gaussians: the VAE of the image, the latent's tokens, and an image of them.
OF_SPLATS = {
    "6": node("DarkroomRandomCheckpoint", family="flux2", scale="small", seed=1),
    "10": node("VAEDecodeTripoSplat", samples=["9", 0], vae=["1", 2], num_gaussians=32768, seed=1),
    "11": node(
        "RenderSplat", splat=["10", 0], width=64, height=64, frames=1, splat_scale=1.0, sharpen=2.0,
        headlight_shading=0.0, opacity_threshold=0.0, render_style="color", background="#000000",
    ),
    "19": node("LTXVSeparateAVLatent", av_latent=["9", 0]),
    "20": node("SaveLatent", samples=["19", 0], filename_prefix="latent"),
    "21": node("SaveImage", images=["11", 0], filename_prefix="image"),
}  # fmt: skip

IMAGE_PX = 64
LYRICS = "[verse]\nla la"
CAPTIONED = "MiniMaxMusic3TextEncode"  # whose text is a caption, not tags
SONGS: dict[str, dict[str, Any]] = {  # inputs by the node that encodes a song
    CAPTIONED: {"lyrics": LYRICS, "seed": 3, "max_duration": 0.2, "cfg_scale": 1.5, "top_k": 50},
    "TextEncodeAceStepAudio": {"lyrics": LYRICS, "lyrics_strength": 1.0},
    "TextEncodeAceStepAudio1.5": {
        "lyrics": LYRICS, "seed": 3, "bpm": 96, "duration": 1.0, "timesignature": "4", "language": "en",
        "keyscale": "E minor", "generate_audio_codes": True, "cfg_scale": 2.0, "temperature": 0.85, "top_p": 0.9,
        "top_k": 0, "min_p": 0.0,
    },
}  # fmt: skip


USUAL_CELL_PX = 8  # of most families


def cell_px(family: ModelFamily) -> int:
    """Return the side of a cell of the family's latents, in pixels."""
    with unfilled():
        vae: Any = family.vae.build(family.scales["small"].vae)
    return int(getattr(vae, "upscale_ratio", vae.downscale_ratio))


def empty_side_px(family: ModelFamily) -> int:
    """Return the side of `EmptyLatentImage`, which is resized to the latent format's cells, for images of 64 pixels."""
    return IMAGE_PX * family.latent_format.spacial_downscale_ratio // cell_px(family)


def image(source: dict[str, Any], family: ModelFamily) -> dict[str, Any]:
    """A workflow of two steps that saves its latent and its image or audio, from a prompt."""
    if family.default.audio_latent is not None:
        return audio(source, family)
    side = empty_side_px(family)
    decodes = "PiDConditioning" in family.nodes
    texts = ("7", "8") if decodes else ("3", "4")
    return {
        "3": node("CLIPTextEncode", clip=["1", 1], text="a (red:1.2) fox"),
        "4": node("CLIPTextEncode", clip=["1", 1], text=""),
        "5": node("EmptyLatentImage", width=side, height=side, batch_size=1),
        **sampled(source, [texts[0], 0], [texts[1], 0], ["5", 0]),
        **saved_stream(family),
        **(DECODING if decodes else {}),
    }


def saved_stream(family: ModelFamily) -> dict[str, Any]:
    """Return the nodes that save the video of a latent which has audio too; none for other families."""
    latent_format = family.parameterisation.latent_format or family.latent_format
    if not latent_format.stream_channels:
        return {}
    return {
        "19": node("LTXVSeparateAVLatent", av_latent=["9", 0]),
        "20": node("SaveLatent", samples=["19", 0], filename_prefix="latent"),
    }


def audio(source: dict[str, Any], family: ModelFamily) -> dict[str, Any]:
    """The same workflow with audio of a second, or as long as a song that a language model writes."""
    defaults = family.default
    assert defaults.audio_latent is not None and defaults.audio_text is not None
    prompt = sampled(source, ["3", 0], ["4", 0], ["5", 0])
    for number, text in (("3", "a (loud:1.2) drum"), ("4", "")):
        song = SONGS.get(defaults.audio_text)
        name = "text" if song is None else "caption" if defaults.audio_text == CAPTIONED else "tags"
        written = {name: text, **(song or {})}
        prompt[number] = node(defaults.audio_text, clip=["1", 1], **written)
    seconds = ["3", 1] if defaults.audio_text == CAPTIONED else 1.0
    prompt["5"] = node(defaults.audio_latent, seconds=seconds, batch_size=1)
    prompt["10"] = node("VAEDecodeAudio", samples=["9", 0], vae=["1", 2])
    prompt["21"] = node("SaveAudio", audio=["10", 0], filename_prefix="sound")
    return prompt


def image_of_checkpoint(family: ModelFamily) -> dict[str, Any]:
    """The same workflow with the family's checkpoint, from an image where the family takes no prompt."""
    file = f"{family.name}.safetensors"
    if family.text:
        return image(node("CheckpointLoaderSimple", ckpt_name=file), family)
    shape = OF_SHAPES.get(family.name)
    others = RESTORING if "SeedVR2Preprocess" in family.nodes else {} if shape is None else shape | SAVED_SHAPE
    latent = ["5", 0] if others else ["3", 2]
    others = OF_SPLATS if "VAEDecodeTripoSplat" in family.nodes else others
    return {
        "2": node("EmptyImage", width=80, height=64, batch_size=1, color=0x3366AA),
        "3": BY_IMAGE[family.name],
        **sampled(node("ImageOnlyCheckpointLoader", ckpt_name=file), ["3", 0], ["3", 1], latent),
        **others,
    }


def sampled(source: dict[str, Any], positive: list[Any], negative: list[Any], latent: list[Any]) -> dict[str, Any]:
    return {
        "1": source,
        "9": node(
            "KSampler", model=["1", 0], positive=positive, negative=negative, latent_image=latent, seed=5, steps=2,
            cfg=4.0, sampler_name="euler", scheduler="normal", denoise=1.0,
        ),
        "10": node("VAEDecode", samples=["9", 0], vae=["1", 2]),
        "20": node("SaveLatent", samples=["9", 0], filename_prefix="latent"),
        "21": node("SaveImage", images=["10", 0], filename_prefix="picture"),
    }  # fmt: skip
