"""Nodes that create, save, encode and decode latents."""

from __future__ import annotations

import json
from typing import Annotated

import torch

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.diffusion.nested_latent import first_stream, streams_of
from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.models.video_vae import VideoVae
from darkroom.engine.nodes.base import NodeContext, NodeEnvironment, NodeOutput
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.file_content import content_hash
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.sockets import FRAMES, IMAGE, LATENT, VAE, ExtraPngInfo, Prompt
from darkroom.engine.nodes.widgets import FilePrefix, InputFile, Int

MAX_SIDE_PX = 16384
OLD_LATENT_SCALE = 0.18215  # files without a format version hold scaled latents


@node("EmptyLatentImage", display_name="Empty Latent Image", category="model/latent")
def empty_latent_image(
    context: NodeContext,
    *,
    width: Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=8)] = 512,
    height: Annotated[int, Int(min=16, max=MAX_SIDE_PX, step=8)] = 512,
    batch_size: Annotated[int, Int(min=1, max=4096)] = 1,
) -> LATENT:
    """Create a new batch of empty latent images to be denoised via sampling."""
    return {"samples": torch.zeros([batch_size, 4, height // 8, width // 8]), "downscale_ratio_spacial": 8}


@node(
    "VAEDecode",
    display_name="VAE Decode",
    category="model/latent",
    facts=NodeFacts(tiled_by="VAEDecodeTiled", items="alone", decodes="samples"),
)
def vae_decode(context: NodeContext, *, samples: LATENT, vae: VAE) -> FRAMES:
    """Decodes latent images back into pixel space images."""  # noqa: D401 - ComfyUI's words
    if isinstance(vae, VideoVae) and context.output_is_streamed():
        frames = vae.frame_stream(first_stream(samples["samples"]))
        if frames is not None:
            return frames
    return as_images(vae.decode(first_stream(samples["samples"])))


def as_images(decoded: torch.Tensor) -> torch.Tensor:
    """Return the frames of videos [B, F, H, W, C] as images [B * F, H, W, C], and images as they are."""
    return decoded.flatten(0, 1) if decoded.ndim == 5 else decoded


@node("VAEEncode", display_name="VAE Encode", category="model/latent", facts=NodeFacts(tiled_by="VAEEncodeTiled"))
def vae_encode(context: NodeContext, *, pixels: IMAGE, vae: VAE) -> LATENT:
    return {"samples": vae.encode(vae.with_channels(pixels))}


@node(
    "SaveLatent",
    display_name="Save Latent",
    category="model/latent",
    is_output=True,
    python_module="comfy_extras.nodes_latent",
)
def save_latent(
    context: NodeContext,
    *,
    samples: LATENT,
    filename_prefix: Annotated[str, FilePrefix()] = "latents/ComfyUI",
    prompt: Prompt = None,
    extra_pnginfo: ExtraPngInfo = None,
) -> Annotated[NodeOutput, Socket("LATENT"), Out("samples")]:
    if streams_of(samples["samples"]):
        raise ValueError(
            "samples: a latent of several streams is in no file; got one of video and audio, expected one of them "
            "(LTXVSeparateAVLatent)"
        )
    output = context.files.save_path(filename_prefix, suffix=".latent")
    metadata: dict[str, str] = {}
    if context.embed_metadata:
        metadata["prompt"] = "" if prompt is None else json.dumps(prompt)
        metadata |= {key: json.dumps(value) for key, value in (extra_pnginfo or {}).items()}
    tensors = {
        "latent_tensor": samples["samples"].detach().to("cpu").contiguous(),
        "latent_format_version_0": torch.tensor([]),
    }
    context.files.submit(lambda: write_safetensors(output.path, tensors, metadata))
    return NodeOutput({"latents": [output.shown()]}, (samples,))


def _latent_content(environment: NodeEnvironment, latent: object) -> str | None:
    return content_hash(environment, latent)


@node(
    "LoadLatent",
    display_name="Load Latent",
    category="model/latent",
    python_module="comfy_extras.nodes_latent",
    fingerprint=_latent_content,
)
def load_latent(context: NodeContext, *, latent: Annotated[str, InputFile(".latent")]) -> LATENT:
    file = SafetensorsFile(context.files.input_path(latent))
    if "latent_tensor" not in file.tensors:
        found = f"tensors {', '.join(sorted(file.tensors)) or '(none)'}"
        raise BadModelFile(file.path.name, found, "a latent saved by SaveLatent ('latent_tensor')")
    factor = 1.0 if "latent_format_version_0" in file.tensors else 1.0 / OLD_LATENT_SCALE
    return {"samples": file.tensor("latent_tensor").float() * factor}


NODES = (empty_latent_image, vae_decode, vae_encode, save_latent, load_latent)
