"""Videos that are drawn a few frames after the other: an empty latent, the sampler, and an image to begin with."""

from __future__ import annotations

from typing import Annotated

from darkroom.contract.graph.facts import NodeFacts
from darkroom.engine.diffusion.sample import Sampler
from darkroom.engine.families.wan.causal_sampler import CONFIG, FIRST_FRAMES, sample_ar_video
from darkroom.engine.families.wan.nodes.latents import empty_video, fitted, latent_of
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.sockets import IMAGE, LATENT, MODEL, SAMPLER, VAE
from darkroom.engine.nodes.widgets import Int

MODULE = "comfy_extras.nodes_ar_video"
MOST_PX, MOST_FRAMES = 8192, 1024

Side = Annotated[int, Int(min=16, max=MOST_PX, step=16)]
Length = Annotated[int, Int(min=1, max=MOST_FRAMES, step=4)]
Count = Annotated[int, Int(min=1, max=64)]


@node("EmptyARVideoLatent", display_name=None, category="model/latent/autoregressive", python_module=MODULE)
def empty_ar_video_latent(
    context: NodeContext, *, width: Side = 832, height: Side = 480, length: Length = 81, batch_size: Count = 1
) -> Annotated[LATENT, Out("LATENT")]:
    """Return an empty latent of videos of `length` frames."""
    return latent_of(empty_video(batch_size, length, width, height))


@node(
    "SamplerARVideo",
    display_name="Sampler AR Video",
    category="model/sampling/samplers",
    python_module=MODULE,
    facts=NodeFacts(sampler="lcm"),  # it evaluates the network as often
)
def sampler_ar_video(context: NodeContext, *, num_frame_per_block: Annotated[int, Int(min=1, max=64)] = 1) -> SAMPLER:
    """Draw so many latent frames of a video after the other, as the network was trained."""
    return Sampler(sample_ar_video, {"num_frame_per_block": num_frame_per_block})


@node("ARVideoI2V", display_name=None, category="model/conditioning/autoregressive", python_module=MODULE)
def ar_video_i2v(
    context: NodeContext,
    *,
    model: MODEL,
    vae: VAE,
    start_image: IMAGE,
    width: Side = 832,
    height: Side = 480,
    length: Length = 81,
    batch_size: Count = 1,
) -> tuple[Annotated[MODEL, Out("MODEL")], Annotated[LATENT, Out("LATENT")]]:
    """Let a video that is drawn frame after frame begin with an image."""
    patched = model.clone()
    first = vae.encode(fitted(start_image[:1], width, height)[..., :3])
    options = patched.model_options["transformer_options"]
    options[CONFIG] = {**options.get(CONFIG, {}), FIRST_FRAMES: first}
    return patched, latent_of(empty_video(batch_size, length, width, height))


NODES = (empty_ar_video_latent, sampler_ar_video, ar_video_i2v)
