"""TripoSplat's latents and Gaussians: how points are distributed and drawn, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.diffusion.denoiser import ModelConfig
from darkroom.engine.families import registry
from darkroom.engine.families.triposplat.denoiser import TripoSplatDenoiser
from darkroom.engine.families.triposplat.nodes import NODES
from darkroom.engine.families.triposplat.vae import distributed
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.layers.dinov2 import Dinov2, Dinov2Config
from darkroom.engine.media.splats.splat import Splat
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.models.kinds.clip_vision_value import ClipVision
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.random_weights import random_networks
from darkroom.engine.models.splat_vae import SplatVae
from darkroom.engine.models.vae_of import vae_of
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.settings import EngineSettings

FAMILY = registry.family_named("triposplat")
CALLS = {item.class_type: item.function for item in NODES}
STREAMS = ((1, 8192, 16), (1, 1, 5))
TOKENS = torch.ones(1, 16 + 5, 64)
LATENT = torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(3))


def call(class_type: str, **inputs: Any) -> Any:
    context = NodeContext("1", "p", CancelToken(), lambda value, total: None, None, None, None)
    return CALLS[class_type](context, **inputs)


def kept(network: torch.nn.Module) -> Any:
    return ModelMemory(EngineSettings(cpu=True)).keep("splats", network, role="vae")


@pytest.fixture(scope="module")
def vae() -> SplatVae:
    made = vae_of(kept(random_networks("small", 1, LoadTypes(), family=FAMILY)[2]))
    assert isinstance(made, SplatVae)
    return made


def decoded(vae: SplatVae, num_gaussians: int, seed: int = 0) -> Splat:
    out: Splat = call(
        "VAEDecodeTripoSplat", samples={"samples": LATENT}, vae=vae, num_gaussians=num_gaussians, seed=seed
    )
    return out


# --- points ----------------------------------------------------------------------------------------------------------


def test_points_are_distributed_by_shares_to_within_one_and_none_is_lost() -> None:
    draw = torch.Generator().manual_seed(1)
    shares = torch.softmax(torch.randn(2, 3, 8, generator=draw), dim=-1)
    counts = torch.tensor([[1000, 1, 0], [7, 64, 100_000]])
    found = distributed(shares, counts, draw)
    assert torch.equal(found.sum(dim=-1), counts)
    assert (found - shares * counts[..., None]).abs().max() <= 1.0 + 1e-5 * 100_000


def test_all_points_of_a_cell_are_in_the_only_child_with_a_share() -> None:
    shares = torch.zeros(1, 1, 8)
    shares[..., 5] = 1.0
    found = distributed(shares, torch.tensor([[50]]), torch.Generator().manual_seed(1))
    assert found.tolist() == [[[0, 0, 0, 0, 0, 50, 0, 0]]]


def test_shares_of_nothing_are_equal_ones() -> None:
    found = distributed(torch.zeros(1, 1, 8), torch.tensor([[80]]), torch.Generator().manual_seed(1))
    assert found.tolist() == [[[10] * 8]]


# --- decoding --------------------------------------------------------------------------------------------------------


def test_a_seed_chooses_the_points(vae: SplatVae) -> None:
    first, again, other = decoded(vae, 32768, 1), decoded(vae, 32768, 1), decoded(vae, 32768, 2)
    assert torch.equal(first.positions, again.positions) and not torch.equal(first.positions, other.positions)


def test_numbers_of_gaussians_are_those_asked_for(vae: SplatVae) -> None:
    splat = decoded(vae, 49152)
    assert splat.numbers() == [49152, 49152] and splat.sh.shape == (2, 49152, 1, 3)
    assert (splat.scales > 0).all() and ((splat.opacities > 0) & (splat.opacities < 1)).all()
    assert torch.allclose(splat.rotations.norm(dim=-1), torch.ones(()), atol=1e-5)


def test_a_latent_of_another_vae_is_refused(vae: SplatVae) -> None:
    with pytest.raises(ValueError, match=r"samples: no latent of splats; got shape \[1, 4, 8, 8\], expected \[batch"):
        call("VAEDecodeTripoSplat", samples={"samples": torch.zeros(1, 4, 8, 8)}, vae=vae)


@pytest.mark.parametrize("node", ["VAEDecodeTripoSplat", "TripoSplatSamplingPreview"])
def test_a_vae_of_images_is_refused(node: str) -> None:
    images = vae_of(kept(random_networks("small", 1, LoadTypes(), family=registry.family_named("flux2"))[2]))
    with pytest.raises(ValueError, match="vae: none of splats; got a VAE of images"):
        call(node, vae=images, **({"samples": {"samples": LATENT}} if "Decode" in node else {"model": None}))


def test_a_vae_of_splats_neither_encodes_nor_decodes_images(vae: SplatVae) -> None:
    with pytest.raises(ValueError, match="expected to be decoded by VAEDecodeTripoSplat"):
        vae.decode(LATENT)
    with pytest.raises(ValueError, match="got images, expected a VAE of those"):
        vae.encode(torch.zeros(1, 16, 16, 3))


# --- conditioning ----------------------------------------------------------------------------------------------------


def test_an_image_encoder_of_another_kind_is_refused(vae: SplatVae) -> None:
    config = Dinov2Config(num_layers=1, width=64, inner_width=64, is_gated=False)
    with unfilled():
        encoder = ClipVision(kept(Dinov2(config)))
    with pytest.raises(ValueError, match="clip_vision: no DINOv3; got an encoder of another kind"):
        call("TripoSplatConditioning", clip_vision=encoder, vae=vae, image=torch.zeros(1, 64, 64, 3))


def conditions(shapes: tuple[tuple[int, ...], ...], references: torch.Tensor) -> dict[str, Any]:
    with unfilled():
        network = FAMILY.denoiser.build(FAMILY.scales["small"].denoiser)
    model = TripoSplatDenoiser(network, config=ModelConfig(family=FAMILY, latent_format=FAMILY.latent_format()))
    return model.extra_conds(
        noise=torch.zeros(1, 1, 131077), device=torch.device("cpu"), latent_shapes=shapes, cross_attn=TOKENS,
        reference_latents=[references],
    )  # fmt: skip


def test_tokens_and_latent_of_an_image_are_the_networks_inputs() -> None:
    references = torch.ones(1, 128, 4, 4)
    inputs = conditions(STREAMS, references)
    assert inputs["c_crossattn"].cond is TOKENS and inputs["ref_latents"].cond[0] is references


@pytest.mark.parametrize(
    ("shapes", "channels", "side", "message"),
    [
        (STREAMS[:1], 128, 4, "latent_image: no latent with a camera; got 1 streams, expected the 2"),
        (STREAMS, 16, 4, r"of another VAE than Flux.2's; got shape \[1, 16, 4, 4\], expected 128 channels"),
        (STREAMS, 128, 5, "more cells than the image has tokens; got 25, expected at most 21"),
    ],
)
def test_a_condition_of_another_model_is_refused(
    shapes: tuple[tuple[int, ...], ...], channels: int, side: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        conditions(shapes, torch.ones(1, channels, side, side))
