"""SDPose: its network is known, points come of each image or box, and other models are refused before a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.contract.errors import PromptRejected
from darkroom.engine.engine import Engine
from darkroom.engine.errors import BadModelFile
from darkroom.engine.families.base import TensorIndex
from darkroom.engine.families.registry import recognise
from darkroom.engine.families.sd2.family import FAMILY, unet_config
from darkroom.engine.families.sd2.heatmap_head import HeatmapConfig, PoseUnet, PoseUnetConfig, with_head
from darkroom.engine.families.sd2.nodes.pose import sdpose_keypoint_extractor
from darkroom.engine.families.sd15.unet_files import PREFIX
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.images.poses import poses_of
from darkroom.engine.layers.unet import UnetModel
from darkroom.engine.media.frame_stream import FrameStream
from darkroom.engine.models.store import ModelStore
from darkroom.engine.settings import EngineSettings
from tests.engine.nodes.small_store import node_context, small_store
from tests.engine.simulated_card import node
from tests.parity.models import read_layouts, write_model

CHANNELS = 128
HEAD = {
    "deconv_layers.0.weight": (CHANNELS, 32, 4, 4), "conv_layers.0.weight": (32, 32, 1, 1),
    "conv_layers.0.bias": (32,), "final_layer.weight": (133, 32, 1, 1), "final_layer.bias": (133,),
}  # fmt: skip
POSE, LOTUS = "pose.safetensors", "lotus.safetensors"
SIDES = (40, 56)


def tensors(head: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """The weights of a small Lotus network with a head."""
    config = unet_config(model_channels=64, channel_mult=(1, 2), blocks_per_level=1, label_dim=4)
    with unfilled():
        shapes = {name: tuple(weight.shape) for name, weight in UnetModel(config).state_dict().items()}
    shapes |= {f"heatmap_head.{name}": shape for name, shape in head.items()}
    drawn = torch.Generator().manual_seed(0)
    return {
        PREFIX + name: torch.randn(shape, generator=drawn) / max(1, torch.Size(shape[1:]).numel()) ** 0.5
        for name, shape in shapes.items()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small network of SDPose, one of Lotus, and a VAE."""
    base = tmp_path_factory.mktemp("pose")
    write_model(next(item for item in read_layouts() if item.name == "vae_kl"), base / "models")
    (base / "models" / "diffusion_models").mkdir()
    for name, head in ((POSE, HEAD), (LOTUS, {})):
        write_safetensors(base / "models" / "diffusion_models" / name, tensors(head))
    return base


@pytest.fixture(scope="module")
def store(folder: Path) -> ModelStore:
    return small_store(folder / "models")


class Coarse:
    """The VAE, of which every latent is that of a small image: attention costs little then."""

    def __init__(self, vae: Any) -> None:
        self._vae = vae
        self.latent_dim, self.latent_channels = vae.latent_dim, vae.latent_channels
        self.num_encoded: list[int] = []

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        self.num_encoded.append(len(pixels))
        latents: torch.Tensor = self._vae.encode(pixels[:, ::8, ::8])
        return latents


def extracted(store: ModelStore, images: Any, **inputs: Any) -> tuple[list[dict[str, Any]], list[int]]:
    vae = Coarse(store.vae("vae_kl.safetensors"))
    frames: list[dict[str, Any]] = sdpose_keypoint_extractor(
        node_context(store), model=store.unet(POSE), vae=vae, image=images, **inputs
    )
    return frames, vae.num_encoded


def images(count: int) -> torch.Tensor:
    return torch.rand(count, *SIDES, 4, generator=torch.Generator().manual_seed(0))


def test_its_network_is_a_variant_known_by_its_head(store: ModelStore) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors(HEAD).items()}
    found = recognise(TensorIndex(shapes))
    assert (found.family.name, found.match.variant) == ("sd2", "pose")
    network = store.unet(POSE).model.diffusion_model
    assert isinstance(network, PoseUnet)
    assert isinstance(network.config, PoseUnetConfig) and network.config.heatmap == HeatmapConfig(CHANNELS, 32, 32)


def test_every_image_has_a_person_and_a_stream_those_of_a_batch(store: ModelStore) -> None:
    batch = images(3)
    frames, num_encoded = extracted(store, batch, batch_size=2)
    assert num_encoded == [2, 1]
    assert [(frame["canvas_height"], frame["canvas_width"]) for frame in frames] == [SIDES] * 3
    assert [len(frame["people"]) for frame in frames] == [1, 1, 1]
    stream = FrameStream((3, *SIDES, 4), lambda: iter(torch.split(batch, 1)))
    assert extracted(store, stream, batch_size=2)[0] == frames


def test_boxes_have_a_person_each_and_those_outside_none(store: ModelStore) -> None:
    def box(x: int, y: int) -> dict[str, int]:
        return {"x": x, "y": y, "width": 30, "height": 20}

    frames, num_encoded = extracted(store, images(3), batch_size=9, bboxes=[[box(4, 6), box(90, 0)], [], [box(-9, 30)]])
    assert num_encoded == [1, 1, 1]
    assert [len(frame["people"]) for frame in frames] == [1, 1, 1]
    (of_box,), (of_image,) = poses_of(frames[0]), poses_of(frames[1])
    seen = of_box.body[of_box.body[:, 2] > 0]
    assert len(seen) and (seen[:, 0] >= 4).all() and (seen[:, 0] <= 34).all() and (seen[:, 1] <= 26).all()
    assert of_image.body[:, 0].max() > 34


def test_the_last_boxes_are_those_of_all_further_images(store: ModelStore) -> None:
    boxes = [[{"x": 0, "y": 0, "width": 20, "height": 20}] * 2]
    frames, _ = extracted(store, images(2), batch_size=1, bboxes=boxes)
    assert [len(frame["people"]) for frame in frames] == [2, 2]


@pytest.mark.parametrize(
    ("name", "shape", "found"),
    [
        ("final_layer.weight", (17, 32, 1, 1), "points: got 17, expected 133"),
        ("deconv_layers.0.weight", (CHANNELS, 32, 3, 3), "sides of a kernel"),
        ("deconv_layers.0.weight", (96, 32, 4, 4), "96 features, which its output blocks do not have"),
    ],
)
def test_other_heads_are_refused_by_name(folder: Path, name: str, shape: tuple[int, ...], found: str) -> None:
    write_safetensors(folder / "models" / "diffusion_models" / "odd.safetensors", tensors(HEAD | {name: shape}))
    with pytest.raises(BadModelFile, match=found):
        small_store(folder / "models").unet("odd.safetensors")


def test_a_network_without_a_head_stays_as_it_is() -> None:
    config = replace(unet_config(), label_dim=4)
    assert with_head(config, {}) is config
    with unfilled():
        assert type(FAMILY.denoiser.build(config)) is UnetModel


def test_other_models_are_refused_before_the_run_and_in_it(folder: Path, store: ModelStore) -> None:
    prompt = {
        "1": node("UNETLoader", unet_name=LOTUS, weight_dtype="default"),
        "2": node("VAELoader", vae_name="vae_kl.safetensors"),
        "3": node("EmptyImage", width=16, height=16, batch_size=1, color=0),
        "4": node("SDPoseKeypointExtractor", model=["1", 0], vae=["2", 0], image=["3", 0], batch_size=1),
        "5": node("SDPoseFaceBBoxes", keypoints=["4", 0], scale=1.5, force_square=True),
        "6": node("DrawBBoxes", bboxes=["5", 0]),
        "7": node("SaveImage", images=["6", 0], filename_prefix="pose"),
    }
    with Engine(EngineSettings(base_directory=folder, cpu=True)) as engine:
        with pytest.raises(PromptRejected) as refused:
            engine.check(prompt)
        (problem,) = refused.value.node_problems["4"].problems
        assert "got another network, expected Stable Diffusion 2's network, variant pose" in problem.details
        engine.check({**prompt, "1": node("UNETLoader", unet_name=POSE, weight_dtype="default")})
    with pytest.raises(ValueError, match="model: another network; got one without a heatmap head"):
        sdpose_keypoint_extractor(
            node_context(store), model=store.unet(LOTUS), vae=store.vae("vae_kl.safetensors"), image=images(1)
        )
