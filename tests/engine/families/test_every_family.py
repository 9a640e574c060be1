"""Tests that every family of models passes by being there: a new folder in `engine/families` is tested by these.

The models are those of the family's small scale. The recorded cases of `tests/parity` are drawn by `-m slow`;
those of the default family have a file of their own.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmark.family_workflows import IMAGE_PX, USUAL_CELL_PX, cell_px, image, image_of_checkpoint
from darkroom.engine.diffusion.guidance import BATCH_MARGIN
from darkroom.engine.diffusion.samplers.registry import declared_samplers
from darkroom.engine.engine import Engine
from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily, TensorIndex
from darkroom.engine.formats.safetensors_file import SafetensorsFile, write_safetensors
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.media.audio_files import read_audio
from darkroom.engine.models.load import (
    LoadedCheckpoint,
    LoadTypes,
    load_checkpoint,
    load_text_encoders,
    load_unet,
    load_vae,
)
from darkroom.engine.models.patching.lora_keys import text_lora_keys
from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.engine.models.saved_layout import bytes_tensor
from darkroom.engine.models.store import DEFAULT_TEXT_TYPE
from darkroom.engine.nodes.built_in import built_in_nodes
from darkroom.engine.nodes.library.model.model_saving import checkpoint_save, image_only_checkpoint_save
from darkroom.engine.settings import DtypeSettings, EngineSettings
from tests.engine.nodes.small_store import node_context, small_store
from tests.engine.simulated_card import MIB, engine_of, latent_of, node, run
from tests.parity.in_process import assert_like_the_reference
from tests.parity.layout import checkpoint_shapes, weightless_denoiser
from tests.parity.recorded import INPUTS, Case, find_cases

FAMILIES = registry.families()
VIDEO_FAMILIES = [
    item for item in FAMILIES if any(default.frames for default in (item.default, *item.variant_defaults.values()))
]
SMALL_CARD_MIB = 12  # less than the networks of a small scale take
BYTES_PER_BYTE = 0.01 * MIB  # of working memory, for one of a latent, times the family's factor
VIDEO_CARD_MIB = 20  # the same where the VAE is one of videos, which works on more at a time

# In the scope of the module, so that all tests of a family follow one another and share what they only read.
every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name, scope="module")
PROMPTED = [family for family in FAMILIES if family.text]
every_prompted_family = pytest.mark.parametrize("family", PROMPTED, ids=lambda family: family.name, scope="module")
FIRST_OF_ITS_LATENTS = {family.latent_format.latent_dimensions: family.name for family in reversed(PROMPTED)}.values()
FIRST_OF_ITS_NETWORK = {family.denoiser.build: family.name for family in reversed(FAMILIES)}.values()
# Marks that a checkpoint may have, and that a saved one has: of v-prediction, and of a network of any noise level.
MARKS = {"v_pred", "ztsnr", "edm_vpred.sigma_max", "edm_vpred.sigma_min"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base directory with a random checkpoint of every family, called after it."""
    folder = tmp_path_factory.mktemp("families")
    for family in FAMILIES:
        write_random_checkpoint(folder / "models" / "checkpoints" / f"{family.name}.safetensors", family=family)
    return folder


def checkpoint(base: Path, family: ModelFamily) -> Path:
    return base / "models" / "checkpoints" / f"{family.name}.safetensors"


@pytest.fixture(scope="module")
def whole(base: Path, family: ModelFamily) -> LoadedCheckpoint:
    """The family's checkpoint, to be compared with."""
    return load_checkpoint(checkpoint(base, family), LoadTypes())


def saved_index(family: ModelFamily, scale: str) -> TensorIndex:
    """The tensors of a checkpoint at a scale; no weights are made."""
    return TensorIndex(checkpoint_shapes(family, scale))


# --- descriptions ----------------------------------------------------------------------------------------------------


def test_one_family_is_the_default_and_comes_first() -> None:
    assert [family.is_default for family in FAMILIES] == [True] + [False] * (len(FAMILIES) - 1)
    assert len({family.name for family in FAMILIES}) == len({family.label for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize("family", VIDEO_FAMILIES, ids=[family.name for family in VIDEO_FAMILIES])
def test_a_family_of_videos_declares_how_many_frames_its_vae_encodes_as_one(family: ModelFamily) -> None:
    with unfilled():
        vae = family.vae.build(family.scales["full"].vae)
    ratios = {item.frames_ratio for item in (family.default, *family.variant_defaults.values()) if item.frames}
    assert ratios == {getattr(vae, "frames_ratio", 1)}


@every_family
def test_its_defaults_are_ones_that_nodes_take(family: ModelFamily) -> None:
    assert set(family.nodes) <= {item.class_type for item in built_in_nodes()}
    assert family.default.sampler_name in declared_samplers()
    assert {"full", "small"} <= family.scales.keys() and "" in family.variants


@every_family
@pytest.mark.parametrize("scale", ["full", "small"])
def test_a_checkpoint_is_recognised_as_of_its_family_alone(family: ModelFamily, scale: str) -> None:
    index = saved_index(family, scale)
    assert registry.recognise(index).family is family
    assert [other for other in FAMILIES if other.detect(index) is not None] == [family]


@every_family
@pytest.mark.parametrize("scale", ["full", "small"])
def test_a_file_of_the_network_alone_is_recognised(family: ModelFamily, scale: str) -> None:
    unet = weightless_denoiser(family.name, scale)
    shapes = {name: tuple(weight.shape) for name, weight in unet.state_dict().items()}
    assert registry.recognise(TensorIndex(shapes)).family is family


@every_family
def test_lora_keys_cover_every_layer(family: ModelFamily) -> None:
    names = [f"diffusion_model.{name}" for name in weightless_denoiser(family.name, "full").state_dict()]
    keys = family.denoiser_lora_keys(names, family.scales["full"].denoiser)
    layers = {name for name in names if name.endswith(".weight")}
    assert layers <= set(keys.values()) <= set(names) | set(keys.values())
    for layer in layers:
        assert f"lora_unet_{layer.removeprefix('diffusion_model.').removesuffix('.weight').replace('.', '_')}" in keys


@every_prompted_family
def test_lora_keys_cover_every_layer_of_the_text_encoders(whole: LoadedCheckpoint) -> None:
    text = whole.text_encoder
    assert text is not None
    keys = text_lora_keys(text)
    assert {name for name in text.state_dict() if name.endswith(".weight")} <= set(keys.values())


# --- files -----------------------------------------------------------------------------------------------------------


def assert_same(first: Any, second: Any) -> None:
    if first is None:
        assert second is None
        return
    ours, theirs = first.state_dict(), second.state_dict()
    assert ours.keys() == theirs.keys()
    assert not [name for name, weight in ours.items() if not torch.equal(weight, theirs[name])]


@every_family
def test_a_checkpoint_is_loaded_saved_and_loaded_again_to_the_same_bits(
    base: Path, family: ModelFamily, whole: LoadedCheckpoint, tmp_path: Path
) -> None:
    store = small_store(base / "models")
    model, clip, vae = store.checkpoint(f"{family.name}.safetensors")
    vision = store.auxiliary.checkpoint_vision(f"{family.name}.safetensors")
    assert (vision is None) == (family.scales["small"].vision is None) and (clip is None) == (not family.text)
    context = node_context(store, tmp_path)
    if family.text:
        checkpoint_save(context, model=model, clip=clip, vae=vae, filename_prefix="again")
    else:
        image_only_checkpoint_save(context, model=model, clip_vision=vision, vae=vae, filename_prefix="again")
    (again,) = tmp_path.glob("*.safetensors")
    second = load_checkpoint(again, LoadTypes())
    assert whole.family is second.family is family
    for part in ("unet", "text_encoder", "vae"):
        assert_same(getattr(whole, part), getattr(second, part))
    # The names are the file's own: nothing is left out, and nothing is added but marks.
    added = SafetensorsFile(again).shapes.items() - SafetensorsFile(checkpoint(base, family)).shapes.items()
    assert {name for name, _ in added} <= MARKS
    if vision is not None and not family.text:
        (tmp_path / "checkpoints").mkdir()
        again.rename(tmp_path / "checkpoints" / "again.safetensors")
        saved = small_store(tmp_path).auxiliary.checkpoint_vision("again.safetensors")
        assert saved is not None
        assert_same(saved.patcher.model, vision.patcher.model)


@every_family
def test_each_network_of_a_checkpoint_loads_from_a_file_of_its_own(
    family: ModelFamily, whole: LoadedCheckpoint, tmp_path: Path
) -> None:
    write_safetensors(tmp_path / "unet.safetensors", whole.unet.state_dict())
    write_safetensors(tmp_path / "vae.safetensors", whole.vae.state_dict())
    alone = load_unet(tmp_path / "unet.safetensors", LoadTypes())
    assert alone.family is family
    assert_same(alone.unet, whole.unet)
    assert_same(load_vae(tmp_path / "vae.safetensors", LoadTypes()), whole.vae)
    if whole.text_encoder is None:
        return
    paths = []
    for item in family.text_of(family.scales["small"]):
        encoder = whole.text_encoder.encoders()[item.encoding.slot]
        paths.append(tmp_path / f"{item.encoding.slot}.safetensors")
        tokenizer = {} if item.vocabulary is None else {item.vocabulary.names[0]: bytes_tensor(encoder.vocabulary)}
        write_safetensors(paths[-1], encoder.transformer.state_dict() | tokenizer)
    text_type = next(iter(family.comfyui.text_types), DEFAULT_TEXT_TYPE)
    assert_same(load_text_encoders(paths, LoadTypes(), text_type), whole.text_encoder)


# --- images --------------------------------------------------------------------------------------------------------


def fixed_tile_bytes(family: ModelFamily) -> int:
    """Return the working memory of a VAE that computes in tiles of one size, whatever memory there is; 0 for others."""
    with unfilled():
        vae: Any = family.vae.build(family.scales["small"].vae)
    if not getattr(vae, "tiles_itself", False):
        return 0
    side = IMAGE_PX // cell_px(family)
    return int(vae.decode_bytes((1, family.latent_format.latent_channels, 1, side, side))) * torch.float32.itemsize


def fixed_latent_bytes(family: ModelFamily) -> int:
    """Return the memory in which both conditions run as one batch, for latents of one size; 0 for other families."""
    network: Any = weightless_denoiser(family.name, "small")
    num_numbers = getattr(network, "q_token_length", 0) * family.latent_format.latent_channels
    return int(2 * BATCH_MARGIN * num_numbers * torch.float32.itemsize * BYTES_PER_BYTE * family.memory_usage_factor)


def assert_image(engine: Engine, outputs: dict[str, Any]) -> None:
    if "audio" in outputs["21"]:
        (item,) = outputs["21"]["audio"]
        waveform, rate_hz = read_audio(engine.files.output / item["subfolder"] / item["filename"])
        assert rate_hz in (44100, 48000) and waveform.shape[0] == 2 and 0.15 < waveform.shape[1] / rate_hz < 1.2
        assert waveform.std() > 0 and torch.isfinite(latent_of(engine, outputs)).all()
        return
    if "3d" in outputs["21"]:
        (item,) = outputs["21"]["3d"]
        shape = (engine.files.output / item["subfolder"] / item["filename"]).read_bytes()
        assert shape.startswith(b"glTF") and torch.isfinite(latent_of(engine, outputs)).all()
        return
    (item,) = outputs["21"]["images"]
    with Image.open(engine.files.output / item["subfolder"] / item["filename"]) as opened:
        pixels = np.asarray(opened)
    assert pixels.shape[:2] == (IMAGE_PX, IMAGE_PX) and pixels.shape[2] in (3, 4) and pixels.std() > 0
    assert torch.isfinite(latent_of(engine, outputs)).all()


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family.name in FIRST_OF_ITS_NETWORK else pytest.mark.slow, id=family.name)
        for family in FAMILIES
    ],
    scope="module",
)
def test_an_image_comes_out_and_is_the_same_offloaded(base: Path, family: ModelFamily) -> None:
    prompt = image_of_checkpoint(family)
    latents = []
    least_mib = VIDEO_CARD_MIB if family.latent_format.latent_dimensions == 3 else SMALL_CARD_MIB
    factor = family.memory_usage_factor * (USUAL_CELL_PX / cell_px(family)) ** 2  # working memory goes by cells
    small_card_bytes = max(least_mib, int(SMALL_CARD_MIB * factor)) * MIB
    small_card_bytes += fixed_tile_bytes(family) + fixed_latent_bytes(family)
    for card_bytes in (None, small_card_bytes):
        with engine_of(base, card_bytes=card_bytes) as engine:
            outputs, _ = run(engine, prompt)
            assert_image(engine, outputs)
            latents.append(latent_of(engine, outputs))
            # Image encoders and text encoders of a type are cast while they compute.
            reads_images = not family.text and family.scales["small"].vision is not None
            is_cast = reads_images or family.text_dtypes is not None
            is_streamed = engine.memory.report().num_streamed > 0
            assert is_streamed == (card_bytes is not None or is_cast)
    assert torch.equal(*latents)


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family.denoiser.float32_ends else pytest.mark.slow, id=family.name)
        for family in FAMILIES
    ],
    scope="module",
)
def test_an_image_comes_out_in_16_bits(base: Path, family: ModelFamily) -> None:
    types = DtypeSettings(unet="bfloat16", vae="bfloat16", text_encoder="bfloat16")
    with Engine(EngineSettings(base_directory=base, cpu=True, dtypes=types)) as engine:
        outputs, _ = run(engine, image_of_checkpoint(family))
        assert_image(engine, outputs)


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family.name in FIRST_OF_ITS_LATENTS else pytest.mark.slow, id=family.name)
        for family in PROMPTED
    ],
    scope="module",
)
def test_an_image_comes_out_of_random_networks(base: Path, family: ModelFamily) -> None:
    with engine_of(base) as engine:
        source = node("DarkroomRandomCheckpoint", family=family.name, scale="small", seed=1)
        assert_image(engine, run(engine, image(source, family))[0])


@pytest.mark.parametrize(
    "family",
    [pytest.param(family, marks=() if family.is_default else pytest.mark.slow, id=family.name) for family in PROMPTED],
    scope="module",
)
def test_an_image_comes_out_of_random_networks_of_float8_weights(tmp_path: Path, family: ModelFamily) -> None:
    types = DtypeSettings(unet="float8_e4m3fn", text_encoder="float8_e5m2")
    with Engine(EngineSettings(base_directory=tmp_path, cpu=True, dtypes=types)) as engine:
        source = node("DarkroomRandomCheckpoint", family=family.name, scale="small", seed=1)
        assert_image(engine, run(engine, image(source, family))[0])


# --- ComfyUI's own images ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("parity")
    shutil.copytree(INPUTS, folder / "input")
    with Engine(EngineSettings(base_directory=folder, cpu=True)) as engine:
        yield engine
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "case",
    [case for family in FAMILIES if not family.is_default for case in find_cases(family=family.name)],
    ids=lambda case: case.name,
)
def test_draws_what_comfyui_draws(parity: Engine, case: Case) -> None:
    assert_like_the_reference(parity, case)
