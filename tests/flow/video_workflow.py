"""A workflow that draws a short clip with a small random model and saves it as MP4 and as WEBM."""

from __future__ import annotations

from typing import Any

NUM_FRAMES = 33
FPS = 8.0
SIZES_PX = {"wan": (64, 48), "ltx_video": (96, 64)}
LATENTS = {"wan": "EmptyHunyuanLatentVideo", "ltx_video": "EmptyLTXVLatentVideo"}


def clip_workflow(family: str) -> dict[str, Any]:
    """Return the workflow; node `mp4` saves the one file, `webm` the other."""
    width, height = SIZES_PX[family]

    def node(class_type: str, **inputs: Any) -> dict[str, Any]:
        return {"class_type": class_type, "inputs": inputs}

    sampling = {"seed": 1, "steps": 2, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}
    return {
        "1": node("DarkroomRandomCheckpoint", family=family, scale="small", seed=1),
        "2": node("CLIPTextEncode", clip=["1", 1], text="a boat"),
        "3": node(LATENTS[family], width=width, height=height, length=NUM_FRAMES, batch_size=1),
        "4": node("KSampler", model=["1", 0], positive=["2", 0], negative=["2", 0], latent_image=["3", 0], **sampling),
        "5": node("VAEDecode", samples=["4", 0], vae=["1", 2]),
        "6": node("CreateVideo", images=["5", 0], fps=FPS),
        "mp4": node("SaveVideo", video=["6", 0], filename_prefix="clip", format="auto", codec="auto"),
        "webm": node("SaveWEBM", images=["5", 0], filename_prefix="clip", codec="vp9", fps=FPS, crf=32.0),
    }
