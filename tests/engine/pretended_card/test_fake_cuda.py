"""Networks of every family on torch's fake CUDA tensors, in the types of a card: no operation mixes devices.

A prompt is encoded, what comes of it goes by way of the host to the denoising network, and the VAE decodes and encodes,
as in a run. Meta tensors, with which the other tests here compute, have another device type than those of a card has.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from darkroom.engine.diffusion.conditions import convert_conditioning, with_model_inputs
from darkroom.engine.diffusion.stored_dtype import stored_dtype
from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily, Network, TokenizerParts
from darkroom.engine.families.trellis2.transformer import GRID_SIDE
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.memory.dtypes import text_encoder_types, unet_types, vae_types
from darkroom.engine.models.clip import Entries
from darkroom.engine.models.load import LoadedDenoiser, LoadTypes
from darkroom.engine.models.random_weights import random_networks
from darkroom.engine.models.store import denoiser
from darkroom.engine.settings import DtypeSettings
from darkroom.engine.text.clip_tokens import BytePairs, TokenizerSet
from tests.engine.layers.small_transformers import TRANSFORMERS, Drawn
from tests.engine.pretended_card.card import PretendedCard
from tests.engine.pretended_card.fake_tensors import CUDA, copied_to_cuda, fake_cuda, move_to_cuda, put, taken

FACTS = PretendedCard().facts()
DEFAULTS = DtypeSettings()
BATCH = 2
CELLS = 8  # a side
IMAGE_PX = 64
FRAMES = 9
# UNets, transformers, and those of videos and of audio; the others are slow tests.
SHORT_SONG: dict[str, Any] = {"duration": 1.0, "temperature": 0.0}  # codes of a second, none of which is drawn
DECODERS = ("minimax_music3",)  # families whose autoencoder has no encoder
WRITTEN: dict[str, dict[str, Any]] = {"minimax_music3": {"conditioning_scale": torch.ones(1, 1, 1)}}
QUICK = ("sd15", "sdxl", "flux", "qwen_image", "wan", "stable_audio")
IMAGE_TOKENS = 5  # of families that are given an image in place of a prompt

every_family = pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, id=family.name, marks=() if family.name in QUICK else pytest.mark.slow)
        for family in registry.families()
    ],
)


@every_family
def test_a_prompt_is_encoded_and_a_step_computed_on_cuda_alone(family: ModelFamily) -> None:
    network, text, vae = networks(family)
    with fake_cuda(), torch.no_grad():
        (condition,) = convert_conditioning(encoded(family, text))
        move_to_cuda(network)
        model = denoiser(LoadedDenoiser(family, "", family.parameterisation, network))
        packs = family.latent_format.vae_channels is not None
        channels = family.latent_format.latent_channels if packs else vae.latent_channels
        x = torch.empty(BATCH, channels, *latent_shape(family, vae), device=CUDA)
        inputs = with_model_inputs(condition, model, x, CUDA, "positive", {})["model_conds"]
        given = {name: value.process_cond(BATCH).cond for name, value in inputs.items()}
        denoised = model.apply_model(x, torch.empty(BATCH, device=CUDA), **given)
    assert (denoised.device, denoised.shape) == (CUDA, x.shape)


@every_family
def test_a_vae_decodes_and_encodes_on_cuda_alone(family: ModelFamily) -> None:
    _, _, vae = networks(family)
    dtype = stored_dtype(vae)
    is_of_shapes = getattr(vae, "is_of_shapes", False)
    is_of_voxels = getattr(vae, "is_of_voxels", False)
    has_encoder = not is_of_shapes and not is_of_voxels and family.name not in DECODERS
    options = {"octree_resolution": 4, "num_chunks": 100} if is_of_shapes else {}
    with fake_cuda(), torch.no_grad():
        move_to_cuda(vae)
        latents = torch.empty(1, vae.latent_channels, *latent_shape(family, vae), dtype=dtype, device=CUDA)
        assert vae.decode(latents, **options).device == CUDA
        if has_encoder:
            source = torch.empty(1, *source_shape(family, vae), dtype=dtype, device=CUDA)
            assert vae.encode(source).shape[:2] == latents.shape[:2]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_transformer_or_its_control_computes_on_cuda_alone(name: str, dtype: torch.dtype) -> None:
    with unfilled():
        network = TRANSFORMERS[name].build().requires_grad_(False).eval().to(dtype)
    inputs = TRANSFORMERS[name].inputs(Drawn(dtype))
    with fake_cuda(), torch.no_grad():
        move_to_cuda(network)
        out = network(**copied_to_cuda(inputs))
    tensors = [item for item in tree_leaves(out) if isinstance(item, torch.Tensor)]
    assert {(item.device, item.dtype) for item in tensors} == {(CUDA, dtype)}


@pytest.mark.parametrize("compute", [lambda x, y: x + y, lambda x, y: x @ y, torch.nn.functional.conv1d])
def test_operations_on_tensors_of_two_devices_raise(compute: Any) -> None:
    with fake_cuda():
        x, y = torch.empty(3, 3, 3, device=CUDA), torch.empty(3, 3, 3)
        assert compute(x, y.to(CUDA)).device == CUDA
        with pytest.raises(RuntimeError, match="cpu"):
            compute(x, y)


def test_an_input_of_a_network_that_stays_on_the_host_raises() -> None:
    network, inputs = TRANSFORMERS["flux"].build, TRANSFORMERS["flux"].inputs(Drawn(torch.float16))
    with unfilled():
        flux = network().requires_grad_(False).half()
    with fake_cuda(), torch.no_grad():
        move_to_cuda(flux)
        given = {**copied_to_cuda(inputs), "context": torch.empty_like(inputs["context"], device="cpu")}
        with pytest.raises(RuntimeError, match="cpu"):
            flux(**given)


@pytest.mark.parametrize(
    "index",
    [
        0, -1, slice(1, None), slice(None, None, 2), None, ..., (..., 0), (0, ...), (None, 0), (slice(None), None, 1),
        (..., None, slice(1, 3)), (slice(None), [0, 2]), (slice(None), torch.tensor([0, 2])), torch.tensor([[0, 1]]),
        (torch.tensor([0, 1]), ..., torch.tensor([1, 2])), (0, torch.tensor([1]), slice(1, 3)), [1, 0],
        torch.tensor([True, False]), (slice(None), torch.ones(3, 4, dtype=torch.bool)),
        (..., torch.tensor([True, False, True, False])), (slice(0, 1), 2, [3, 0]),
    ],
    ids=str,
)  # fmt: skip
def test_indices_by_operations_are_those_of_torch(index: Any) -> None:
    tensor = torch.arange(24.0).view(2, 3, 4)
    found = taken(tensor, index)
    assert torch.equal(found, tensor[index])
    for value in (5, torch.tensor(6.0), -torch.ones_like(found)):
        ours, theirs = tensor.clone(), tensor.clone()
        put(ours, index, value)
        theirs[index] = value
        assert torch.equal(ours, theirs)


def networks(family: ModelFamily) -> tuple[Any, Any, Any]:
    """Return the denoising network, the text encoders (None without) and the VAE, without memory, typed for a card."""
    types = LoadTypes(
        unet=_dtype(unet_types(DEFAULTS, FACTS, family.dtypes.unet).computed),
        text_encoder=_dtype(text_encoder_types(DEFAULTS, FACTS, on_device=True).computed),
        vae=_dtype(vae_types(DEFAULTS, FACTS, family.dtypes.vae).computed),
    )
    unet, text, vae = random_networks("small", 0, types, "meta", family=family)
    for module, described in ((unet, family.denoiser), (vae, family.vae)):
        _keep_float32(module, described)
    return unet, text, vae


def _keep_float32(module: torch.nn.Module, described: Network) -> None:
    for name, weight in module.named_parameters():
        if described.float32_ends and f".{name}".endswith(described.float32_ends):
            weight.data = weight.data.float()


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def encoded(family: ModelFamily, text: Any) -> Entries:
    """Return the conditioning of a prompt on the host, or as much of an image where the family takes no prompt.

    A song whose length its numbers decide is not written here, where there are none.
    """
    if text is None or family.name in WRITTEN:
        return [
            [torch.empty(1, IMAGE_TOKENS, family.scales["small"].denoiser.context_dim), WRITTEN.get(family.name, {})]
        ]
    encoders = text.encoders()
    parts = TokenizerParts(byte_pairs(), lambda encoding: lambda name: (None, name))
    tokenizer = TokenizerSet(
        [item.tokenizer(encoders[item.encoding.slot], parts) for item in family.text if item.encoding.slot in encoders]
    )
    given: dict[str, Any] = SHORT_SONG if family.name == "ace_step15" else {}
    tokens = tokenizer.tokenize_with_weights("a (red:1.2) fox", tokenizer_options={}, **given)
    move_to_cuda(text)
    cond, pooled, options = text.encode_weighted(tokens, layer_idx=None, project_pooled=True)
    assert cond.device == CUDA
    on_host = tree_map(_on_host, {"pooled_output": pooled, **options})
    return [[cond.cpu(), on_host]]


def _on_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value


@cache
def byte_pairs() -> BytePairs:
    return BytePairs()


def latent_shape(family: ModelFamily, vae: Any) -> tuple[int, ...]:
    """Return the sizes of a small latent behind its channels."""
    if getattr(vae, "is_of_voxels", False):
        return (GRID_SIDE,) * 3
    if hasattr(vae, "latent_height"):  # of audio, in bands
        return vae.latent_height, CELLS
    cells = IMAGE_PX // vae.downscale_ratio if vae.downscale_ratio == 1 else CELLS
    frames = 1 if family.default.frames is None else 2
    return {1: (CELLS,), 2: (cells, cells), 3: (frames, cells, cells)}[family.latent_format.latent_dimensions]


def source_shape(family: ModelFamily, vae: Any) -> tuple[int, ...]:
    """Return the shape of an image [C, H, W], a video [C, F, H, W] or audio [C, S]."""
    if getattr(vae, "is_of_audio", False):
        return vae.audio_channels, 2 * vae.downscale_ratio
    channels = getattr(vae, "output_channels", 3)
    if family.latent_format.latent_dimensions == 2:
        return channels, IMAGE_PX, IMAGE_PX
    return channels, FRAMES, IMAGE_PX, IMAGE_PX
